"""The processor: Freshet's engine as a library. initialize, process, batch_process, info, close.

    processor = Processor.initialize(ProcessorConfig(repository="repository"))
    reply = processor.process(PredictRequest("ctr", {"ids": ids, "floats": floats}))
    reply.outputs["score"], str(reply.generation)

Thread-safe throughout. Requests are validated in the caller's thread and computed on the SessionGroup's threads;
changes (poll, apply_delta, rollback, load, ...) run in the caller's thread under the model's lock and never block a
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from processor.clock import Clock, SystemClock
from processor.cores import available
from processor.errors import BadInput
from processor.host import ModelHost, ModelStats
from processor.model import Applied
from processor.predictor import Predictor, PredictRequest
from processor.replica import Replica
from processor.routes import VersionStatus
from processor.served import ServedVersion
from processor.session import SessionStats, total
from processor.sessions import Compute, GroupOptions, Policy, SessionGroup
from processor.stores.config import RemoteConfig
from processor.stores.remote import RemoteStats, RemoteTables
from processor.work import PredictReply

__all__ = ["Applied", "ModelStats", "PredictReply", "PredictRequest", "Processor", "ProcessorConfig", "VersionStatus"]


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """repository: folder of models. sessions: 0 for one a core. threads_per_session: of the executable.
    max_queue_rows: rows that may wait. models: the only ones to serve, or None. undo_depth: deltas a rollback can
    take back without reading the disk. compute, policy, batch_window_us: see processor.sessions. remote: tables whose
    rows are in a row store, or None."""

    repository: str
    sessions: int = 0
    threads_per_session: int = 1
    max_queue_rows: int = 65536
    compute: Compute = "threads"
    policy: Policy = "shared"
    batch_window_us: float = 0.0
    models: list[str] | None = None
    undo_depth: int = 16
    remote: RemoteConfig | None = None


class Processor(Predictor, ModelHost):
    """Serves every model of a repository."""

    def __init__(self, config: ProcessorConfig, clock: Clock | None = None) -> None:
        """Opens the repository and starts the sessions; poll() loads the models. See initialize()."""
        self.config = config
        clock = clock or SystemClock()
        remote = RemoteTables.of(config.remote, clock) if config.remote else None
        ModelHost.__init__(self, config.repository, config.models, config.undo_depth, clock, remote=remote)
        if config.sessions < 0 or config.sessions > 1024:
            raise BadInput(f"sessions: 0 to 1024 wanted, got {config.sessions}")
        options = GroupOptions(
            sessions=config.sessions or len(available()),
            max_queue_rows=config.max_queue_rows,
            compute=config.compute,
            policy=config.policy,
            window_s=config.batch_window_us / 1e6,
        )
        Predictor.__init__(self, SessionGroup(options, clock), clock)

    @classmethod
    def initialize(cls, config: ProcessorConfig, clock: Clock | None = None) -> Processor:
        """A processor with the newest version of every model loaded; raises when a model that is there cannot be."""
        processor = cls(config, clock)
        try:
            processor.load_all()
        except BaseException:
            processor.close()
            raise
        return processor

    def __enter__(self) -> Processor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """See Predictor.replica."""
        return cast(Replica, self._model(model).pick(version, label).readers)

    def connect(self, version: ServedVersion) -> Replica:
        """See ModelHost.connect: this process, alone."""
        threads = self.config.threads_per_session
        return Replica(version.reader, version.control, 0, threads, self._clock, self._remote)

    def work_done(self) -> tuple[SessionStats, int]:
        """See ModelHost.work_done."""
        return total(self._group.statistics()), self._group.queue_rows

    def lookups(self, version: ServedVersion) -> tuple[int, int]:
        """See ModelHost.lookups."""
        lookups, misses = self._group.counts(cast(Replica, version.readers)).sum(axis=0).tolist()
        return lookups, misses

    def remote_rows(self, version: ServedVersion) -> RemoteStats | None:
        """See ModelHost.remote_rows."""
        reader = cast(Replica, version.readers).remote
        return reader.statistics() if reader else None

    def info(self) -> dict[str, Any]:
        """See ModelHost.info; with the number of sessions."""
        return {"sessions": len(self._group), **super().info()}

    def close(self) -> None:
        """Answers what is queued, then stops the sessions; later calls raise NotReady."""
        self._closed = True
        self._group.close()
        if self._remote is not None:
            self._remote.close()
