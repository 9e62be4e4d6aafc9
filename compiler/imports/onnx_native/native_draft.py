"""Draft the package of an ONNX file that ONNX Runtime computes: as one dense graph behind lookups, or as a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.boundary import BoundaryTensor, sender
from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.compiler.imports.import_report import described_pair, import_report
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel
from freshet_serving.compiler.imports.onnx_native.native_samples import Outputs
from freshet_serving.compiler.imports.onnx_native.onnx_stage import RUNTIME, STAGE_FILE
from freshet_serving.compiler.imports.onnx_native.served_graph import MatrixSlot, output_labels, package_name, rewrite
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup
from freshet_serving.compiler.imports.onnx_native.staged_graph import passing_model, stage_model
from freshet_serving.compiler.imports.onnx_native.staged_lookups import StagedLookup, rows_names
from freshet_serving.compiler.imports.onnx_native.staged_weights import staged_weights
from freshet_serving.compiler.imports.onnx_native.whole_outputs import exact_outputs
from freshet_serving.compiler.imports.package_draft import (
    COMPUTED,
    Arrays,
    PackageDraft,
    declared_output,
    pieces_of,
    served_signatures,
    unused_name,
)
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import (
    DEFAULT_SIGNATURE,
    FLOATS,
    PIECES,
    Feature,
    Input,
    Output,
    StageEntry,
    StageLookup,
    TableEntry,
    Transform,
)
from freshet_serving.processor.tables.table import packed

KIND = "ONNX"
TYPES = {"float": "float32", "double": "float64"}


class NativeDraftBuilder:
    def __init__(
        self,
        model: NativeModel,
        feeds: Mapping[str, FeedSpec],
        outputs: Outputs,
        user: Collection[str],
        notes: Sequence[str],
    ) -> None:
        self._model, self._feeds, self._user, self._notes = model, feeds, user, notes
        self._inputs = list(feeds.values())
        self._dims = {name: array.shape[1:] for name, array in outputs.items()}
        self._sizes = {name: int(array[0].size) for name, array in outputs.items()}
        self._labels = output_labels(self._sizes)
        self._exact, _ = exact_outputs(model)
        taken = {fed.name for fed in self._inputs}
        self._converted: dict[str, str] = {}
        for fed in self._inputs:
            if fed.input.dtype == "int64":
                self._converted[fed.name] = unused_name(f"{fed.name[:112]}.float32", taken)
                taken.add(self._converted[fed.name])
        self._key_transforms: list[Transform] = []

    def dense(self, lookups: Sequence[ServedLookup]) -> PackageDraft[OnnxDenseGraph]:
        """Return the package of a graph that computes rows of a fixed size; the engine does the lookups."""
        served = rewrite(self._model, lookups, self._sizes)
        tables = self._tables((slot.lookups[0].table for slot in served.slots if slot.lookups), served.weights)
        features: list[Feature] = []
        boundary = []
        for slot in served.slots:
            before = len(features)
            for feature, source in self._features(slot):
                features.append(self._sided(feature, source, features))
            boundary.append(_pair(slot, features[before:]))
        read = {feature.input for feature in features}
        transforms = [Transform(n, "float32", [source]) for source, n in self._converted.items() if n in read]
        whole = [s.given for s in served.slots if s.given is not None and not s.exact and s.given.dtype.kind in "iu"]
        report = import_report(
            KIND,
            DEFAULT_SIGNATURE,
            [*self._notes, *(f"input {fed.name[:64]!r} is {fed.dtype.name}: {COMPUTED}" for fed in whole)],
            _sides(served.operators, [], sum(len(slot.lookups) for slot in served.slots)),
            boundary,
            served.weights.values(),
            _rows(tables),
            flops=sum(2 * int(w.size) for w in served.weights.values() if w.ndim == 2),
        )
        outputs = [self._output(served.names[label]) for label in sorted(served.columns)]
        graph = OnnxDenseGraph(served.model, served.width, _columns(outputs), served.weights, {})
        return PackageDraft(
            inputs=self._inputs,
            features=features,
            tables=tables,
            outputs=outputs,
            graph=graph,
            width=served.width,
            report=report,
            transforms=transforms + self._key_transforms,
            signatures=served_signatures(self._labels),
        )

    def staged(self, lookups: Sequence[StagedLookup]) -> PackageDraft[OnnxDenseGraph]:
        """Return the package of a graph that is a stage as a whole; the engine does the lookups."""
        specs: list[Input] = []
        features: list[Feature] = []
        boundary = []
        width, taken = 0, {fed.name for fed in self._inputs}
        names = sorted(self._labels, key=self._labels.__getitem__)
        for name in names:
            label = self._labels[name]
            columns = self._sizes[name] * (PIECES if name in self._exact else 1)
            spec = Input(unused_name(f"stage.{label}"[:120], taken), "float32", 0 if columns == 1 else columns)
            taken.add(spec.name)
            specs.append(spec)
            column = 0 if spec.columns else -1
            features.append(Feature(spec.name, FLOATS, spec.name, column, offset=width, width=columns))
            pair = BoundaryTensor(
                label, "float32", (columns,), (width, width + columns), sender(features[-1], staged=True)
            )
            boundary.append(described_pair(pair, "Stage", features[-1:]))
            width += columns
        rows = rows_names(lookups)
        weights, constants, merged = staged_weights(self._model, {item.table for item in lookups})
        stage = stage_model(
            self._model,
            {name: fed.name for name, fed in self._feeds.items()},
            {name: spec.name for name, spec in zip(names, specs)},
            lookups,
            rows,
            {name: self._sizes[name] for name in self._exact},
            weights,
        )
        tables = self._tables((table for table, _ in rows), ())
        tables |= {item.name: _table(item.name, item.rows) for item in weights}
        read = [
            StageLookup(label, fed.name, package_name(table), list(range(fed.input.columns)))
            for (table, input_name), label in rows.items()
            for fed in [self._feeds[input_name]]
        ]
        read += [StageLookup(item.name, "", item.name) for item in weights]
        outputs = [self._output(name) for name in names]
        operators = [node.op_type for node in self._model.proto.graph.node]
        sides = _sides([], operators, len(lookups))
        passing = passing_model({output.name: output.columns for output in outputs})
        return PackageDraft(
            inputs=self._inputs,
            features=features,
            tables=tables,
            outputs=outputs,
            graph=OnnxDenseGraph(passing, width, _columns(outputs), {}, {}),
            width=width,
            report=import_report(
                KIND,
                DEFAULT_SIGNATURE,
                self._notes,
                sides,
                boundary,
                (),
                _rows(tables),
                constants=constants,
                merged=merged,
            ),
            stage=StageEntry(RUNTIME, STAGE_FILE, specs, read),
            stage_data=stage,
            signatures=served_signatures(self._labels),
        )

    def _tables(self, read: Iterable[str], weights: Collection[str]) -> dict[str, tuple[TableEntry, Arrays]]:
        tables: dict[str, tuple[TableEntry, Arrays]] = {}
        names: dict[str, str] = {}
        for table in read:
            name = package_name(table)
            if name in weights or names.setdefault(name, table) != table:
                raise BadInput(f"initialiser {table[:64]!r}: another name differs only in case or punctuation")
            if name not in tables:
                tables[name] = _table(name, self._model.weights[table])
        return tables

    def _features(self, slot: MatrixSlot) -> Iterable[tuple[Feature, str]]:
        if slot.given is not None:
            fed = self._feeds[slot.given.name]
            column = 0 if fed.input.columns else -1
            if not slot.exact:
                source = self._converted.get(fed.name, fed.name)
                yield Feature(fed.name, FLOATS, source, column, offset=slot.offset, width=slot.width), fed.name
                return
            width = slot.width // PIECES
            for number, piece in enumerate(pieces_of(fed.name, self._key_transform)):
                yield Feature(piece, FLOATS, piece, column, offset=slot.offset + number * width, width=width), fed.name
            return
        lookup = slot.lookups[0]
        table, dim, keys = package_name(lookup.table), lookup.dims[-1], self._key_columns(lookup)
        for number, (name, column) in enumerate(lookup.columns):
            fed, offset = self._feeds[name], slot.offset + number * dim
            if lookup.combiner:
                combined = Feature(
                    fed.name, "ids", fed.name, table=table, combiner=lookup.combiner, offset=offset, width=dim
                )
                yield combined, fed.name
                return
            column = column if fed.input.columns else -1
            label = fed.name if column < 0 else f"{fed.name}.{column}"
            yield Feature(label, "id", keys[name], column, table=table, offset=offset, width=dim), fed.name

    def _key_columns(self, lookup: ServedLookup) -> dict[str, str]:
        """Return the input or transform that has a lookup's keys, by the file's name of the input.

        Ids that come as floats, and those to which the file adds something, are transforms.
        """
        keys = {}
        for name in dict.fromkeys(name for name, _ in lookup.columns):
            fed = self._feeds[name]
            key = fed.name
            if fed.input.dtype == "float32":
                key = self._key_transform("whole", key, [64])
            added = [0] * (fed.input.columns or 1)
            for (source, column), more in zip(lookup.columns, lookup.added):
                if source == name:
                    added[column] = more
            keys[name] = self._key_transform("add", key, added) if any(added) else key
        return keys

    def _key_transform(self, op: str, source: str, integers: Sequence[int] = ()) -> str:
        for transform in self._key_transforms:
            if (transform.op, transform.inputs, transform.integers) == (op, [source], [*integers]):
                return transform.name
        taken = {fed.name for fed in self._inputs} | set(self._converted.values())
        taken |= {transform.name for transform in self._key_transforms}
        label = unused_name(f"{source[:112]}.{op}", taken)
        self._key_transforms.append(Transform(label, op, [source], [*integers]))
        return label

    def _sided(self, feature: Feature, source: str, before: Sequence[Feature]) -> Feature:
        """Return a feature under a name of its own, on the user's side if its input is the user's."""
        label = unused_name(feature.name[:120], {f.name for f in before})
        return replace(feature, name=label, side="user" if source in self._user else feature.side)

    def _output(self, name: str) -> Output:
        size, labels = self._sizes[name], self._model.labels.get(name)
        exact = size if name in self._exact and labels is None else 0
        dtype = TYPES.get(self._model.outputs[name], self._model.outputs[name])
        output = Output(self._labels[name], size * (PIECES if exact else 1))
        return declared_output(output, self._dims[name], dtype, exact, labels)


def _table(name: str, rows: Matrix) -> tuple[TableEntry, Arrays]:
    return TableEntry(name, rows.shape[1], len(rows)), packed(np.arange(len(rows), dtype=np.int64), rows)


def _rows(tables: Mapping[str, tuple[TableEntry, Arrays]]) -> list[Any]:
    return [arrays["rows"] for _, arrays in tables.values()]


def _columns(outputs: Sequence[Output]) -> list[Output]:
    return [Output(output.name, output.columns) for output in outputs]


def _sides(dense: Sequence[str], stage: Sequence[str], lookups: int) -> dict[str, dict[str, int]]:
    sides = {name: dict(Counter(ops).most_common()) for name, ops in (("dense", dense), ("stage", stage))}
    return {**sides, "tables": {"Gather": lookups} if lookups else {}}


def _pair(slot: MatrixSlot, features: Sequence[Feature]) -> dict[str, Any]:
    columns, origin = (slot.offset, slot.offset + slot.width), sender(features[0], staged=False)
    if slot.given is not None:
        dims = tuple(n or 1 for n in slot.given.dims[1:])
        pair = BoundaryTensor(slot.given.name, slot.given.dtype.name, dims, columns, origin)
        return described_pair(pair, "Input", features[:1])
    lookup = slot.lookups[0]
    pair = BoundaryTensor(lookup.output, "float32", lookup.dims, columns, origin)
    return described_pair(pair, "EmbeddingBag" if lookup.combiner else "Gather", features)
