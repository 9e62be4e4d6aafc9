"""Draft a package from a cut: inputs, features, tables and the outputs of the stage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.cut import CutTensor, GraphCut
from freshet_serving.compiler.imports.dense_side import weight_names
from freshet_serving.compiler.imports.derived_transforms import TransformDeriver
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.feeds import FeedSpec, plain
from freshet_serving.compiler.imports.foreign_graph import Ref
from freshet_serving.compiler.imports.package_draft import MAX_DIM, unused_name
from freshet_serving.compiler.imports.pooling import PooledLookup
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.compiler.imports.stage_graph import StageWriter
from freshet_serving.compiler.imports.stage_lookups import find_rows
from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import FLOATS, Feature, Input, StageLookup, TableEntry, Transform, weight_rows

MAX_SEEDS = 16

Rows = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(slots=True)
class Draft:
    """The draft of a package.

    Attributes:
        tables: By name, the entry, and its keys and rows.
        ports: The features that each port of the cut became.
        staged: By port whose columns or keys the stage computes, the reason.
    """

    inputs: list[Input]
    features: list[Feature] = field(default_factory=list)
    tables: dict[str, tuple[TableEntry, Rows]] = field(default_factory=dict)
    ports: list[list[Feature]] = field(default_factory=list)
    transforms: list[Transform] = field(default_factory=list)
    staged: dict[Ref, str] = field(default_factory=dict)
    stage: StageWriter | None = None


class DraftBuilder:
    def __init__(
        self,
        cut: GraphCut,
        shapes: Shapes,
        runner: Runner,
        inputs: Sequence[FeedSpec],
        samples: Sequence[Mapping[str, Column]],
        rows: bool = True,
    ) -> None:
        """Draft the package from a request for each batch size.

        `rows` tells whether the engine looks up the rows that a stage reads; else they are constants in it.
        """
        self._deriver = TransformDeriver(shapes, runner, inputs, samples)
        self._shapes, self._runner = shapes, runner
        self._inputs = {node: fed for fed in inputs for node in fed.nodes}
        self._variables = weight_names(runner.graph)
        self._stage = StageWriter(runner, inputs)
        self._draft = Draft([fed.input for fed in inputs])
        self._same: dict[tuple[Any, ...], str] = {}
        for port in cut.ports:
            before = len(self._draft.features)
            self._add(port)
            self._draft.ports.append(self._draft.features[before:])
        if self._stage.outputs:
            self._draft.stage = self._stage
            if rows:
                self._add_rows()
        read = [*(f.input for f in self._draft.features), *(row.spec.input for row in self._stage.rows)]
        self._draft.transforms = self._deriver.needed(read)

    @property
    def draft(self) -> Draft:
        return self._draft

    def _add(self, port: CutTensor) -> None:
        how = port.how
        if isinstance(how, Lookup):
            self._add_lookup(port, how)
        elif isinstance(how, PooledLookup):
            self._add_pool(port, how)
        else:
            columns = 0 if port.size == 1 else port.size
            if port.exact and (pieces := self._deriver.pieces(port.ref)):
                width = port.size // len(pieces)
                for number, name in enumerate(pieces):
                    column = 0 if width > 1 or self._deriver.is_matrix(name) else -1
                    self._feature(name, FLOATS, name, port.offset + number * width, width, column=column)
                return
            if how is None:
                name = "" if port.exact else self._deriver.floats(port.ref)
                name = name or self._staged(port, Input(self._new(port.ref), "float32", columns), port.ref)
            else:
                name, columns = how, self._inputs[f"input/{how}"].input.columns
            self._feature(name, FLOATS, name, port.offset, port.size, column=0 if columns else -1)

    def _add_lookup(self, port: CutTensor, lookup: Lookup) -> None:
        source, keys = lookup.source, self._shapes.size(lookup.source)
        kind = "string" if isinstance(lookup.keys, list) else "id"
        name, places = self._deriver.places(source)
        if not name:
            columns = 0 if keys == 1 else keys
            dtype = "string" if kind == "string" else "int64"
            name = self._staged(port, Input(self._new(source), dtype, columns), source)
            places = list(range(columns))
        table = self._table(lookup, name)
        for i, column in enumerate(places or [-1]):
            label = name if column < 0 else f"{name}.{column}"
            self._feature(label, kind, name, port.offset + i * lookup.dim, lookup.dim, column=column, table=table)

    def _add_pool(self, port: CutTensor, pool: PooledLookup) -> None:
        strings = self._shapes.dtype(pool.entries) == tf.string
        name = self._deriver.without(pool.input, pool.dropped) if pool.input else ""
        if not name:
            assert pool.segments is not None, "only the ids of segment operations are computed"
            spec = Input(self._new(pool.entries), "string" if strings else "int64", ragged=True)
            name = self._deriver.rows(pool.entries, pool.segments) or self._staged(
                port, spec, pool.entries, pool.segments
            )
        table = self._table(pool.lookup, name)
        kind = "strings" if strings else "ids"
        self._feature(name, kind, name, port.offset, port.size, table=table, combiner=pool.combiner)

    def _add_rows(self) -> None:
        if any(output.spec.dtype != "float32" for output in self._stage.outputs):
            # Its keys are needed before rows can be looked up (processor.package.stage_entries).
            return
        specs: dict[tuple[str, str, tuple[int, ...]], StageLookup] = {}
        for stage_rows in find_rows(self._shapes, self._deriver, self._stage.refs):
            source, columns = stage_rows.spec.input, stage_rows.spec.columns
            table = self._table(stage_rows.lookup, source)
            label = unused_name(plain(f"{table}.{source}"), {spec.name for spec in specs.values()})
            spec = specs.setdefault((table, source, tuple(columns)), StageLookup(label, source, table, columns))
            self._stage.rows.append(replace(stage_rows, spec=spec))
        self._add_weights({spec.name for spec in specs.values()})

    def _add_weights(self, labels: set[str]) -> None:
        """Have the engine hand over the weights that the stage reads, except those that are tables besides."""
        tabled = {variable for variable, *_ in self._same}
        for name in self._stage.constants:
            value = self._runner.constant((name, 0))
            shape = weight_rows(value.shape)
            if name in tabled or value.dtype != np.float32 or not 0 < shape[1] <= MAX_DIM:
                continue
            table = unused_name(plain(self._variables[name].replace("/", ".")), self._draft.tables)
            rows = np.ascontiguousarray(value).reshape(shape)
            self._draft.tables[table] = (
                TableEntry(table, rows.shape[1], len(rows)),
                (np.arange(len(rows), dtype=np.int64), rows),
            )
            label = unused_name(table, labels)
            labels.add(label)
            self._stage.weights[name] = StageLookup(label, "", table)

    def _staged(self, port: CutTensor, spec: Input, *refs: Ref) -> str:
        self._draft.staged[port.ref] = self._deriver.reasons.get(refs[0], "")
        return self._stage.add(spec, *refs)

    def _feature(
        self, label: str, kind: str, source: str, offset: int, width: int, column: int = -1, **more: Any
    ) -> None:
        names = {f.name for f in self._draft.features}
        self._draft.features.append(
            Feature(unused_name(label, names), kind, source, column=column, offset=offset, width=width, **more)
        )

    def _new(self, ref: Ref) -> str:
        taken = (
            {i.name for i in self._draft.inputs}
            | {t.name for t in self._deriver.transforms}
            | {o.spec.name for o in self._stage.outputs}
        )
        parts = [p for p in ref[0].split("/") if p and not p.startswith("StatefulPartitionedCall")]
        return unused_name(plain(".".join(["stage", *parts[-2:]])), taken)

    def _table(self, lookup: Lookup, source: str) -> str:
        strings = isinstance(lookup.keys, list)
        default = [float(v) for v in lookup.default] if lookup.default is not None and lookup.default.any() else []
        # Identify the rows by a digest: tables may be large.
        keys = repr(lookup.keys).encode() if isinstance(lookup.keys, list) else np.ascontiguousarray(lookup.keys).data
        digests = [hashlib.sha256(part).digest() for part in (keys, np.ascontiguousarray(lookup.rows).data)]
        same = (lookup.variable, *digests, tuple(default), lookup.default is None, strings)
        if same in self._same:
            return self._same[same]
        label = self._variables[lookup.variable].replace("/", ".") if lookup.variable else f"{source}.keys"
        name = unused_name(plain(label), self._draft.tables)
        ids, seed = _hashed(lookup.keys) if isinstance(lookup.keys, list) else (lookup.keys, 0)
        # A trained row of unknown keys is one that deltas can bring.
        unknown = _unused_key(ids) if lookup.variable and lookup.default is not None else None
        spec = TableEntry(name, lookup.dim, len(ids), default=default, hash_seed=seed, unknown_key=unknown)
        self._draft.tables[name] = (spec, (ids, lookup.rows))
        self._same[same] = name
        return name


def _hashed(keys: list[bytes]) -> tuple[NDArray[np.int64], int]:
    """Return the ids of strings, and the first hash seed under which they are distinct."""
    strings = Strings.of(keys)
    for seed in range(MAX_SEEDS):
        ids = hash_strings(strings, seed)
        if len(np.unique(ids)) == len(ids):
            return ids, seed
    raise BadInput("table: no hash seed tells its keys apart")


def _unused_key(ids: NDArray[np.int64]) -> int:
    key = int(np.iinfo(np.int64).min)
    while (ids == key).any():
        key += 1
    return key
