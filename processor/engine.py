"""The processor: Freshet's engine as a library. initialize, process, batch_process, info, close.

    processor = Processor.initialize(ProcessorConfig(repository="repository"))
    reply = processor.process(PredictRequest("ctr", {"ids": ids, "floats": floats}))
    reply.outputs["score"], str(reply.generation)

Callers of DeepRec's Processor pass the bytes of its PredictRequest instead, and get those of a PredictResponse:

    response = processor.process(request)

Thread-safe throughout. Requests are validated in the caller's thread and computed on the SessionGroup's threads;
changes (poll, apply_delta, rollback, load, ...) run in the caller's thread under the model's lock and never block a
request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import UNDO_DEPTH
from freshet_serving.processor.overview import describe
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.mirror.repositories import open_repository
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.request import PredictReply, PredictRequest
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.tables.remote.reader import RemoteStats, RemoteTables
from freshet_serving.processor.tables.remote.settings import RemoteConfig
from freshet_serving.processor.versions.change_results import ApplyResult
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching.canary_judge import CanaryEvidence
from freshet_serving.processor.watching.delta_guard import ON
from freshet_serving.processor.watching.sketch import Sketch
from freshet_serving.processor.watching.stats import ShadowComparison

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


class Processor(Predictor, ModelHost):
    """Serves every model of a repository."""

    def __init__(self, config: ProcessorConfig, clock: Clock | None = None) -> None:
        """Opens the repository and starts the sessions; poll() loads the models. See initialize()."""
        self.config = config
        clock = clock or SystemClock()
        self._following = threading.Lock()
        remote = RemoteTables.of(config.remote, clock) if config.remote else None
        mirrored = open_repository(
            config.repository, config.mirror, config.mirror_bytes, serving=True, models=config.models or ()
        )
        repository = mirrored.with_keys(config.keyring)
        ModelHost.__init__(
            self, repository, config.models, config.undo_depth, clock, 1, remote, config.budgets,
            config.policies, config.delta_guard, config.max_staleness_s,
        )  # fmt: skip
        Predictor.__init__(self, Groups(config, clock), clock, config.limits)

    @classmethod
    def initialize(cls, config: ProcessorConfig, clock: Clock | None = None) -> Self:
        """A processor with the newest version of every model loaded; see ProcessorConfig.strict."""
        processor = cls(config, clock)
        try:
            processor.load_all(config.strict)
        except BaseException:
            processor.close()
            raise
        return processor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """See Predictor.replica."""
        return cast(Replica, self._model(model).pick(version, label).replicas)

    def route(
        self, model: str, version: int | None = None, label: str | None = None, key: bytes | None = None
    ) -> Replica:
        """See Predictor.route."""
        return cast(Replica, self._model(model).routes.route(version, label, key).replicas)

    def on_routes_changed(self) -> None:
        """See ModelHost.on_routes_changed."""
        # Models change side by side: nobody may follow older routes after newer ones.
        with self._following:
            routes = {name: model.routes for name, model in self._models.items()}
            shadows = {name: cast(Replica, r.shadow.replicas) for name, r in routes.items() if r.shadow is not None}
            pairs = [pair for r in routes.values() for pair in r.trials()]
            trials = [(cast(Replica, canary.replicas), cast(Replica, baseline.replicas)) for canary, baseline in pairs]
            self.update_traffic({name: r.traffic for name, r in routes.items()}, shadows, trials)

    def connect(self, version: ServedVersion) -> Replica:
        """See ModelHost.connect: this process, alone."""
        options = self._groups.of(version.manifest.model).options
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

    @overload
    def process(self, request: PredictRequest) -> PredictReply: ...

    @overload
    def process(self, request: bytes, model: str | None = None) -> bytes: ...

    def process(self, request: PredictRequest | bytes, model: str | None = None) -> PredictReply | bytes:
        """Scores one request; raises FreshetError. As bytes it is DeepRec's message (processor.eas), and so is the
        reply; model: which one is meant, needed only where there are several."""
        if isinstance(request, PredictRequest):
            return super().process(request)
        # Needed by these callers alone, and slow to import.
        from freshet_serving.processor.eas import codec as eas

        name = self._only_model() if model is None else model
        limits = self.limits(name)
        if len(request) > limits.max_body_bytes:
            most = f"at most {limits.max_body_bytes} bytes wanted"
            raise TooLarge(f"max_body_bytes: {most}, got {len(request)}; ask for fewer at once")
        inputs, wanted = eas.decode(request, self.manifest(name)[0], limits)
        return eas.encode(super().process(PredictRequest(name, inputs)).outputs, wanted)

    def _only_model(self) -> str:
        names = self.models()
        if len(names) != 1:
            raise BadInput(f"model: one of {', '.join(names) or 'none'} wanted, got nothing")
        return names[0]

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """See ModelHost.lookups."""
        return self._groups.counts(cast(Replica, version.replicas))

    def shadow_comparison(self, version: ServedVersion) -> ShadowComparison | None:
        """See ModelHost.shadow_comparison."""
        return self.shadow_comparisons().get((version.manifest.model, version.manifest.version))

    def canary_evidence(self, canary: ServedVersion, baseline: ServedVersion) -> CanaryEvidence:
        """See ModelHost.canary_evidence."""
        pair = cast(Replica, canary.replicas), cast(Replica, baseline.replicas)
        return self.evidence().get(pair) or CanaryEvidence.none(len(canary.manifest.outputs))

    def sketch(self, version: ServedVersion) -> Sketch:
        """See ModelHost.sketch."""
        return self._groups.sketch(cast(Replica, version.replicas))

    def remote_rows(self, version: ServedVersion) -> RemoteStats | None:
        """See ModelHost.remote_rows."""
        reader = cast(Replica, version.replicas).remote
        return reader.statistics() if reader else None

    def info(self) -> dict[str, Any]:
        """See ModelHost.info."""
        groups = self.group_stats()
        sessions = sum(group.sessions for group in groups.values())
        shown = {name: self._groups.describe(name) for name in groups}
        return {"sessions": sessions, "groups": shown, **describe(self, self._clock.unix_s())}

    def close(self) -> None:
        """Answers what is queued, then stops the sessions; later calls raise NotReady."""
        ModelHost.close(self)
        self.end()
        if self._remote is not None:
            self._remote.close()
