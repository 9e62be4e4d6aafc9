"""Explain one row of a request: its lookups, its score, and the same under another generation.

Everything is read and computed outside the request path: in the caller's thread, in the process that writes (with
several workers their supervisor), by an executable that is opened for it (spare_executable), in a supervisor by a
process of its own (scoring_process). It involves no session, no replica and no pin, and none of it is counted.

Invariants
- A generation is read at one moment, under the version's lock: no delta comes in between, and rows that the undo log
  keeps are present. Rows are copied; the executable runs after the lock is released.
- The dense graph's input is filled by the kernel that fills it for requests, from the tables that they read.
- One explanation at a time, of one row of at most MAX_IDS ids: this bounds the delay of a delta, and the memory.

Costs: under the lock some microseconds per id; after it one run of a bucket for the score, one for as many features as
the bucket has rows, and as many again for a second generation. A history costs a row for each event (event_effects).

Rejected: tables in a row store (the supervisor never queries it), and with several workers versions with a stage, whose
library only workers load.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, Conflict, NotReady, Overloaded, TooLarge
from freshet_serving.processor.extensions.explaining.event_effects import event_effects
from freshet_serving.processor.extensions.explaining.feature_values import FeatureValues, feature_values
from freshet_serving.processor.extensions.explaining.movers import ScoredRow, additions, changes, comparable, movers
from freshet_serving.processor.extensions.explaining.spare_executable import Score, ScoringPath, SpareExecutables
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels.rows import LOGGED, SETTLED
from freshet_serving.processor.package import SCORE, Manifest, dense_sequences, undivided_name
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.repository import SIZES
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.tables.table import ServedTable, descriptors
from freshet_serving.processor.versions.changes import PastState
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion

FILE, DELTA, REMOVED, NOWHERE = "file", "delta", "removed", "nowhere"
UNKNOWN = -1


class RowOrigin(NamedTuple):
    """The origin of a row: the walk of processor.kernels.rows, reported instead of followed.

    It is in the FILE that the version was loaded from, in a DELTA, REMOVED by a delta, or NOWHERE. The delta's epoch is
    UNKNOWN if the table has not kept it.
    """

    kind: str
    epoch: int = UNKNOWN


def row_origins(table: ServedTable, keys: NDArray[np.int64], epoch: int) -> list[RowOrigin]:
    """Return the origin, as of an epoch, of each key's row, or of its absence; under the version's lock."""
    arrays = table.arrays
    index, meta, base_rows = arrays["index"], arrays["meta"], len(arrays["base"])
    heads = np.empty(len(keys), np.int64)
    hash_index.find(index.ctypes.data, len(index), np.ascontiguousarray(keys), heads)
    return [_origin(head, meta, base_rows, epoch) for head in heads.tolist()]


def _origin(ref: int, meta: NDArray[np.int64], base_rows: int, epoch: int) -> RowOrigin:
    while base_rows <= ref < SETTLED:
        stamp, before = meta[ref - base_rows].tolist()
        if stamp >> 1 <= epoch:
            return RowOrigin(REMOVED if stamp & 1 else DELTA, stamp >> 1)
        ref = before
    if SETTLED <= ref < LOGGED:
        stamp, copied = meta[ref - SETTLED].tolist()
        if copied < 0:
            return RowOrigin(DELTA, stamp >> 1)
        # A copy in memory of a row of the file or of the log (processor.tables.tier).
        ref = copied
    if ref < 0:
        return RowOrigin(NOWHERE)
    return RowOrigin(FILE) if ref < base_rows else RowOrigin(DELTA)


MAX_IDS, MAX_NUMBERS = 4096, 65536
PATIENCE_S = 10.0
"""Seconds that an explanation waits for the previous one, and for a delta that is being applied."""

Rows = NDArray[np.float32]


class GenerationRef(NamedTuple):
    """One side of an explanation: a step of a version's change log, None for the served one."""

    version: ServedVersion
    step: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _RowReads:
    """A row as a generation reads it: inputs of the undivided subgraph, and by feature the rows of ids and origins."""

    standing: PastState
    served: bool
    inputs: Mapping[str, Rows]
    rows: list[Rows]
    origins: list[list[RowOrigin]]
    look_up_s: float
    pool_s: float

    @property
    def x(self) -> Rows:
        row: Rows = self.inputs[MATRIX][0]
        return row


class Explainer:
    def __init__(self, computed_by: str, score: Score | None = None) -> None:
        """Set up an explainer; `computed_by` names the computing process for people, by default this one."""
        self._computed_by = computed_by
        self._score = score or SpareExecutables().score
        self._turn = threading.Lock()
        self._plans: weakref.WeakKeyDictionary[ServedVersion, SparsePlan] = weakref.WeakKeyDictionary()

    def explain(
        self,
        inputs: Mapping[str, Column],
        row: int,
        asked: GenerationRef,
        against: GenerationRef | None = None,
        *,
        limits: RequestLimits | None = None,
        vectors: bool = False,
        item: int | str | None = None,
    ) -> dict[str, Any]:
        """Return the explanation of a row, JSON-able except for numpy's numbers; docs/extensions/explaining.md.

        Args:
            inputs: Inputs of a request that is valid for `asked`, and for `against`.
            vectors: True to include the rows themselves.
            item: Id of an item whose place among the best items is explained; `inputs` are then those of a request for
                these, and `row` is the number of its user.

        Raises:
            Conflict: A generation is out of reach.
            NotReady: A delta is being applied, or a file is damaged.
            Overloaded: Another explanation is running.
        """
        with _held(self._turn, Overloaded("explain: another explanation is running; retry")):
            first, rows, described = self._side(inputs, row, asked, limits, vectors, item)
            answer: dict[str, Any] = {
                "model": asked.version.manifest.model,
                "row": row,
                "rows": rows,
                "sides": [described],
            }
            if against is not None:
                second, _, described = self._side(inputs, row, against, limits, vectors, item)
                answer["sides"].append(described)
                if comparable(first.manifest, second.manifest):
                    answer["change"] = changes(first.outputs, second.outputs)
                    answer["moved"], answer["moved_left_out"] = movers(first, second)
                else:
                    answer["note"] = (
                        "the two versions have different features or outputs: cannot attribute the change to features"
                    )
            return answer

    def reaches(self, question: GenerationRef) -> bool:
        with self._locked(question.version):
            return question.step is None or question.version.as_of(question.step) is not None

    def _side(
        self,
        inputs: Mapping[str, Column],
        row: int,
        asked: GenerationRef,
        limits: RequestLimits | None,
        vectors: bool,
        item: int | str | None,
    ) -> tuple[ScoredRow, int, dict[str, Any]]:
        """Return one side: the row as it is scored, the number of rows of the request, and the JSON of the side."""
        version, manifest = asked.version, asked.version.manifest
        features = len(manifest.features)
        began_s = time.perf_counter()
        plan = self._plan(version)
        listed = None if item is None else listed_item(manifest, item)
        sent, inputs = inputs, plan.aligned(inputs if listed is None else listed.candidate(inputs))
        bound = plan.bind_inputs(inputs, limits)
        if not 0 <= row < bound.rows:
            raise BadInput(f"row: expected 0 to {bound.rows - 1}, got {row}")
        with self._locked(version):
            if plan.late:
                tables, standing = _descriptors(version), _standing(version, asked.step)
                bound = plan.filled(tables, standing.epoch, bound)
            values = feature_values(manifest, plan, inputs, bound, row)
            _check_extent(values, manifest, vectors)
            bind_s = time.perf_counter() - began_s
            read = _read(version, asked.step, plan, bound, row, values)
        # Parts for candidates alone leave out the user's vector.
        way = _way(version, bound, row)._replace(parts=False) if listed is not None else _way(version, bound, row)
        dense = read.standing.dense
        ran = self._score(version.files, way, dense, read.inputs)
        outputs = {name: scores[0] for name, scores in ran.outputs.items()}
        stages = {
            "bind": bind_s, "look_up": read.look_up_s, "pool": read.pool_s, "open": ran.open_s,
            "execute": ran.execute_s,
        }  # fmt: skip

        def score(rows: Mapping[str, Rows]) -> dict[str, Rows]:
            return self._score(version.files, way, dense, rows).outputs

        side = ScoredRow(manifest, read.inputs, dense, outputs, score)
        inputs_told = {v.feature.name: _told(version, v, n, read, vectors) for n, v in enumerate(values[:features])}
        for name, change in additions(side).items():
            inputs_told[name]["score_change"] = change
        described = {
            "generation": str(read.standing.generation),
            "served": read.served,
            "executable": {
                "backend": ran.entry.backend,
                "target": ran.entry.target,
                "precision": ran.entry.precision,
                "bucket": way.bucket,
                "computes": ran.computes,
            },
            "computed_by": self._computed_by,
            "timings_ms": {stage: round(seconds * 1e3, 3) for stage, seconds in stages.items()},
            "outputs": outputs,
            "inputs": inputs_told,
        }
        if dense_sequences(manifest.sequences):
            row_s = ran.execute_s if way.parts else ran.execute_s / way.bucket
            described["histories"] = _histories(version, values, read, outputs, score, row_s, vectors)
        if listed is not None:
            max_ids = (limits or DEFAULTS).max_ids
            request = {"sent": sent, "aligned": inputs, "users": bound.rows, "user": row, "max_ids": max_ids}
            described["item"] = {"id": str(item), **self._listed(listed, version, read.standing, request, outputs)}
        return side, bound.rows, described

    def _listed(
        self,
        listed: Any,
        version: ServedVersion,
        scored: PastState,
        request: Mapping[str, Any],
        outputs: Mapping[str, Rows],
    ) -> dict[str, Any]:
        with self._locked(version):
            # The state may have been left while the score was computed.
            standing = version.as_of(scored.generation.step)
            if standing is None or standing.generation != scored.generation:
                raise Conflict(f"generation {scored.generation} was left while it was explained; try again")
            served = standing.generation == version.generation
            key, epoch = np.array([listed.key], np.int64), standing.epoch
            origins = {part: row_origins(version.tables[table], key, epoch)[0] for part, table in listed.tables.items()}
            present, arrays = origins["row"].kind in (FILE, DELTA), version.change.frame.arrays
            state = (_descriptors(version), arrays, epoch, standing.generation, served, present)
            explained: dict[str, Any] = listed.explained(request, state, outputs)
            explained |= {part: _from(version, origin) for part, origin in origins.items()}
        return explained

    def _plan(self, version: ServedVersion) -> SparsePlan:
        """Return the sparse graph of a version: that of this process's replica, or one of the explainer's own."""
        remote = [name for name, table in version.tables.items() if table.rows_elsewhere]
        if remote:
            raise BadInput(f"explain: table {remote[0]!r} is in a row store; use a server that holds it in memory")
        replicas = version.replicas
        if isinstance(replicas, Replica):
            return replicas.plan
        plan = self._plans.get(version)
        if plan is None:
            if version.manifest.stage is not None:
                raise BadInput(
                    "explain: only workers run this version's stage; use a server with one process (--workers 1)"
                )
            plan = self._plans[version] = SparsePlan(version.manifest)
        return plan

    @contextmanager
    def _locked(self, version: ServedVersion) -> Iterator[None]:
        with _held(version.lock, NotReady("explain: a delta is being applied; retry")):
            # Rows may lie in a mapped file: reading a page that is gone would end the process.
            if version.damage(SIZES):
                raise NotReady("explain: a file of the version is damaged")
            yield


@contextmanager
def _held(lock: Any, refusal: Exception) -> Iterator[None]:
    if not lock.acquire(timeout=PATIENCE_S):
        raise refusal
    try:
        yield
    finally:
        lock.release()


def _check_extent(values: list[FeatureValues], manifest: Manifest, vectors: bool) -> None:
    """Raise TooLarge for a row with too many ids, or with too many numbers to include its rows."""
    ids = sum(len(v.keys) for v in values)
    if ids > MAX_IDS:
        raise TooLarge(f"explain: expected a row of at most {MAX_IDS} ids, got {ids}")
    dims = {t.name: t.dim for t in manifest.tables}
    numbers = manifest.width + sum(len(v.keys) * dims.get(v.feature.table, 0) for v in values)
    if vectors and numbers > MAX_NUMBERS:
        raise TooLarge(f"vectors: expected rows of at most {MAX_NUMBERS} numbers in total, got up to {numbers}")


def _read(
    version: ServedVersion,
    step: int | None,
    plan: SparsePlan,
    bound: BoundRequest,
    row: int,
    values: list[FeatureValues],
) -> _RowReads:
    """Read the row as of a step, under the version's lock; raises Conflict for a step that is out of reach."""
    served, standing = version.change.generation.step, _standing(version, step)
    began_s = time.perf_counter()
    rows: list[Rows] = []
    origins: list[list[RowOrigin]] = []
    for v in values:
        if not v.feature.table:
            rows.append(np.empty((0, 0), np.float32))
            origins.append([])
            continue
        table = version.tables[v.feature.table]
        origins.append(row_origins(table, v.keys, standing.epoch))
        is_known, rows_found = table.look_up(v.keys, standing.epoch)
        whole = np.repeat(table.unknown_row(standing.epoch)[None], len(v.keys), 0)
        whole[is_known] = rows_found
        rows.append(whole)
    looked_s = time.perf_counter()
    run = GraphRun(version.manifest, plan).undivided
    inputs = run.spec.allocate_inputs(1)
    tables = _descriptors(version)
    counts = np.zeros((max(1, len(version.tables)), 2), np.int64)
    run.fill(BatchView(tables, standing.epoch, [bound], np.array([[row, 1]], np.int64), counts), inputs)
    filled_s = time.perf_counter()
    is_served = standing.generation.step == served
    return _RowReads(standing, is_served, inputs, rows, origins, looked_s - began_s, filled_s - looked_s)


def _standing(version: ServedVersion, step: int | None) -> PastState:
    standing = version.as_of(version.change.generation.step if step is None else step)
    if standing is None:
        raise Conflict(_out_of_reach(version, step or 0))
    return standing


def _descriptors(version: ServedVersion) -> NDArray[np.int64]:
    return descriptors([table.descriptor() for table in version.tables.values()])


def _out_of_reach(version: ServedVersion, step: int) -> str:
    position, manifest = version.position, version.manifest
    asked_for = Generation(manifest.version, step)
    if step > position.step:
        return f"generation {asked_for} is not served yet; the newest is {manifest.version}.{position.step}"
    oldest = min([*position.undoable, position.step])
    return (
        f"generation {asked_for} is not in the undo log, which goes back to {manifest.version}.{oldest}; a server "
        f"with a larger --undo-depth keeps more; `freshet evaluate --generation {asked_for}` scores a table with it"
    )


def _way(version: ServedVersion, bound: BoundRequest, row: int) -> ScoringPath:
    """Return how a row would be scored if its request came alone: in parts where a session would do so."""
    costs: dict[str, dict[int, float]] = {}
    for entry in version.manifest.executables:
        costs.setdefault(entry.subgraph, {}).setdefault(entry.bucket, entry.cost_us or float(entry.bucket))
    thresholds = version.replicas.user_split_thresholds
    if bound.user_split and sum(rows <= bound.rows for rows in thresholds) % 2:
        return ScoringPath(_covering(CostTable(costs[SCORE]).bucket_plan(bound.rows), row), parts=True)
    # Before the first worker has reported there are no measured costs.
    return ScoringPath(
        _covering(
            CostTable(version.replicas.cost or costs[undivided_name(version.manifest)]).bucket_plan(bound.rows), row
        )
    )


def _covering(bucket_plan: Sequence[int], row: int) -> int:
    ends = np.cumsum(bucket_plan)
    return bucket_plan[int(np.searchsorted(ends, row, side="right"))]


def listed_item(manifest: Manifest, item: int | str) -> Any:
    """Return what explains an item's place among the best; raises BadInput if the version ranks no items."""
    explained = ENGINE.get("explanations", "item")
    if explained is None:
        raise missing("item", "top_items")
    return explained(manifest, item)


def _told(version: ServedVersion, v: FeatureValues, n: int, read: _RowReads, vectors: bool) -> dict[str, Any]:
    f = v.feature
    fed = read.x[f.offset : f.offset + f.width]
    entry: dict[str, Any] = {"kind": f.kind, "side": f.side, "input": v.input}
    if v.numbers is not None:
        single = f.kind == "float"
        shown = fed if vectors or single else fed[:16]
        return entry | ({"value": v.numbers[0], "fed": shown[0]} if single else {"width": f.width, "fed": shown})
    entry |= {"table": f.table, "dim": version.manifest.table(f.table).dim, "combiner": f.combiner, "length": v.length}
    if v.codes > 1:
        entry["codes"] = v.codes
    entry["pooled_norm"] = _norm(fed)
    entry["ids"] = _ids(version, v, n, read, vectors)
    if vectors:
        entry["pooled"] = fed
    return entry


def _ids(version: ServedVersion, v: FeatureValues, n: int, read: _RowReads, vectors: bool) -> list[dict[str, Any]]:
    return [
        {"id": asked, "key": str(key), **_from(version, origin), "norm": _norm(row)}
        | ({"vector": row} if vectors else {})
        for asked, key, origin, row in zip(v.asked, v.keys.tolist(), read.origins[n], read.rows[n])
    ]


def _histories(
    version: ServedVersion,
    values: list[FeatureValues],
    read: _RowReads,
    outputs: Mapping[str, Rows],
    score: Callable[[Mapping[str, Rows]], Mapping[str, Rows]],
    row_s: float,
    vectors: bool,
) -> dict[str, Any]:
    """Return the newest events of each sequence, and how far the score falls without each, as JSON."""
    manifest, by_sequence = version.manifest, dict[str, Any]()
    at = len(manifest.features)
    for s in dense_sequences(manifest.sequences):
        columns, floats, events = {}, {}, 0
        for n, v in enumerate(values[at : at + len(s.columns)], at):
            if v.numbers is not None:
                floats[v.feature.name] = v.numbers
                continue
            ids, events = _ids(version, v, n, read, vectors), v.length
            columns[v.feature.name] = [ids[e * v.codes : (e + 1) * v.codes] for e in range(events)]
        at += len(s.columns)

        def rows_of(histories: Rows, name: str = s.name) -> Mapping[str, Rows]:
            others = {n: np.repeat(row, len(histories), 0) for n, row in read.inputs.items()}
            return score({**others, name: histories})

        effects = event_effects(s, read.inputs[s.name][0], events, outputs, rows_of, row_s)
        first = events - len(effects)
        lines = [
            {"place": place, "ids": {name: each[place] for name, each in columns.items()}, **effect}
            for place, effect in enumerate(effects, first)
        ]
        for line in lines if floats else ():
            line["floats"] = {name: each[line["place"]] for name, each in floats.items()}
        if s.time:
            seconds = read.inputs[s.name][0, s.width - s.max_length :]
            for line in lines:
                line["seconds_before_newest"] = seconds[line["place"]]
        by_sequence[s.name] = {"events": events, "left_out": first, "max_length": s.max_length, "newest": lines}
    return by_sequence


def _from(version: ServedVersion, origin: RowOrigin) -> dict[str, Any]:
    if origin.kind == FILE:
        snapshot = version.files.snapshot
        return {"found": "row", "from": "snapshot" if snapshot else "version", "step": snapshot.step if snapshot else 0}
    step = None if origin.epoch == UNKNOWN else version.stamped(origin.epoch)
    if origin.kind == DELTA:
        entry: dict[str, Any] = {"found": "row", "from": "delta", "step": step}
        return (
            entry if step is not None else entry | {"until": min([*version.position.undoable, version.position.step])}
        )
    if origin.kind == REMOVED:
        return {"found": "default", "why": "removed", "step": step}
    return {"found": "default", "why": "no row"}


def _norm(row: Rows) -> np.float32:
    return np.float32(np.linalg.norm(row))
