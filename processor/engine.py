"""The processor: Freshet's engine as a library. initialize, process, batch_process, info, close.

    processor = Processor.initialize(ProcessorConfig(repository="repository"))
    reply = processor.process(PredictRequest("ctr", {"ids": ids, "floats": floats}))
    reply.outputs["score"], str(reply.generation)

Thread-safe throughout. Requests are validated in the caller's thread and computed on the SessionGroup's threads;
changes (poll, apply_delta, rollback, load, ...) run in the caller's thread under the model's lock and never block a
request.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.clock import Clock, SystemClock
from processor.columns import Column
from processor.errors import BadInput, FreshetError, NotFound, NotReady
from processor.generation import Generation
from processor.model import Applied, ServedModel, VersionStatus
from processor.package.manifest import Manifest
from processor.package.version import VersionReader
from processor.repository import FolderWatch, Repository
from processor.served import ServedVersion
from processor.sessions import Answer, SessionGroup, Work
from processor.stores.config import RemoteConfig, open_store
from processor.stores.remote import RemoteStats, RemoteTables

__all__ = ["Applied", "ModelStats", "PredictReply", "PredictRequest", "Processor", "ProcessorConfig", "VersionStatus"]

MAX_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """repository: folder of models. sessions: 0 for one a core. threads_per_session: of the executable.
    max_queue_rows: rows that may wait. models: the only ones to serve, or None. undo_depth: deltas a rollback can
    take back without reading the disk. remote: tables whose rows are in a row store, or None."""

    repository: str
    sessions: int = 0
    threads_per_session: int = 1
    max_queue_rows: int = 65536
    models: list[str] | None = None
    undo_depth: int = 16
    remote: RemoteConfig | None = None


@dataclass(slots=True)
class PredictRequest:
    """inputs: by the manifest's names; rows of 1 are broadcast. version or label: which version, else the newest."""

    model: str
    inputs: Mapping[str, Column]
    version: int | None = None
    label: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class PredictReply:
    """outputs: float32 [rows, columns] by name, all of one generation."""

    outputs: dict[str, NDArray[np.float32]]
    generation: Generation
    model: str


@dataclass(frozen=True, slots=True)
class ModelStats:
    """A snapshot of one model. requests to padded_rows are the SessionGroup's, over all models. published_at and
    event_time (newest event learned): Unix seconds, of the served generation. remote: of its tables in a row store."""

    model: str
    generation: Generation
    requests: int
    rows: int
    failed: int
    batches: int
    padded_rows: int
    queue_rows: int
    delta_count: int
    delta_rows: int
    last_apply_ms: float
    last_freshness_s: float
    published_at: float
    event_time: float | None
    lookups: int
    misses: int
    remote: RemoteStats | None = None


class Processor:
    """Serves every model of a repository."""

    def __init__(self, config: ProcessorConfig, clock: Clock | None = None) -> None:
        """Opens the repository and starts the sessions; poll() loads the models. See initialize()."""
        self.config = config
        self._clock = clock or SystemClock()
        self._repository = Repository(config.repository)
        if config.sessions < 0 or config.sessions > 1024:
            raise BadInput(f"sessions: 0 to 1024 wanted, got {config.sessions}")
        sessions = config.sessions or available_cores()
        self._remote = None
        if config.remote is not None:
            store = open_store(config.remote.url, config.remote.timeout_s, self._clock)
            self._remote = RemoteTables(config.remote, store, self._clock)
        self._group = SessionGroup(sessions, MAX_BATCH_ROWS, config.max_queue_rows, self._clock)
        self._root = FolderWatch(self._repository.root)
        self._models: dict[str, ServedModel] = {}
        # Folders without a version yet: the first one to come changes such a folder, not the root.
        self._empty: dict[str, FolderWatch] = {}
        self._changing = threading.Lock()
        self._closed = False

    @classmethod
    def initialize(cls, config: ProcessorConfig, clock: Clock | None = None) -> Processor:
        """A processor with the newest version of every model loaded; raises when a model that is there cannot be."""
        processor = cls(config, clock)
        try:
            processor.poll()
            for model in processor._models.values():
                broken = [s for s in model.status() if s.error]
                if broken and not model.ready:
                    raise BadInput(f"model {model.name!r} version {broken[0].version}: {broken[0].error}")
        except BaseException:
            processor.close()
            raise
        return processor

    def __enter__(self) -> Processor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: PredictRequest, done: Callable[[PredictReply | FreshetError], None]) -> None:
        """Validates and queues; done() is called once, on a session thread, and must not block."""
        version = self._model(request.model).pick(request.version, request.label)
        bound = version.plan.bind(request.inputs)
        deadline_s = None if request.timeout_s is None else self._clock.now_s() + request.timeout_s
        name = request.model

        def reply(answer: Answer | FreshetError) -> None:
            done(PredictReply(answer.outputs, answer.generation, name) if isinstance(answer, Answer) else answer)

        self._group.submit(Work(version, bound, reply), deadline_s)

    def process(self, request: PredictRequest) -> PredictReply:
        """Scores one request, waiting for it; raises FreshetError."""
        (reply,) = self.batch_process([request])
        if isinstance(reply, FreshetError):
            raise reply
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Scores requests together; each gets its own reply or its own error, in order."""
        replies: list[PredictReply | FreshetError | None] = [None] * len(requests)
        pending = threading.Semaphore(0)
        queued = 0
        for i, request in enumerate(requests):

            def done(reply: PredictReply | FreshetError, i: int = i) -> None:
                replies[i] = reply
                pending.release()

            try:
                self.submit(request, done)
                queued += 1
            except FreshetError as error:
                replies[i] = error
        for _ in range(queued):
            pending.acquire()
        return [r for r in replies if r is not None]

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        """What a request would be answered by; raises NotFound or NotReady."""
        served = self._model(model).pick(version, label)
        return served.manifest, served.generation

    def models(self) -> list[str]:
        return sorted(self._models)

    def status(self, model: str) -> list[VersionStatus]:
        """Where each version of a model stands, newest first; raises NotFound."""
        return self._model(model).status()

    @property
    def ready(self) -> bool:
        """Whether requests are answered: a model that is added later and cannot be loaded does not change it."""
        return not self._closed and (not self._models or any(m.ready for m in self._models.values()))

    def poll(self) -> list[str]:
        """One look at the repository: loads new versions, applies new deltas; cheap when nothing changed."""
        with self._changing:
            events: list[str] = []
            if self._closed:
                return events
            if self._root.changed():
                wanted = self.config.models
                for name in self._repository.models():
                    if name not in self._models and (wanted is None or name in wanted):
                        self._empty.setdefault(name, FolderWatch(self._repository.root / name))
            for name, folder in list(self._empty.items()):
                if folder.changed() and self._repository.versions(name):
                    self._models = self._models | {name: self._new_model(name)}
                    del self._empty[name]
            for model in self._models.values():
                events += model.poll()
            return events

    def apply_delta(self, model: str, data: bytes | bytearray | None = None, path: str | None = None) -> Applied:
        """Serves a delta given as bytes, or as a path inside the repository; raises why it was refused."""
        served = self._model(model)
        if (data is None) == (path is None):
            raise BadInput("delta: either the file itself or a path wanted")
        return served.apply_bytes(data) if data is not None else served.apply_file(self._repository.resolve(str(path)))

    def rollback(self, model: str, generation: Generation) -> Generation:
        """Serves an earlier generation again; later deltas leave the chain."""
        return self._model(model).rollback(generation)

    def load(self, model: str, version: int) -> None:
        """Loads a version beside those served."""
        self._model(model).load(version)

    def unload(self, model: str, version: int) -> None:
        """Stops serving a version."""
        self._model(model).unload(version)

    def set_label(self, model: str, label: str, version: int) -> None:
        """Points a label at a version."""
        self._model(model).set_label(label, version)

    def stats(self) -> list[ModelStats]:
        """A snapshot for each model that serves."""
        totals = self._group.statistics()
        snapshots = []
        for name, model in sorted(self._models.items()):
            if not model.ready:
                continue
            version = model.pick()
            lookups, misses = self._group.counts(version).sum(axis=0).tolist()
            snapshots.append(
                ModelStats(
                    model=name,
                    generation=version.generation,
                    requests=sum(s.requests for s in totals),
                    rows=sum(s.rows for s in totals),
                    failed=sum(s.failed for s in totals),
                    batches=sum(s.batches for s in totals),
                    padded_rows=sum(s.padded_rows for s in totals),
                    queue_rows=self._group.queue_rows,
                    delta_count=version.delta_count,
                    delta_rows=version.delta_rows,
                    last_apply_ms=version.last_apply_ms,
                    last_freshness_s=version.last_freshness_s,
                    published_at=version.published_at,
                    event_time=version.event_time[1] if version.event_time else None,
                    lookups=lookups,
                    misses=misses,
                    remote=version.remote.statistics() if version.remote else None,
                )
            )
        return snapshots

    def info(self) -> dict[str, Any]:
        """Everything a person would ask, JSON-able: versions, labels, generation, freshness, sessions, memory."""
        return {
            "ready": self.ready,
            "sessions": len(self._group),
            "models": {name: self._model_info(model) for name, model in sorted(self._models.items())},
        }

    def close(self) -> None:
        """Answers what is queued, then stops the sessions; later calls raise NotReady."""
        self._closed = True
        self._group.close()
        if self._remote is not None:
            self._remote.close()

    def _model(self, name: str) -> ServedModel:
        if self._closed:
            raise NotReady("the processor is closed")
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"model {name[:64]!r} is not in the repository")
        return model

    def _new_model(self, name: str) -> ServedModel:
        return ServedModel(name, self._repository, self._load_version, self._clock)

    def _load_version(self, reader: VersionReader) -> ServedVersion:
        config = self.config
        return ServedVersion(
            reader, len(self._group), config.threads_per_session, config.undo_depth, self._clock, self._remote
        )

    def _model_info(self, model: ServedModel) -> dict[str, Any]:
        now = self._clock.unix_s()
        served = {}
        for number, version in sorted(model.served.items()):
            served[str(number)] = {
                "generation": str(version.generation),
                "published_at": version.published_at,
                "age_s": max(0.0, now - version.published_at),
                "event_time": version.event_time[1] if version.event_time else None,
                "last_freshness_s": version.last_freshness_s,
                "last_apply_ms": version.last_apply_ms,
                "delta_count": version.delta_count,
                "delta_rows": version.delta_rows,
                "memory": version.memory(),
                "tables": {name: {"rows": t.rows, "dim": t.spec.dim} for name, t in version.tables.items()},
                "remote": asdict(version.remote.statistics()) if version.remote else None,
                "buckets": {str(b): round(s * 1e6, 1) for b, s in version.costs.cost.items()},
            }
        generation = str(model.pick().generation) if model.ready else None
        return {
            "generation": generation,
            "labels": model.labels,
            "versions": [asdict(s) for s in model.status()],
            "served": served,
        }


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
