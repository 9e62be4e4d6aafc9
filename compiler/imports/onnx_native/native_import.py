"""Import an ONNX file that ONNX Runtime computes as it is: lookups are cut out, the rest is one dense graph.

What the package's tables and dense graph give must be what ONNX Runtime gives for the file, and a row's outputs must
not depend on other rows (package_proof). TensorFlow is not imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.backends import native_onnx
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.compile import AnyDenseGraph, build, checked_buckets, source_hash
from freshet_serving.compiler.building.package_files import write_files
from freshet_serving.compiler.dense.onnx_dense_graph import BACKEND, OnnxDenseGraph, Tensors
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import PADDED, by_input, user_inputs
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node, types_held
from freshet_serving.compiler.imports.onnx_native.native_draft import NativeDraftBuilder
from freshet_serving.compiler.imports.onnx_native.native_feeds import MAX_COLUMNS, feeds_by_name
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.native_samples import SIZES, NativeSamples
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup, constant_embedding, find_lookups
from freshet_serving.compiler.imports.onnx_native.single_rows import with_single_rows
from freshet_serving.compiler.imports.onnx_native.staged_lookups import StagedLookup, find_staged_lookups
from freshet_serving.compiler.imports.onnx_native.whole_outputs import exact_outputs
from freshet_serving.compiler.imports.package_draft import COMPUTED, SINGLE, PackageDraft, label_of
from freshet_serving.compiler.imports.package_proof import TriedSample, check_rows_alone, prove
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.compiler.imports.sample_rows import TAIL, rows_of
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.growth_meter import with_growth
from freshet_serving.processor.package import INTEGERS, ExecutableEntry
from freshet_serving.processor.repository import Repository, VersionReader, VersionWriter


class NativeImporter:
    """The importer of one file, as a TriedModel."""

    whose = "ONNX Runtime's for the file itself"

    def __init__(
        self, path: Path, why: str, samples: Mapping[str, Any] | None = None, user: Sequence[str] = ()
    ) -> None:
        """Read the file, find its lookups and try it on samples; raise BadInput or TooLarge if it is refused.

        `why` says for the report why it is not translated; "" if it need not be.
        """
        self._model = read_native(path)
        self._feeds = feeds_by_name(self._model)
        self.precision = Precision.of(types_held(self._model.proto.graph))
        inputs = list(self._feeds.values())
        for name, count in Counter(fed.name for fed in inputs).items():
            if count > 1:
                same = ", ".join(repr(label[:64]) for label, fed in self._feeds.items() if fed.name == name)
                raise BadInput(f"signature: expected inputs whose names differ in letters and digits, got {same}")
        self._user = user_inputs(user, inputs)
        self.notes = [f"ONNX Runtime computes the graph as it is{why and f': {why}'}", *self._model.notes]
        self.shortfall = ""
        """What a package of a translation has and this one has not; "" for nothing."""
        if user:
            self.notes.append("user-once: ONNX Runtime computes the user's part with every candidate")
            self.shortfall = "natively the user's part is computed with every candidate"
        staged = [fed.name for fed in inputs if fed.kind == PADDED or fed.dtype.hasobject]
        if staged and self._model.offsets:
            raise BadInput(f"input {staged[0]!r}: expected a fixed size of each row beside bags of ids and offsets")
        self._staged = bool(staged)
        self._lookups: list[ServedLookup] = []
        self._staged_lookups: list[StagedLookup] = []
        if staged:
            names = ", ".join(staged)[:120]
            self.notes.append(f"stage: a request at a time: strings or rows of any length in {names}")
            self._staged_lookups, constants = find_staged_lookups(self._model)
            self.notes += constants
            self.shortfall = f"natively it is computed a request at a time: strings or rows of any length in {names}"
        else:
            self._lookups = find_lookups(self._model)
            if constant := constant_embedding(self._model, self._lookups):
                self.shortfall = f"natively embedding {constant[:64]!r} takes no deltas of rows"
        lookups = self._staged_lookups or self._lookups
        self._samples = NativeSamples(self._model, self._feeds, lookups, by_input(samples, inputs))
        self._check_outputs()
        self._check_rows()

    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        draft = self.draft()
        manifest = draft.manifest(writer.model, writer.version)
        if draft.stage is not None:
            draft = replace(draft, stage_data=with_single_rows(manifest, draft.stage_data))
        graph = replace(draft.graph, examples=prove(self, draft, manifest))
        manifest = with_growth(manifest, draft.stage_data)
        executables = compiled(graph, writer.folder, buckets)
        tables = ((name, arrays) for name, (_, arrays) in draft.tables.items())
        write_files(repository, writer, manifest, tables, graph, draft.stage_data)
        manifest = replace(manifest, executables=executables, notes={**manifest.notes, "passes": []})
        return VersionReader(writer.commit(manifest), storage=writer.storage, keyring=writer.keyring)

    def analyse(self) -> dict[str, Any]:
        return self.draft().report

    def draft(self) -> PackageDraft[OnnxDenseGraph]:
        outputs = self._samples.outputs[0]
        builder = NativeDraftBuilder(self._model, self._feeds, outputs, self._user, self.notes)
        return builder.staged(self._staged_lookups) if self._staged else builder.dense(self._lookups)

    def tried(self) -> Iterator[TriedSample]:
        for sample, rows, outputs in zip(self._samples.columns, SIZES, self._samples.outputs):
            by_label = {label_of(name): array for name, array in outputs.items()}
            yield TriedSample(sample, rows, dict(sorted(by_label.items())))

    def computed(self, graph: AnyDenseGraph, inputs: Tensors) -> Tensors:
        return graph.run(inputs)

    def _check_outputs(self) -> None:
        ranks = {name: max(outputs[name].ndim for outputs in self._samples.outputs) for name in self._model.outputs}
        for name in [name for name, rank in ranks.items() if not rank and any(ranks.values())]:
            self.notes.append(f"output {name[:64]!r} is {SINGLE}")
            del self._model.outputs[name]
            for outputs in self._samples.outputs:
                del outputs[name]
        for name in list(self._model.outputs):
            shapes = [outputs[name].shape for outputs in self._samples.outputs]
            for shape, rows in zip(shapes, SIZES):
                if (
                    not shape
                    or shape[0] != rows
                    or shape[1:] != shapes[0][1:]
                    or not 0 < np.prod(shape) <= rows * MAX_COLUMNS
                ):
                    raise BadInput(
                        f"output {name[:64]!r}: expected {rows} rows for {rows} rows of inputs, each of the same size, "
                        f"got shape {list(shape)}"
                    )
        exact, _ = exact_outputs(self._model)
        kinds = {"float16", *INTEGERS}
        numbers = {n: k for n, k in self._model.outputs.items() if n not in self._model.labels and n not in exact}
        self.notes += [f"output {n[:64]!r} is {k}: {COMPUTED}" for n, k in numbers.items() if k in kinds]

    def _check_rows(self) -> None:
        """Raise BadInput if outputs depend on other rows of a batch: on which they are, or in which order."""
        columns, together = self._samples.columns[0], self._samples.outputs[0]
        shuffled = np.random.default_rng(SIZES[0]).permutation(SIZES[0])
        for rows in (np.arange(SIZES[0])[-TAIL:], shuffled, shuffled[:1]):
            part = {n: rows_of(column, rows, SIZES[0]) for n, column in columns.items()}
            try:
                alone = self._samples.run(part, len(rows))
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(
                    f"graph: expected one that runs for any number of rows, got one that fails for {len(rows)} of the "
                    f"{SIZES[0]} it ran for; export it with a free first dimension: {reason_of(error)}"
                ) from None
            among = {name: together[name][rows] for name in alone}
            check_rows_alone(self.precision, alone, among, self._quantised())

    def _quantised(self) -> str:
        """Return why rows of a dynamically quantised model depend on each other, and what to do; "" for others."""
        if all(node.op_type != "DynamicQuantizeLinear" for node in every_node(self._model.proto.graph)):
            return ""
        return (
            ": it is quantised dynamically (DynamicQuantizeLinear), by the range of the whole batch: import the file "
            "it was made of, or quantise that with quantize_static"
        )


def compiled(graph: OnnxDenseGraph, folder: Path, buckets: Sequence[int]) -> list[ExecutableEntry]:
    """Write the graph's executable into a version's folder; return its entries, one for each bucket."""
    lowered = native_onnx.lower(graph, Variant(BACKEND))
    ascending = checked_buckets(buckets)
    first = build(lowered, ascending[0], folder)
    return [replace(first, bucket=bucket, source=source_hash(lowered, bucket)) for bucket in ascending]
