"""A Processor without tables or sessions, the models it serves, and an in-memory driver for ASGI apps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import ApplyResult, PredictReply, PredictRequest, VersionStatus
from freshet_serving.processor.errors import BadInput, Conflict, FreshetError, NotFound, NotReady
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Input, Output
from freshet_serving.processor.sessions.request import Done
from freshet_serving.processor.versions.changes import RollbackResult
from freshet_serving.processor.versions.judges import JudgedModel, JudgementCounts, Judges
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.traffic import Traffic
from freshet_serving.processor.versions.trainer_watch import TrainerStanding
from freshet_serving.processor.watching import LabelSums
from freshet_serving.processor.watching.sketch import Sketch, StatsBlock, note_batch
from freshet_serving.processor.watching.stats import ChainStatus, GroupStats, Histogram, SessionStats
from freshet_serving.serving.request_headers import request_id_of
from freshet_serving.serving.telemetry.tracing import Trace

GENERATION = Generation(3, 17)


def manifest_of(inputs: list[Input], outputs: list[Output] | None = None) -> Manifest:
    """A manifest with no more in it than codecs look at."""
    outputs = outputs or [Output("score", 1)]
    return Manifest("ctr", 3, "fake", 0.0, inputs, [], [], outputs, 1, {}, {})


PACKED = manifest_of([Input("ids", "int64", 3), Input("floats", "float32", 2)])
FLAT = manifest_of([Input("user", "int64"), Input("price", "float32"), Input("city", "string")])
RAGGED = manifest_of(
    [Input("user", "int64"), Input("seen", "int64", ragged=True), Input("tags", "string", ragged=True)]
)
SINGLE = manifest_of([Input("x", "float32", 2)])
FOLLOWING = manifest_of([Input("x", "float32", dims=[1])], [Output("each", flat=True), Output("total")])
"""Its output `each` has the rank of the request's tensors."""
TWO_OUTPUTS = manifest_of([Input("user", "int64")], [Output("click", 1), Output("topic", 2)])


def rows_of(column: Any, spec: Input) -> int:
    if isinstance(column, Strings):
        return len(column) // (spec.columns or 1)
    return len(column)


class FakeReplica:
    """A replica of which only the manifest is read."""

    remote = None

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest


@dataclass
class FakeProcessor:
    """The interface of processor.engine.Processor, of its host and of its predictor. A score is the sum of the row's
    numbers and lengths.

    hold: answers wait until release() is called. full, refuse: what admit and submit raise. fail: what done is given.
    """

    manifests: dict[str, Manifest] = field(default_factory=lambda: {"ctr": PACKED})
    generation: Generation = GENERATION
    ready: bool = True
    stale: str = ""
    concerns: tuple[str, ...] = ()
    stuck: bool = False
    reachable: bool = True
    core_planning: Any = None
    hold: bool = False
    refuse: Exception | None = None
    full: Exception | None = None
    sessions: int = 2
    fail: FreshetError | None = None
    closed: bool = False
    polls: int = 0
    expected: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    requests: list[PredictRequest] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    admitted: list[tuple[float | None, float]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=lambda: {"stable": 3})
    limit: RequestLimits = DEFAULTS
    repository: Any = field(default_factory=lambda: SimpleNamespace(root=Path("fake"), remote=False))
    standings: dict[str, TrainerStanding] = field(default_factory=dict)
    observers: Any = field(default_factory=lambda: SimpleNamespace(add=lambda observer: None, counted=dict))

    @property
    def trainers(self) -> Any:
        return SimpleNamespace(standings=lambda: self.standings)

    @property
    def host(self) -> FakeProcessor:
        return self

    @property
    def predictor(self) -> FakeProcessor:
        return self

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        if self.closed:
            raise NotReady("closed")
        if model not in self.manifests:
            raise NotFound(f"model {model[:64]!r} is not in the repository")
        if label is not None and label not in self.labels:
            raise NotFound(f"model {model!r} has no label {label[:64]!r}")
        if version not in (None, self.generation.version):
            raise NotFound(f"model {model!r} has no version {version}")
        return self.manifests[model], self.generation

    def submit(self, request: PredictRequest, done: Done, replica: Any = None) -> None:
        manifest, generation = self.manifest(request.model, request.version, request.label)
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        rows = {i.name: rows_of(request.inputs[i.name], i) for i in manifest.inputs}
        if len(set(rows.values()) - {1}) > 1 or 0 in rows.values():
            raise BadInput(f"inputs: one number of rows wanted, got {rows}")
        n = max(rows.values())
        scores = sum(np.broadcast_to(_sums(request.inputs[i.name], i), (n,)) for i in manifest.inputs)
        outputs = {o.name: np.repeat(np.float32(scores)[:, None], o.columns, axis=1) for o in manifest.outputs}
        result = self.fail or PredictReply(outputs, generation, request.model)
        answer = lambda: done(result)  # noqa: E731
        if self.hold:
            self.held.append(answer)
        else:
            threading.Thread(target=answer).start()

    def set_owner(self, wake: Callable[[float], None], post: Any) -> bool:
        return False

    def limits(self, model: str) -> RequestLimits:
        return self.limit

    def check_room(self, model: str, timeout_s: float | None, waited_s: float = 0.0, sender: str = "") -> None:
        self.admitted.append((timeout_s, waited_s))
        if self.full is not None:
            raise self.full

    def select_replica(
        self,
        model: str,
        version: int | None,
        label: str | None,
        timeout_s: float | None,
        key: bytes | None = None,
        waited_s: float = 0.0,
        sender: str = "",
    ) -> Any:
        manifest, _ = self.manifest(model, version, label)
        self.keys.append(key)
        self.admitted.append((timeout_s, waited_s))
        if self.full is not None:
            raise self.full
        return FakeReplica(manifest)

    def resize(self, sessions: int, group: str | None = None) -> None:
        if group not in (None, "default"):
            raise NotFound(f"group {group!r} is not one of default")
        self.sessions = sessions

    def group_stats(self) -> dict[str, GroupStats]:
        work = SessionStats(requests=7, rows=70, expired=2, refused_late=3, wait_s=0.5, buckets={"64": 4})
        return {"default": GroupStats(self.sessions, 2, work)}

    def release(self) -> None:
        held, self.held = self.held, []
        for answer in held:
            answer()

    def models(self) -> list[str]:
        return list(self.manifests)

    def status(self, model: str) -> list[VersionStatus]:
        if model not in self.manifests:
            raise NotFound(f"Could not find any versions of model {model}")
        states: list[VersionStatus] = self.catalogue[model].routes.status()
        return states

    def info(self) -> dict[str, Any]:
        return {
            "ready": self.ready,
            "sessions": 2,
            "models": {m: {"generation": str(self.generation)} for m in self.manifests},
        }

    def apply_delta(self, model: str, data: bytes | None = None, path: str | None = None) -> ApplyResult:
        self.manifest(model)
        self.calls.append(("apply_delta", model, data, path, threading.current_thread() is threading.main_thread()))
        if data == b"conflict":
            raise Conflict("delta: continues step 9, the served generation is 3.17")
        return ApplyResult(model, Generation(3, 18), 5, 1, 2.5)

    def rollback(
        self, model: str, generation: Generation | str = "", reason: str = "", only: str = ""
    ) -> RollbackResult:
        self.calls.append(("rollback", model, generation, reason, only))
        if generation == "2":
            return RollbackResult(Generation(2, 9), [Generation(3, 17)], 10, recorded=True, withdrawn=(3,))
        return RollbackResult(Generation.parse(str(generation)), [Generation(3, 17)], 18, recorded=True)

    def versions(self, model: str) -> list[dict[str, object]]:
        record = {"reason": "labels were all 0", "by": "rollback", "at": 1.0, "gate": {}}
        return [
            {"version": 4, "state": "withdrawn", "generation": "", "default": False, "labels": [], **record},
            {"version": 3, "state": "available", "generation": "3.17", "default": True, "labels": ["stable"],
             "reason": "", "by": "", "at": None, "gate": {}},
        ]  # fmt: skip

    def release_version(self, model: str, version: int, reason: str = "") -> list[str]:
        self.calls.append(("release_version", model, version, reason))
        return [f"{model} {version}.0 loaded"]

    def reject_version(self, model: str, version: int, reason: str = "") -> list[str]:
        self.calls.append(("reject_version", model, version, reason))
        return []

    def release_deltas(self, model: str, version: int | None = None, reason: str = "") -> Generation:
        self.calls.append(("release", model, version, reason))
        return Generation(3, 18)

    def reject_deltas(self, model: str, version: int | None = None, reason: str = "") -> RollbackResult:
        self.calls.append(("reject", model, version, reason))
        return RollbackResult(Generation(3, 20), [Generation(3, 18)], 21, recorded=True, kept=(Generation(3, 20),))

    def calibrated(self, model: str, generation: Generation, evidence: LabelSums) -> None:
        self.calls.append(("calibrated", model, generation, evidence))

    def load(self, model: str, version: int, by_hand: bool = True) -> None:
        self.calls.append(("load", model, version))

    def unload(self, model: str, version: int) -> None:
        self.calls.append(("unload", model, version))

    def set_label(self, model: str, label: str, version: int) -> None:
        self.calls.append(("set_label", model, label, version))

    def remove_label(self, model: str, label: str) -> None:
        self.calls.append(("remove_label", model, label))

    def tell(self, model: str, status: VersionStatus) -> None:
        pass

    def chosen(self, model: str, known: Collection[int]) -> set[int]:
        return set(known)

    def expect(self, models: Iterable[str]) -> None:
        self.expected += models

    @property
    def missing(self) -> str:
        return "" if self.ready else f"waiting for model {', '.join(self.models())}"

    def poll(self, patience_s: float | None = None) -> list[str]:
        self.polls += 1
        changes, self.changes = self.changes, []
        return changes

    @property
    def catalogue(self) -> dict[str, Any]:
        """What processor.versions.overview looks at: one version of each model, labelled stable, 17 deltas on."""
        spec = SimpleNamespace(tables=[SimpleNamespace(name="user")], outputs=[Output("score", 1)])
        none = Histogram(())
        version = SimpleNamespace(
            replicas=SimpleNamespace(computes={1: "xla float32", 8: "xla int8", 64: "xla float32: int8 is off by 1"}),
            manifest=spec, generation=self.generation, delta_count=17, delta_rows=340, delta_nbytes=0,
            last_apply_ms=2.5, last_freshness_s=0.2, published_at=1.7e9, event_time=None, tables={},
            apply_s=none, age_s=none, event_age_s=none, derived_lag=(2, 1.5),
        )  # fmt: skip
        chain = ChainStatus("HELD", "late labels", "ab" * 16, 17, 19, 2, "held")
        states = [VersionStatus(4, "END", "a table does not fit"), VersionStatus(3, "AVAILABLE")]
        routes = SimpleNamespace(
            served={3: version},
            shares=lambda: {3: 0.95},
            traffic=Traffic(),
            labels={"stable": 3},
            status=lambda: states,
        )
        counts = JudgementCounts()
        counts.held["bias"], counts.auto_rollbacks["shift"] = 2, 1
        held = {5: "held by gate: the order"}
        judges = Judges(JudgedModel("ctr", ModelPolicy, FakeClock(), Path(), ""))
        judges.trend = lambda number: (tuple(scored(0.25, 0.25, 0.5).every()), (0.125,))
        if guard := judges.by_name.get("guard"):
            guard.preview_s.observe(0.004)
            guard.gate.outcomes["out of line"], guard.gate.input_drift = 1, {"age": 0.3}
        model = SimpleNamespace(
            pick=lambda: version, routes=routes, chain=lambda number: chain, staleness_s=lambda number: 1.5,
            damaged={"tables/user.safetensors": 1}, lock_watch=SimpleNamespace(held_s=0.0), judgement_counts=counts,
            judges=judges, decisions=SimpleNamespace(barred=held, held=held),
        )  # fmt: skip
        return dict.fromkeys(self.manifests, model)

    def lookups(self, version: Any) -> np.ndarray:
        return np.array([[1000, 30]])

    def sketch(self, version: Any) -> Sketch:
        return scored(0.25, 0.25, 0.5, np.nan)

    def evidence(self, observer: str, *versions: Any) -> None:
        return None

    def counted(self, version: Any) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        self.closed = True


class FakeTracer:
    """serving.telemetry.tracing.Tracer: traces every request, or whatever has a traceparent."""

    def __init__(self, everything: bool = False) -> None:
        self.ended: list[tuple[Trace, int]] = []
        self._everything = everything

    def begin(self, headers: Any, protocol: str) -> Trace | None:
        if not self._everything and b"traceparent" not in headers:
            return None
        return Trace(1, 2, 3, 0.5, protocol, "", request_id_of(headers))

    def end(self, trace: Trace, status: int) -> None:
        self.ended.append((trace, status))


def scored(*scores: float) -> Sketch:
    """What one batch of these scores leaves behind: 2 requests, waiting 1 ms, 2 ms sparse and 4 ms dense."""
    block, array = StatsBlock(1), np.array(scores, np.float32)
    note_batch(
        block.counts_address, block.sums_address, 2, array.size, 3, array.ctypes.data, array.size, 1e-3, 2e-3, 4e-3
    )
    return Sketch.total(1, [block])


def _sums(column: Any, spec: Input) -> np.ndarray:
    if isinstance(column, Ragged):
        return np.diff(column.row_splits).astype(np.float64)
    if isinstance(column, Strings):
        return np.diff(column.offsets).reshape(-1, spec.columns or 1).sum(1).astype(np.float64)
    return np.asarray(column, np.float64).reshape(len(column), -1).sum(1)


@dataclass
class Reply:
    """What an application sent. headers: by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes | list[bytes] = b"",
    headers: dict[str, str] | None = None,
    disconnect: bool = False,
) -> Reply | None:
    """One request through an ASGI application; None when it sent nothing. A list body arrives in chunks."""
    chunks = list(body) if isinstance(body, list) else [body]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not chunks:
            if disconnect:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks) or disconnect}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = path.encode()
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": raw, "query_string": b"",
        "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
    }  # fmt: skip
    await app(scope, receive, send)
    if not sent:
        return None
    start, content = sent
    return Reply(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, content["body"])


def send(
    app: Any, method: str, path: str, body: bytes | list[bytes] = b"", headers: dict[str, str] | None = None
) -> Reply:
    """call() on an event loop of its own."""
    reply = asyncio.run(call(app, method, path, body, headers))
    assert reply is not None
    return reply
