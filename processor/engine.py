"""The processor: Freshet's engine as a library. initialize, process, batch_process, info, close.

    processor = Processor.initialize(ProcessorConfig(repository="repository"))
    reply = processor.process(PredictRequest("ctr", {"ids": ids, "floats": floats}))
    reply.outputs["score"], str(reply.generation)

Callers of DeepRec's Processor pass the bytes of its PredictRequest instead, and get those of a PredictResponse:

    response = processor.process(request)

A Processor is a host of models (processor.versions.host) and a predictor (processor.sessions.predictor), whose own
methods do what it does not promise itself.

Thread-safe throughout. Requests are validated in the caller's thread and computed on the SessionGroup's threads;
changes (poll, apply_delta, rollback, load, ...) run in the caller's thread under the model's lock and never block a
request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.errors import BadInput, FreshetError, TooLarge
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import UNDO_DEPTH, Generation
from freshet_serving.processor.overview import describe
from freshet_serving.processor.repository import NO_KEYS, Keyring, open_repository
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.request import PredictReply, PredictRequest
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.tables.remote.reader import RemoteStats, RemoteTables
from freshet_serving.processor.tables.remote.settings import RemoteConfig
from freshet_serving.processor.versions.change_results import ApplyResult, RollbackResult
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import ON, CanaryEvidence, GroupStats, ShadowComparison, Sketch

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
    """The options of a Processor. repository: folder of models, or address. models: the only ones to serve, or None.
    undo_depth: deltas a rollback can take back without reading the disk. remote: tables whose rows are in a row
    store, or None. budgets: memory for the rows of tables, or None. policies: by model. delta_guard: see ModelHost.
    limits: of requests. max_staleness_s: see ModelHost. strict: a model that is there and cannot be served ends the
    start; else the others are served. keyring: whom what is served has to be signed by.
    mirror, mirror_bytes: see processor.repository.mirror.repositories. The rest: see
    processor.sessions.session_options."""

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
    keyring: Keyring = NO_KEYS
    mirror: str = ""
    mirror_bytes: int = 0


class InProcessPredictor(Predictor):
    """Answers by what a host of this process serves, as its routes are at that moment."""

    def __init__(self, host: ModelHost, groups: Groups, clock: Clock, limits: RequestLimits) -> None:
        super().__init__(groups, clock, limits)
        self._host = host

    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """See Predictor.replica."""
        return _replica(self._host.model(model).routes.pick(version, label))

    def route(
        self, model: str, version: int | None = None, label: str | None = None, key: bytes | None = None
    ) -> Replica:
        """See Predictor.route."""
        return _replica(self._host.model(model).routes.route(version, label, key))

    def models(self) -> list[str]:
        """See ModelHost.models."""
        return self._host.models()

    def status(self, model: str) -> list[VersionStatus]:
        """See ModelHost.status."""
        return self._host.status(model)


class InProcessHost(ModelHost):
    """The host of a process that answers by its models itself, with its predictor."""

    def __init__(self, config: ProcessorConfig, clock: Clock) -> None:
        """Opens the repository and starts the sessions; see Processor."""
        self._following = threading.Lock()
        remote = RemoteTables.of(config.remote, clock) if config.remote else None
        mirrored = open_repository(
            config.repository, config.mirror, config.mirror_bytes, serving=True, models=config.models or ()
        )
        repository = mirrored.with_keys(config.keyring)
        super().__init__(
            repository, config.models, config.undo_depth, clock, 1, remote, config.budgets,
            config.policies, config.delta_guard, config.max_staleness_s,
        )  # fmt: skip
        self.predictor = InProcessPredictor(self, Groups(config, clock), clock, config.limits)

    def on_routes_changed(self) -> None:
        """See ModelHost.on_routes_changed."""
        # Models change side by side: nobody may follow older routes after newer ones.
        with self._following:
            routes = {name: model.routes for name, model in self._models.items()}
            shadows = {name: _replica(r.shadow) for name, r in routes.items() if r.shadow is not None}
            pairs = [pair for r in routes.values() for pair in r.trials()]
            trials = [(_replica(canary), _replica(baseline)) for canary, baseline in pairs]
            self.predictor.update_traffic({name: r.traffic for name, r in routes.items()}, shadows, trials)

    def connect(self, version: ServedVersion) -> Replica:
        """See ModelHost.connect: this process, alone."""
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
        )

    def group_stats(self) -> dict[str, GroupStats]:
        """See ModelHost.group_stats."""
        return self.predictor.groups.statistics()

    def resize(self, sessions: int, group: str | None = None) -> None:
        """See ModelHost.resize."""
        self.predictor.groups.resize(sessions, group)

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """See ModelHost.lookups."""
        return self.predictor.groups.counts(_replica(version))

    def shadow_comparison(self, version: ServedVersion) -> ShadowComparison | None:
        """See ModelHost.shadow_comparison."""
        return self.predictor.shadow_comparisons().get((version.manifest.model, version.manifest.version))

    def canary_evidence(self, canary: ServedVersion, baseline: ServedVersion) -> CanaryEvidence:
        """See ModelHost.canary_evidence."""
        pair = _replica(canary), _replica(baseline)
        return self.predictor.evidence().get(pair) or CanaryEvidence.none(len(canary.manifest.outputs))

    def sketch(self, version: ServedVersion) -> Sketch:
        """See ModelHost.sketch."""
        return self.predictor.groups.sketch(_replica(version))

    def remote_rows(self, version: ServedVersion) -> RemoteStats | None:
        """See ModelHost.remote_rows."""
        reader = _replica(version).remote
        return reader.statistics() if reader else None

    def info(self) -> dict[str, Any]:
        """See ModelHost.info."""
        groups = self.group_stats()
        sessions = sum(group.sessions for group in groups.values())
        shown = {name: self.predictor.groups.describe(name) for name in groups}
        return {"sessions": sessions, "groups": shown, **describe(self, self._clock.unix_s())}

    def close(self) -> None:
        """Answers what is queued, then stops the sessions; later calls raise NotReady."""
        super().close()
        self.predictor.close()
        if self._remote is not None:
            self._remote.close()


class Processor:
    """Serves every model of a repository."""

    def __init__(self, config: ProcessorConfig, clock: Clock | None = None) -> None:
        """Opens the repository and starts the sessions; poll() loads the models. See initialize()."""
        self.config = config
        # The models and what changes them; and what answers by them.
        self.host = InProcessHost(config, clock or SystemClock())
        self.predictor = self.host.predictor

    @classmethod
    def initialize(cls, config: ProcessorConfig, clock: Clock | None = None) -> Self:
        """A processor with the newest version of every model loaded; see ProcessorConfig.strict."""
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
        """Scores one request; raises FreshetError. As bytes it is DeepRec's message (processor.eas), and so is the
        reply; model: which one is meant, needed only where there are several."""
        if isinstance(request, PredictRequest):
            return self.predictor.process(request)
        # Needed by these callers alone, and slow to import.
        from freshet_serving.processor.eas import codec as eas

        name = self._only_model() if model is None else model
        limits = self.predictor.limits(name)
        if len(request) > limits.max_body_bytes:
            most = f"at most {limits.max_body_bytes} bytes wanted"
            raise TooLarge(f"max_body_bytes: {most}, got {len(request)}; ask for fewer at once")
        inputs, wanted = eas.decode(request, self.predictor.manifest(name)[0], limits)
        return eas.encode(self.predictor.process(PredictRequest(name, inputs)).outputs, wanted)

    def _only_model(self) -> str:
        names = self.host.models()
        if len(names) != 1:
            raise BadInput(f"model: one of {', '.join(names) or 'none'} wanted, got nothing")
        return names[0]

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Scores requests together; each gets its own reply or its own error, in order."""
        return self.predictor.batch_process(requests)

    def poll(self, patience_s: float | None = None) -> list[str]:
        """Looks at the repository once: loads new versions, applies new deltas; cheap when nothing changed.

        patience_s: how long the other models wait for one that takes its time (processor.versions.poll_rounds): what
        happens there is returned by a later call. None: as long as it takes.
        """
        return self.host.poll(patience_s)

    def apply_delta(self, model: str, data: bytes | bytearray | None = None, path: str | None = None) -> ApplyResult:
        """Serves a delta given as bytes, or as a path inside the repository; raises why it was refused."""
        return self.host.apply_delta(model, data, path)

    def rollback(self, model: str, generation: Generation, reason: str = "") -> RollbackResult:
        """Serves an earlier generation again, here and on every server of the repository; see ServedModel.rollback."""
        return self.host.rollback(model, generation, reason)

    def info(self) -> dict[str, Any]:
        """Everything a person would ask, JSON-able: versions, labels, generation, freshness, sessions, memory."""
        return self.host.info()

    def close(self) -> None:
        """Answers what is queued, then stops the sessions; later calls raise NotReady."""
        self.host.close()


def _replica(version: ServedVersion) -> Replica:
    """What this process answers by a version with; raises NotReady before it is open."""
    replica = version.replicas
    assert isinstance(replica, Replica), "connect() made it"
    return replica
