"""Import a SavedModel, a Keras or an ONNX file as a committed package (`freshet import`).

The package's tables, stage and dense graph, run by the code that serves them, must give what TensorFlow gives for the
model on samples, and a row's outputs must not depend on other rows, since requests could not be batched otherwise.
Nodes that the backend does not support are moved to the stage, and nothing else; a cut that fails for another reason
falls back to the whole model in TensorFlow, which is verified the same way and reported; if that fails too, the model
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.compiler.building.compile import AnyDenseGraph
from freshet_serving.compiler.building.packaging import publish
from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.cut import Cutter, GraphCut
from freshet_serving.compiler.imports.cut_report import describe
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.draft import Draft, DraftBuilder
from freshet_serving.compiler.imports.duplicated_tables import duplicated_tables, notes_of
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import Feeds, by_input, feeds_of, user_inputs
from freshet_serving.compiler.imports.foreign import ForeignModel
from freshet_serving.compiler.imports.foreign_graph import Ref
from freshet_serving.compiler.imports.ops import words
from freshet_serving.compiler.imports.output_labels import LabelledOutput, labelled_output
from freshet_serving.compiler.imports.package_draft import (
    COMPUTED,
    SINGLE,
    PackageDraft,
    declared_output,
    label_of,
    served_signatures,
)
from freshet_serving.compiler.imports.package_proof import TriedSample, check_rows_alone, prove
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.compiler.imports.sample_rows import TAIL, rows_of
from freshet_serving.compiler.imports.samples import make_samples
from freshet_serving.compiler.imports.shapes import SIZES, Shapes
from freshet_serving.compiler.imports.stage_sizes import check_stage_sizes
from freshet_serving.compiler.imports.two_vectors import hint, inputs_of, two_vectors
from freshet_serving.compiler.imports.unsupported_ops import unsupported_ops
from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.section import vector_ranking_note
from freshet_serving.processor.features.growth_meter import with_growth
from freshet_serving.processor.package import INTEGERS, Output, ServingSignature
from freshet_serving.processor.repository import Repository, VersionReader, VersionWriter
from freshet_serving.processor.tables.table import packed

RUNTIME, STAGE_FILE = "tensorflow", "stage/graph.pb"
ONNX = "ONNX"
NUMBERS = "replies hold numbers, and strings that are gathered from constant ones"
UNDEFINED = "rows with empty lists are not compared: the model gives NaN for them, and replies have other numbers"
EXACT = 1 << 24
MOVING = words("BroadcastTo ExpandDims GatherNd GatherV2 Reshape Slice Squeeze StridedSlice Transpose")
"""Operations whose values are those of their first input."""


class Importer:
    """The importer of one opened and analysed model, as a TriedModel."""

    whose = "TensorFlow's"

    def __init__(
        self, source: ForeignModel, samples: Mapping[str, Any] | None = None, user: Sequence[str] = ()
    ) -> None:
        samples = by_input(samples, source.inputs)
        self.source, self._user, self._rows = source, user_inputs(user, source.inputs), True
        if source.kind == ONNX:
            check_stage_sizes(source.graph, source.outputs.values())
        self.runner = Runner(source)
        self.outputs, self.labels, self._notes = _outputs(source, self.runner)
        self._given = samples
        self._try_on(make_samples(self.runner, source.inputs, list(self.outputs.values()), samples))

    def _try_on(self, samples: list[dict[str, Column]]) -> None:
        """Run the model on samples, and prepare to cut it by what it computes from them."""
        source, refs = self.source, list(self.outputs.values())
        self.samples = samples
        self.shapes = Shapes(self.runner, source.inputs, refs, samples)
        dtypes = {self.shapes.dtype(ref).base_dtype.name for ref in self.shapes.values[0]}
        self.precision = Precision.of("float16" if name == "half" else name for name in dtypes)
        self._check_rows()
        if source.reference_check is not None:
            self._notes += source.reference_check(self._samples_as_run())
        self._leave_single_out()
        self.cutter = Cutter(self.shapes, source.inputs, self.outputs, samples)

    def _leave_single_out(self) -> None:
        samples = self.shapes.values
        single = [n for n, ref in self.outputs.items() if all(ref in v and np.ndim(v[ref]) == 0 for v in samples)]
        for name in single if len(single) < len(self.outputs) else ():
            self._notes.append(f"output {name[:64]!r} is {SINGLE}")
            del self.outputs[name]

    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        """Cut, verify and commit the model; if that fails and it gives NaN for samples, again without empty lists."""
        try:
            return self._cut_and_publish(repository, writer, buckets)
        except BadInput:
            if self._given is not None or not self._undefined():
                raise
        refs = list(self.outputs.values())
        self._try_on(make_samples(self.runner, self.source.inputs, refs, empty_lists=False))
        self._notes.append(UNDEFINED)
        self._rows = True
        return self._cut_and_publish(repository, writer, buckets)

    def _undefined(self) -> bool:
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
        """
        refused: dict[str, str] = {}
        while True:
            cut = self.cutter.cut(refused)
            try:
                return self._publish(cut, repository, writer, buckets, self._notes)
            except BadInput as error:
                unsupported = unsupported_ops(cut, self.shapes)
                refused |= unsupported
                if not unsupported:
                    notes = [*self._notes, f"the whole model runs in TensorFlow: {error}"]
                    break
        cut = self.cutter.cut(whole=True)
        try:
            return self._publish(cut, repository, writer, buckets, notes)
        except BadInput as error:
            self._rows = False
            return self._publish(cut, repository, writer, buckets, [*notes, f"its rows are constants: {error}"])

    def analyse(self) -> dict[str, Any]:
        cut = self.cutter.cut()
        graph, draft = build_dense(cut, self.shapes, self.outputs), self.draft(cut)
        copies = duplicated_tables(cut, draft, self.shapes, graph.weights)
        return describe(self.source, self.shapes, cut, draft, graph, notes_of(copies))

    def draft(self, cut: GraphCut) -> Draft:
        draft = DraftBuilder(cut, self.shapes, self.runner, self.source.inputs, self.samples, self._rows).draft
        user = set(self._user)
        vectors = two_vectors(inputs_of(self.source.graph, self.outputs, self.source.inputs), user)
        item = set(vectors.inputs) if vectors is not None else set()
        for transform in draft.transforms:
            for side in (user, item):
                side |= {transform.name} if side.issuperset(transform.inputs) else set()
        sides = {**dict.fromkeys(item, "item"), **dict.fromkeys(user, "user")}
        draft.features[:] = [replace(f, side=sides.get(f.input, f.side)) for f in draft.features]
        return draft

    def ranking(self, outputs: Sequence[Output]) -> tuple[dict[str, Any], list[str]]:
        """Return the notes of a version that ranks items by vectors, and lines for the report."""
        read = inputs_of(self.source.graph, self.outputs, self.source.inputs)
        if len({output.columns for output in outputs}) != 1 or len(outputs) != 2 or outputs[0].columns == 1:
            return {}, []
        vectors = two_vectors(read, self._user)
        if vectors is None:
            return {}, [line] if (line := hint(read)) else []
        return vector_ranking_note(vectors.user, vectors.item), [vectors.line]

    def package(self, cut: GraphCut, notes: Sequence[str]) -> PackageDraft[DenseGraph]:
        draft, graph = self.draft(cut), build_dense(cut, self.shapes, self.outputs)
        copies = duplicated_tables(cut, draft, self.shapes, graph.weights)
        ranking, ranked = self.ranking(graph.outputs)
        lines = [*notes, *ranked, *self._rounded(cut), *notes_of(copies)]
        return PackageDraft(
            inputs=self.source.inputs,
            features=draft.features,
            tables={name: (entry, packed(*rows)) for name, (entry, rows) in draft.tables.items()},
            outputs=self._declared(graph.outputs, cut),
            graph=graph,
            width=cut.width,
            report=describe(self.source, self.shapes, cut, draft, graph, lines),
            transforms=draft.transforms,
            stage=draft.stage.entry(RUNTIME, STAGE_FILE) if draft.stage else None,
            stage_data=draft.stage.write() if draft.stage else b"",
            signatures=self.signatures(),
            copies=copies,
            ranking=ranking,
        )

    def _rounded(self, cut: GraphCut) -> list[str]:
        exact = {port.ref for port in cut.ports if port.exact}
        types = {n: self.shapes.dtype(r) for n, r in self.outputs.items() if r not in exact and n not in self.labels}
        return [f"output {n[:64]!r} is {t.name}: {COMPUTED}" for n, t in types.items() if t != tf.float32]

    def signatures(self) -> list[ServingSignature]:
        labels = {name: label for name in self.source.outputs if (label := label_of(name)) in self.outputs}
        return served_signatures(labels, self.source.signatures)

    def _declared(self, outputs: Sequence[Output], cut: GraphCut) -> list[Output]:
        pieced = {port.ref for port in cut.ports if port.exact}
        declared = []
        for output in outputs:
            ref, labelled = self.outputs[output.name], self.labels.get(output.name)
            exact = self.shapes.size(ref) if ref in pieced else 0
            each, dims = self.shapes.rows(ref) or (0, ())
            if labelled is not None:
                each, dims = 1, self._label_dims(output.name, labelled)
            flat = (exact > 0 or labelled is None) and dims == (1,) and self._flat(ref)
            dtype = np.dtype(self.shapes.dtype(ref).as_numpy_dtype).name
            labels, unknown = (labelled.labels, labelled.unknown) if labelled else (None, "")
            declared.append(declared_output(output, dims if each == 1 else None, dtype, exact, labels, unknown, flat))
        return declared

    def _label_dims(self, name: str, labelled: LabelledOutput) -> tuple[int, ...]:
        """Return the shape of a row of strings; raise BadInput if they are not in the order of their positions."""
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
            (result,) = self.runner.run([ref], {node: array.reshape(-1) for node, array in feeds.items()})
        except BadInput:
            return False
        return np.array_equal(np.asarray(result), np.reshape(self.shapes.values[-1][ref], -1), equal_nan=True)

    def _publish(
        self, cut: GraphCut, repository: Repository, writer: VersionWriter, buckets: Sequence[int], notes: list[str]
    ) -> VersionReader:
        self._check_constants(cut)
        draft = self.package(cut, notes)
        manifest = draft.manifest(writer.model, writer.version)
        graph = replace(draft.graph, examples=prove(self, draft, manifest))
        tables = ((name, arrays) for name, (_, arrays) in draft.tables.items())
        manifest = with_growth(manifest, draft.stage_data)
        return publish(repository, writer, manifest, tables, graph, buckets, stage=draft.stage_data)

    def tried(self) -> Iterator[TriedSample]:
        for sample, rows, values in zip(self.samples, SIZES, self.shapes.values):
            yield TriedSample(sample, rows, {name: values[ref] for name, ref in self.outputs.items()})

    def computed(self, graph: AnyDenseGraph, inputs: Tensors) -> Tensors:
        try:
            return graph.run(inputs)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise BadInput(f"graph: TensorFlow does not compute its dense part: {reason_of(error)}") from None

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
        fed = {f.name: f for f in self.source.inputs}
        return [
            (feeds_of(fed, sample, rows), {n: values[ref] for n, ref in self.source.outputs.items() if ref in values})
            for sample, rows, values in zip(self.samples, SIZES, self.shapes.values)
        ]

    def _check_rows(self) -> None:
        rows = SIZES[-1]
        last = {name: rows_of(column, np.arange(rows)[-TAIL:], rows) for name, column in self.samples[-1].items()}
        refs = {name: ref for name, ref in self.outputs.items() if self.shapes.rows(ref) is not None}
        feeds = feeds_of({fed.name: fed for fed in self.source.inputs}, last, TAIL)
        alone = dict(zip(self.outputs, self.runner.run(list(self.outputs.values()), feeds)))
        check_rows_alone(
            self.precision,
            {name: np.asarray(alone[name], np.float32).reshape(TAIL, -1) for name in refs},
            {
                name: np.asarray(self.shapes.values[-1][ref], np.float32).reshape(rows, -1)[-TAIL:]
                for name, ref in refs.items()
            },
        )


def _outputs(source: ForeignModel, runner: Runner) -> tuple[dict[str, Ref], dict[str, LabelledOutput], list[str]]:
    """Return the outputs that a package can have, under plain names; the labels of those of strings; notes."""
    refs: dict[str, Ref] = {}
    labels: dict[str, LabelledOutput] = {}
    notes = [f"signature {name[:64]!r} is left out: it reads other inputs" for name in source.left_out]
    for name, ref in source.outputs.items():
        dtype, label = runner.tensor(ref).dtype, label_of(name)
        if label in refs:
            raise BadInput(f"output {name[:64]!r}: another output is called {label!r} too: rename one of them")
        labelled = labelled_output(runner, ref) if dtype == tf.string else None
        if labelled is not None:
            refs[label], labels[label] = labelled.positions, labelled
        elif not (dtype.is_floating or dtype.is_integer or dtype == tf.bool):
            notes.append(f"output {name[:64]!r} is {dtype.name}: left out, because {NUMBERS}")
        else:
            refs[label] = ref
    if not refs:
        raise BadInput(f"signature: expected at least one output of numbers or labels: {NUMBERS}")
    return refs, labels, notes
