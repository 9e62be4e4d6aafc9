"""Import a SavedModel, a Keras or an ONNX file as a committed package (`freshet import`).

The package is verified against the model itself.

Verification: the package's tables, stage and dense graph, run by the code that serves them, must give what TensorFlow
gives on samples, and a row's outputs must not depend on other rows, since requests could not be batched otherwise.
Nodes that the backend does not support are moved to the stage, and nothing else; a cut that fails for another reason
falls back to the whole model in TensorFlow, which is verified the same way and reported; if that fails too, the model
is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.compiler.building.finite_check import NOT_JUDGED
from freshet_serving.compiler.building.packaging import publish
from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.cut import Cutter, GraphCut
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.draft import Draft, DraftBuilder
from freshet_serving.compiler.imports.duplicated_tables import duplicated_tables, notes_of
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import Feeds, FeedSpec, by_input, feeds_of, own_names_of, plain
from freshet_serving.compiler.imports.foreign import ForeignModel
from freshet_serving.compiler.imports.foreign_graph import Ref
from freshet_serving.compiler.imports.import_report import describe
from freshet_serving.compiler.imports.output_labels import LabelledOutput, labelled_output
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.compiler.imports.samples import make_samples
from freshet_serving.compiler.imports.shapes import SIZES, Shapes
from freshet_serving.compiler.imports.stage_sizes import check_stage_sizes
from freshet_serving.compiler.imports.tensorflow_stage import TensorFlowStage
from freshet_serving.compiler.imports.unsupported_ops import unsupported_ops
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.growth_meter import with_growth
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import (
    DEFAULT_SIGNATURE,
    INTEGERS,
    MAX_RANK,
    NAME,
    OUTPUT_DTYPES,
    STRING,
    Manifest,
    Output,
    ServingSignature,
    joined,
)
from freshet_serving.processor.repository import (
    Repository,
    VersionReader,
    VersionWriter,
)
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed

RUNTIME, STAGE_FILE = "tensorflow", "stage/graph.pb"
CLOSE = 1e-5
ONNX = "ONNX"
TAIL = 3
NUMBERS = "replies hold numbers, and strings that are gathered from constant ones"
UNDEFINED = "rows with empty lists are not compared: the model gives NaN for them, and replies have other numbers"
SINGLE = "one number for the whole batch: left out, because replies hold numbers for every row"
COMPUTED = "computed as float32, which is exact for integers up to 2**24"
EXACT = 1 << 24
MOVING = (
    "BroadcastTo",
    "ExpandDims",
    "GatherNd",
    "GatherV2",
    "Reshape",
    "Slice",
    "Squeeze",
    "StridedSlice",
    "Transpose",
)
"""Operations whose values are those of their first input."""


class Importer:
    """The importer of one opened and analysed model."""

    def __init__(
        self, source: ForeignModel, samples: Mapping[str, Any] | None = None, user: Sequence[str] = ()
    ) -> None:
        own_names, samples = own_names_of(source.inputs), by_input(samples, source.inputs)
        self.source, self._user, self._rows = source, frozenset(own_names.get(name, name) for name in user), True
        known = {fed.input.name for fed in source.inputs}
        for name in sorted(self._user - known):
            raise BadInput(f"user: expected one of the inputs {', '.join(sorted(known))[:200]}, got {name[:64]!r}")
        if source.kind == ONNX:
            check_stage_sizes(source.graph, source.outputs.values())
        self.runner = Runner(source)
        self.outputs, self.labels, self._notes = _outputs(source, self.runner)
        self._given = samples
        self._try_on(make_samples(self.runner, source.inputs, list(self.outputs.values()), SIZES, samples))

    def _try_on(self, samples: list[dict[str, Column]]) -> None:
        """Run the model on samples, and prepare to cut it by what it computes from them."""
        source, refs = self.source, list(self.outputs.values())
        self.samples = samples
        self.shapes = Shapes(self.runner, source.inputs, refs, samples)
        dtypes = {self.shapes.dtype(ref).base_dtype.name for ref in self.shapes.values[0]}
        self._precision = Precision.of("float16" if name == "half" else name for name in dtypes)
        self._check_rows()
        if source.reference_check is not None:
            self._notes += source.reference_check(self._samples_as_run())
        self._leave_single_out()
        self.cutter = Cutter(self.shapes, source.inputs, self.outputs, samples)

    def _leave_single_out(self) -> None:
        """Leave out outputs of one number for the whole batch, if there are others."""
        samples = self.shapes.values
        single = [n for n, ref in self.outputs.items() if all(ref in v and np.ndim(v[ref]) == 0 for v in samples)]
        for name in single if len(single) < len(self.outputs) else ():
            self._notes.append(f"output {name[:64]!r} is {SINGLE}")
            del self.outputs[name]

    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        """Cut, verify and commit the model.

        If that fails and the model gives NaN for generated samples, try again without empty lists.

        Args:
            repository: The model repository.
            writer: Writes the version.
            buckets: Batch sizes to compile for.
        """
        try:
            return self._cut_and_publish(repository, writer, buckets)
        except BadInput:
            if self._given is not None or not self._undefined():
                raise
        refs = list(self.outputs.values())
        self._try_on(make_samples(self.runner, self.source.inputs, refs, SIZES, empty_lists=False))
        self._notes.append(UNDEFINED)
        self._rows = True
        return self._cut_and_publish(repository, writer, buckets)

    def _undefined(self) -> bool:
        """Report whether the model gives NaN for a sample with an empty list."""
        return any(
            np.isnan(np.asarray(values[ref], np.float64)).any()
            for sample, values in zip(self.samples, self.shapes.values)
            for ref in self.outputs.values()
            if any(isinstance(column, Ragged) and not np.diff(column.row_splits).all() for column in sample.values())
        )

    def _cut_and_publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        """Cut, verify and commit the model as it computes the samples.

        If that fails, try again without the nodes that the backend does not support; if that fails too, with the whole
        model in TensorFlow.

        Args:
            repository: The model repository.
            writer: Writes the version.
            buckets: Batch sizes to compile for.
        """
        refused: dict[str, str] = {}
        while True:
            cut = self.cutter.cut(refused)
            try:
                return self._publish(cut, repository, writer, buckets, self._notes)
            except BadInput as error:
                found = unsupported_ops(cut, self.shapes)
                refused |= found
                if not found:
                    notes = [*self._notes, f"the whole model runs in TensorFlow: {error}"]
                    break
        cut = self.cutter.cut(whole=True)
        try:
            return self._publish(cut, repository, writer, buckets, notes)
        except BadInput as error:
            self._rows = False
            return self._publish(cut, repository, writer, buckets, [*notes, f"its rows are constants: {error}"])

    def analyse(self) -> dict[str, Any]:
        """Return the report of the import without compiling anything."""
        cut = self.cutter.cut()
        graph, draft = build_dense(cut, self.shapes, self.outputs), self.draft(cut)
        return self.report(cut, draft, graph, notes_of(self.copies(cut, draft, graph)))

    def draft(self, cut: GraphCut) -> Draft:
        draft = DraftBuilder(cut, self.shapes, self.runner, self.source.inputs, self.samples, self._rows).draft
        user = set(self._user)
        for transform in draft.transforms:
            user |= {transform.name} if user.issuperset(transform.inputs) else set()
        draft.features[:] = [replace(f, side="user") if f.input in user else f for f in draft.features]
        return draft

    def copies(self, cut: GraphCut, draft: Draft, graph: DenseGraph) -> dict[str, str]:
        return duplicated_tables(cut, draft, self.shapes, graph.weights)

    def report(self, cut: GraphCut, draft: Draft, graph: DenseGraph, notes: list[str]) -> dict[str, Any]:
        return describe(self.source, self.shapes, cut, draft, graph, notes)

    def manifest(
        self, model: str, version: int, cut: GraphCut, draft: Draft, graph: DenseGraph, notes: list[str]
    ) -> Manifest:
        """Return the manifest before anything is compiled.

        Args:
            model: Name of the model.
            version: Number of the version.
            cut: The cut.
            draft: The package drafted from the cut.
            graph: The dense graph.
            notes: Lines for the report.
        """
        copies = self.copies(cut, draft, graph)
        return Manifest(
            model=model,
            version=version,
            arch="imported",
            created_at=time.time(),
            inputs=draft.inputs,
            features=draft.features,
            tables=[spec for spec, _ in draft.tables.values()],
            outputs=self._declared(graph.outputs, cut),
            width=cut.width,
            dense={name: list(array.shape) for name, array in graph.weights.items()},
            files={},
            transforms=draft.transforms,
            stage=draft.stage.entry(RUNTIME, STAGE_FILE) if draft.stage else None,
            copies=copies,
            signatures=self._signatures(),
            own_names=own_names_of(self.source.inputs),
            notes={
                "import": self.report(cut, draft, graph, [*notes, *self._rounded(cut), *notes_of(copies)]),
                **NOT_JUDGED,
            },
        )

    def _rounded(self, cut: GraphCut) -> list[str]:
        """Return notes on the outputs of numbers that float32 does not hold."""
        exact = {port.ref for port in cut.ports if port.exact}
        types = {n: self.shapes.dtype(r) for n, r in self.outputs.items() if r not in exact and n not in self.labels}
        return [f"output {n[:64]!r} is {t.name}: {COMPUTED}" for n, t in types.items() if t != tf.float32]

    def _signatures(self) -> list[ServingSignature]:
        """Return the signatures with the outputs that the package has; none if the only one has them all by name."""
        found = []
        alone = [ServingSignature(DEFAULT_SIGNATURE, outputs={name: name for name in self.source.outputs})]
        for one in self.source.signatures or alone:
            outputs = {given: label_of(name) for given, name in one.outputs.items()}
            outputs = {given: label for given, label in outputs.items() if label in self.outputs}
            if outputs:
                found.append(replace(one, outputs=outputs))
        renamed = any(given != label for one in found for given, label in one.outputs.items())
        return found if len(found) > 1 or renamed else []

    def _declared(self, outputs: Sequence[Output], cut: GraphCut) -> list[Output]:
        """Return the outputs in the shape and type that the model itself gives them."""
        exact = {port.ref for port in cut.ports if port.exact}
        found = []
        for output in outputs:
            ref = self.outputs[output.name]
            each, dims = self.shapes.rows(ref) or (0, ())
            kept = each == 1 and dims != (output.columns,) and len(dims) < MAX_RANK
            if (labelled := self.labels.get(output.name)) is not None:
                output = replace(output, labels=labelled.labels, unknown=labelled.unknown)
                each, dims = 1, self._label_dims(output.name, labelled)
                kept = dims != (output.columns,) and len(dims) < MAX_RANK
            dtype = STRING if labelled else np.dtype(self.shapes.dtype(ref).as_numpy_dtype).name
            if ref in exact:
                shape = list(dims) if each == 1 and len(dims) < MAX_RANK else [self.shapes.size(ref)]
                flat = dims == (1,) and self._flat(ref)
                found.append(replace(output, dims=shape, dtype=dtype, flat=flat, exact=True))
                continue
            if labelled:
                found.append(replace(output, dims=list(dims) if kept else None, dtype=STRING))
                continue
            dtype = dtype if dtype in OUTPUT_DTYPES else output.dtype
            flat = dims == (1,) and self._flat(ref)
            found.append(replace(output, dims=list(dims) if kept else None, dtype=dtype, flat=flat))
        return found

    def _label_dims(self, name: str, labelled: LabelledOutput) -> tuple[int, ...]:
        """Return the shape of a row of strings; raises BadInput if they are not in the order of their positions."""
        feeds = feeds_of({fed.name: fed for fed in self.source.inputs}, self.samples[-1], SIZES[-1])
        (strings,) = self.runner.run([labelled.strings], feeds)
        if np.shape(strings)[:1] != (SIZES[-1],) or np.size(strings) != np.size(
            self.shapes.values[-1][labelled.positions]
        ):
            raise BadInput(f"output {name[:64]!r}: expected labels for every row, got shape {list(np.shape(strings))}")
        return tuple(np.shape(strings)[1:])

    def _flat(self, ref: Ref) -> bool:
        """Return whether inputs without their last dimension, of one column, give an output without it.

        TensorFlow Serving compares no input with its signature, so a model that computes each number by itself answers
        in the shape of the request.
        """
        by_name = {fed.name: fed for fed in self.source.inputs}
        feeds = feeds_of(by_name, self.samples[-1], SIZES[-1])
        if any(np.shape(array) != (SIZES[-1], 1) for array in feeds.values()):
            return False
        try:
            (got,) = self.runner.run([ref], {node: array.reshape(-1) for node, array in feeds.items()})
        except BadInput:
            return False
        return np.array_equal(np.asarray(got), np.reshape(self.shapes.values[-1][ref], -1), equal_nan=True)

    def _publish(
        self, cut: GraphCut, repository: Repository, writer: VersionWriter, buckets: Sequence[int], notes: list[str]
    ) -> VersionReader:
        self._check_constants(cut)
        draft = self.draft(cut)
        graph = build_dense(cut, self.shapes, self.outputs)
        tables = {name: packed(*rows) for name, (_, rows) in draft.tables.items()}
        stage = draft.stage.write() if draft.stage else b""
        manifest = self.manifest(writer.model, writer.version, cut, draft, graph, notes)
        graph = replace(graph, examples=self._prove(manifest, tables, stage, graph))
        manifest = with_growth(manifest, stage)
        return publish(repository, writer, manifest, tables.items(), graph, buckets, stage=stage)

    def _prove(self, manifest: Manifest, tables: Mapping[str, Any], stage: bytes, graph: DenseGraph) -> Tensors:
        """Verify the package; return the samples as the dense graph gets them.

        Raises:
            BadInput: The package gives something else than the model, or nothing.
        """
        spec = manifest.stage
        loaded = TensorFlowStage(stage, manifest.inputs, spec.outputs, spec.lookups) if spec else None
        plan = SparsePlan(manifest, loaded)
        served = [ServedTable(table, tables[table.name]) for table in manifest.tables]
        matrix = descriptors([table.descriptor() for table in served])
        run = GraphRun(manifest, plan).undivided
        exact = {o.name for o in manifest.outputs if o.exact}
        examples = []
        for sample, rows, values in zip(self.samples, SIZES, self.shapes.values):
            inputs = run.spec.allocate_inputs(rows)
            run.fill(BatchView.of(matrix, 0, plan.bind_inputs(sample)), inputs)
            examples.append(inputs)
            try:
                got = graph.run(inputs)
            except (tf.errors.OpError, ValueError, TypeError) as error:
                raise BadInput(f"graph: TensorFlow does not compute its dense part: {reason_of(error)}") from None
            for name, ref in self.outputs.items():
                if name in exact:
                    if not np.array_equal(
                        joined(got[name]), np.asarray(values[ref]).astype(np.int64).reshape(rows, -1)
                    ):
                        raise BadInput(f"output {name!r} differs from TensorFlow's")
                    continue
                wanted = np.asarray(values[ref], np.float32).reshape(rows, -1)
                if not self._precision.agree(got[name], wanted, CLOSE, CLOSE):
                    worst = float(np.nanmax(np.abs(got[name] - wanted)))
                    raise BadInput(f"output {name!r} differs by {worst:.3g} from TensorFlow's{self._precision.advice}")
        return {name: np.concatenate([inputs[name] for inputs in examples]) for name in graph.inputs}

    def _check_constants(self, cut: GraphCut) -> None:
        """Raise BadInput if the dense graph selects among constant whole numbers that float32 does not hold."""
        exact, dense = {port.ref for port in cut.ports if port.exact}, {node.name for node in cut.dense}
        for name, output in self.outputs.items():
            stack, seen = [output] if output not in exact else [], set()
            while stack:
                ref = stack.pop()
                if ref in seen or self.shapes.dtype(ref).name not in INTEGERS:
                    continue
                seen.add(ref)
                if ref[0] in self.shapes.constant:
                    values = np.asarray(self.runner.constant(ref))
                    if values.size and (values.max() > EXACT or values.min() < -EXACT):
                        raise BadInput(f"output {name[:64]!r} takes whole numbers above 2**24 from constants")
                elif ref[0] in dense:
                    node = self.runner.graph.nodes[ref[0]]
                    stack += node.inputs[:1] if node.op in MOVING else node.inputs

    def _samples_as_run(self) -> list[tuple[Feeds, Feeds]]:
        """Return for every sample the model's feeds and outputs."""
        fed = {f.name: f for f in self.source.inputs}
        return [
            (feeds_of(fed, sample, rows), {n: values[ref] for n, ref in self.source.outputs.items() if ref in values})
            for sample, rows, values in zip(self.samples, SIZES, self.shapes.values)
        ]

    def _check_rows(self) -> None:
        """Raise BadInput if outputs depend on other rows of a batch."""
        fed = {f.name: f for f in self.source.inputs}
        last = {name: _tail(column, fed[name], SIZES[-1]) for name, column in self.samples[-1].items()}
        refs = list(self.outputs.values())
        for (name, ref), got in zip(self.outputs.items(), self.runner.run(refs, feeds_of(fed, last, TAIL))):
            if self.shapes.rows(ref) is None:
                continue
            wanted = np.asarray(self.shapes.values[-1][ref], np.float32)
            alone = np.asarray(got, np.float32).reshape(TAIL, -1)
            if not self._precision.agree(alone, wanted.reshape(SIZES[-1], -1)[-TAIL:], 1e-4, CLOSE):
                raise BadInput(f"output {name!r} of a row depends on the other rows: such a model cannot be batched")


def _outputs(source: ForeignModel, runner: Runner) -> tuple[dict[str, Ref], dict[str, LabelledOutput], list[str]]:
    """Return the outputs that a package can have, under plain names; the labels of those of strings; notes."""
    found: dict[str, Ref] = {}
    labels: dict[str, LabelledOutput] = {}
    notes = [f"signature {name[:64]!r} is left out: it reads other inputs" for name in source.left_out]
    for name, ref in source.outputs.items():
        dtype, label = runner.tensor(ref).dtype, label_of(name)
        if label in found:
            raise BadInput(f"output {name[:64]!r}: another output is called {label!r} too: rename one of them")
        taken = labelled_output(runner, ref) if dtype == tf.string else None
        if taken is not None:
            found[label], labels[label] = taken.positions, taken
        elif not (dtype.is_floating or dtype.is_integer or dtype == tf.bool):
            notes.append(f"output {name[:64]!r} is {dtype.name}: left out, because {NUMBERS}")
        else:
            found[label] = ref
    if not found:
        raise BadInput(f"signature: expected at least one output of numbers or labels: {NUMBERS}")
    return found, labels, notes


def label_of(name: str) -> str:
    """Return the name that an output has in the package."""
    label = plain(name)
    return f"{label}_" if label == "x" or NAME.fullmatch(label) is None else label


def _tail(column: Column, fed: FeedSpec, rows: int) -> Column:
    """Return the last TAIL of `rows` rows."""
    if isinstance(column, Ragged):
        splits = column.row_splits[rows - TAIL :]
        first, last = int(splits[0]), int(splits[-1])
        values = column.values
        part: Any = Strings.of(values.tolist()[first:last]) if isinstance(values, Strings) else values[first:last]
        return Ragged(part, splits - first)
    if isinstance(column, Strings):
        each = len(column) // rows
        return Strings.of(column.tolist()[(rows - TAIL) * each :])
    return column[rows - TAIL :]
