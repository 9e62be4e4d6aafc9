"""The processor: Freshet's engine as a library. initialize, process, batch_process, info, close.

    processor = Processor.initialize(ProcessorConfig(repository="repository"))
    reply = processor.process(PredictRequest("ctr", {"ids": ids, "floats": floats}))
    reply.outputs["score"], str(reply.generation)

Callers of DeepRec's Processor pass the bytes of its PredictRequest and get those of a PredictResponse:

    response = processor.process(request)

A Processor combines a host of models (processor.versions.host) and a predictor (processor.sessions.predictor); both
offer more than Processor promises.

Thread-safe. Requests are validated in the caller's thread and computed on the SessionGroup's threads; changes (poll,
apply_delta, rollback, load, ...) run in the caller's thread under the model's lock and never block a request.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.input_lookup import open_lookups
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import ON, UNDO_DEPTH, Generation
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.repository import NO_KEYS, Keyring, open_repository
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.request import PredictReply, PredictRequest
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.versions.changes import ApplyResult, RollbackResult
from freshet_serving.processor.versions.host import CLOSED, ModelHost
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes, VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import GroupStats, Sketch

if TYPE_CHECKING:
    from freshet_serving.processor.running.user_states import ProcessStates
    from freshet_serving.processor.tables.budgets import Budgets
    from freshet_serving.processor.tables.remote_rows import RemoteConfig, RemoteTables

__all__ = [
    "ApplyResult",
    "GroupConfig",
    "ModelPolicy",
    "PredictReply",
    "PredictRequest",
    "Processor",
    "ProcessorConfig",
    "VersionStatus",
]


@dataclass(frozen=True, slots=True)
class ProcessorConfig(SessionConfig):
    """The options of a Processor; the inherited ones are described in processor.sessions.session_options.

    Attributes:
        repository: Folder of models, or its address in an object store.
        models: The only models to serve, None for all.
        undo_depth: Deltas that a rollback can undo without reading the disk.
        remote: Tables whose rows are in a row store, or None.
        budgets: Memory budgets for the rows of tables, or None.
        policies: Policies by model.
        delta_guard: Mode of the delta guard, see ModelHost.
        limits: Limits of requests.
        strict: True if a model that exists and cannot be served aborts the start; else the others are served.
        max_staleness_s: See ModelHost.
        ready_when_empty: See ModelHost.
        scratch: See ModelHost.
        keyring: Keys that must have signed what is served.
        mirror: See processor.repository.opening.
        mirror_bytes: See processor.repository.opening.
        online_stores: Online stores that features are looked up in, each a mapping of `name`, `url` and its options.
    """

    repository: str
    models: list[str] | None = None
    undo_depth: int = UNDO_DEPTH
    remote: RemoteConfig | None = None
    budgets: Budgets | None = None
    policies: Mapping[str, ModelPolicy] = field(default_factory=dict)
    delta_guard: str = ON
    limits: RequestLimits = DEFAULTS
    strict: bool = True
    max_staleness_s: float = 0.0
    ready_when_empty: bool = False
    scratch: str = ""
    keyring: Keyring = NO_KEYS
    mirror: str = ""
    mirror_bytes: int = 0
    online_stores: Sequence[Any] = ()


class InProcessHost(ModelHost):
    """The host of a process that answers requests itself, with its own predictor."""

    def __init__(self, config: ProcessorConfig, clock: Clock) -> None:
        """Open the repository and start the sessions; see Processor."""
        self._following = threading.Lock()
        remote: RemoteTables | None = None
        if config.remote is not None:
            from freshet_serving.processor.tables.remote_rows import open_remote_tables

            remote = open_remote_tables(config.remote, clock)
        self._lookups = open_lookups(config.online_stores, clock)
        self._states: ProcessStates | None = None
        if config.user_state_mb:
            # Loaded where users' parts are kept.
            from freshet_serving.processor.running.user_states import open_states, states_memory

            self._states = open_states(states_memory(config.user_state_mb, 1), 1, 0, clock)
        mirrored = open_repository(
            config.repository, config.mirror, config.mirror_bytes, serving=True, models=config.models or ()
        )
        repository = mirrored.with_keys(config.keyring)
        super().__init__(
            repository, config.models, config.undo_depth, clock, 1, remote, config.budgets,
            config.policies, config.delta_guard, config.max_staleness_s, config.ready_when_empty,
            config.scratch,
        )  # fmt: skip
        self.predictor = Predictor(
            Groups(config, clock), clock, config.limits, None if self._states is None else self._states.users
        )
        self.core_planning = self.predictor.groups.planning
        if self.core_planning is not None and not repository.remote:
            self.core_planning.lend(repository.root)
        self._forked = False
        _open_hosts.add(self)

    def on_routes_changed(self) -> None:
        # Models change concurrently: older routes must not replace newer ones.
        with self._following:
            self.predictor.update_routes({name: _routes(model.routes) for name, model in self._models.items()})

    def connect(self, version: ServedVersion) -> Replica:
        options = self.predictor.groups.of(version.manifest.model).options
        return Replica(
            version.files,
            version.control,
            0,
            options.threads_per_session,
            self._clock,
            options.all_cpus,
            self._remote,
            options.runs,
            self._lookups,
            self._states,
            options.device_rows_mb << 20,
        )

    def group_stats(self) -> dict[str, GroupStats]:
        return self.predictor.groups.statistics()

    def resize(self, sessions: int, group: str | None = None) -> None:
        self.predictor.groups.resize(sessions, group)

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        return self.predictor.groups.counts(_replica(version))

    def evidence(self, observer: str, *versions: ServedVersion) -> Any:
        offered = self.predictor.observers.offered.get(observer)
        return offered.evidence().get(tuple([_replica(version) for version in versions])) if offered else None

    def sketch(self, version: ServedVersion) -> Sketch:
        return self.predictor.groups.sketch(_replica(version))

    def counted(self, version: ServedVersion) -> Snapshot:
        return _replica(version).counted()

    def info(self) -> dict[str, Any]:
        groups = self.group_stats()
        sessions = sum(group.sessions for group in groups.values())
        # Loaded when a person asks.
        from freshet_serving.processor.versions.overview import describe

        shown = {name: self.predictor.groups.describe(name) for name in groups}
        return {"sessions": sessions, "groups": shown, **describe(self, self._clock.unix_s())}

    def close(self) -> None:
        """Answer what is queued, then stop the sessions; later calls raise NotReady."""
        if self._forked:
            # The threads that would be waited for are those of the parent.
            return
        with self._following:
            self.predictor.refuse(CLOSED)
        super().close()
        self.predictor.close()
        # Hosts, models and their callbacks refer to each other: without this, mapped files and their leases would stay
        # until the garbage collector finds them.
        for model in self._models.values():
            model.let_go()
        self.on_routes_changed()
        if self._remote is not None:
            self._remote.close()
        self._lookups.close()

    def disown(self) -> None:
        """Make calls raise NotReady in a child of the process that opened it: a fork copies no threads."""
        self._forked = True
        self._closed = "the processor was opened by the parent of this process: open one after fork()"
        # Without the lock, which a thread of the parent may hold: a child has no other thread that updates routes.
        self.predictor.refuse(self._closed)


_open_hosts: weakref.WeakSet[InProcessHost] = weakref.WeakSet()


def _disown_all() -> None:
    for host in list(_open_hosts):
        host.disown()


os.register_at_fork(after_in_child=_disown_all)


class Processor:
    """Serves every model of a repository.

        >>> inputs = {"user": np.array([1]), "tags": Ragged.of([["a", "b"]]), "floats": np.zeros((1, 4), np.float32)}
        >>> with Processor.initialize(ProcessorConfig(repository="repository")) as processor:
        ...     reply = processor.process(PredictRequest("ctr", inputs))
        >>> reply.outputs["score"].shape, reply.generation.version
        ((1, 1), 1)

    Thread-safe: a request never waits for a change of its model.
    """

    def __init__(self, config: ProcessorConfig, clock: Clock | None = None) -> None:
        """Open the repository and start the sessions; poll() loads the models. See initialize().

        Args:
            config: The options.
            clock: The clock; by default the machine's.
        """
        self.config = config
        # The host loads and changes models; the predictor answers requests with them.
        self.host = InProcessHost(config, clock or SystemClock())
        self.predictor = self.host.predictor
        self._answer_bytes = ENGINE.only("messages")

    @classmethod
    def initialize(cls, config: ProcessorConfig, clock: Clock | None = None) -> Self:
        """Return a processor with the newest version of every model loaded.

        Args:
            config: The options; see ProcessorConfig.strict for models that cannot be served.
            clock: The clock; by default the machine's.
        """
        processor = cls(config, clock)
        try:
            processor.host.load_all(config.strict)
        except BaseException:
            processor.close()
            raise
        return processor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def process(self, request: PredictRequest) -> PredictReply: ...

    @overload
    def process(self, request: bytes, model: str | None = None) -> bytes: ...

    def process(self, request: PredictRequest | bytes, model: str | None = None) -> PredictReply | bytes:
        """Score one request.

        Args:
            request: A request, or the bytes of DeepRec's PredictRequest; the reply is of the same kind.
            model: The model that bytes are for; needed only if there are several.

        Raises:
            FreshetError: If the request cannot be answered.
        """
        if isinstance(request, PredictRequest):
            return self.predictor.process(request)
        if self._answer_bytes is None:
            raise missing("a request as bytes", "deeprec")
        reply: bytes = self._answer_bytes(self, request, model)
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Score requests together; each gets its own reply or its own error, in order."""
        return self.predictor.batch_process(requests)

    def poll(self, patience_s: float | None = None) -> list[str]:
        """Check the repository once: load new versions, apply new deltas; cheap if nothing changed.

        Args:
            patience_s: Seconds that the other models wait for a slow one (processor.versions.poll_rounds), whose events
                a later call returns; None for no limit.

        Returns:
            A line for each event, for the log.
        """
        return self.host.poll(patience_s)

    def apply_delta(self, model: str, data: bytes | bytearray | None = None, path: str | None = None) -> ApplyResult:
        """Serve a delta; raises the error for which it was rejected.

        Args:
            model: Name of the model.
            data: The delta's bytes.
            path: Or its path inside the repository.
        """
        return self.host.apply_delta(model, data, path)

    def rollback(
        self, model: str, generation: Generation | str = "", reason: str = "", only: str = ""
    ) -> RollbackResult:
        """Serve an earlier generation again, here and on every server of the repository; see ModelHost.rollback.

        Args:
            model: Name of the model.
            generation: The generation to go back to, or a version, such as "3"; "" for what was served before.
            reason: Explanation for people.
            only: The part to take back alone, "model" or "entities"; "" for both.
        """
        return self.host.rollback(model, generation, reason, only)

    def info(self) -> dict[str, Any]:
        """Return the state of the processor, JSON-able: versions, labels, generation, freshness, sessions, memory."""
        return self.host.info()

    def close(self) -> None:
        """Answer what is queued, then stop the sessions; later calls raise NotReady."""
        self.host.close()


def _replica(version: ServedVersion) -> Replica:
    replica = version.replicas
    assert isinstance(replica, Replica), "connect() made it"
    return replica


def _routes(routes: Routes[ServedVersion]) -> Routes[Replica]:
    served = {number: _replica(version) for number, version in routes.served.items()}
    return Routes(routes.model, served, routes.labels, routes.states, routes.traffic)
