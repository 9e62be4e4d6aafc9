"""Import an ONNX file that ONNX Runtime computes as it is: lookups are cut out, the rest is one dense graph.

What the package's tables and dense graph give, run by the code that serves them, must be what ONNX Runtime gives for
the file, and a row's outputs must not depend on other rows. TensorFlow is not imported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.backends import native_onnx
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.compile import build, checked_buckets, source_hash
from freshet_serving.compiler.building.finite_check import NOT_JUDGED, check_rows
from freshet_serving.compiler.dense.onnx_dense_graph import BACKEND, OnnxDenseGraph
from freshet_serving.compiler.imports.boundary import BoundaryTensor, sender
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import PADDED, by_input, own_names_of, plain
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node, types_held
from freshet_serving.compiler.imports.onnx_native.native_feeds import MAX_COLUMNS, feeds_by_name
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.native_samples import SIZES, NativeSamples, rows_of
from freshet_serving.compiler.imports.onnx_native.onnx_stage import RUNTIME, STAGE_FILE, OnnxStage
from freshet_serving.compiler.imports.onnx_native.served_graph import (
    MatrixSlot,
    ServedGraph,
    output_labels,
    package_name,
    rewrite,
)
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup, constant_embedding, find_lookups
from freshet_serving.compiler.imports.onnx_native.single_rows import with_single_rows
from freshet_serving.compiler.imports.onnx_native.staged_graph import passing_model, stage_model
from freshet_serving.compiler.imports.onnx_native.staged_lookups import (
    StagedLookup,
    find_staged_lookups,
    rows_names,
)
from freshet_serving.compiler.imports.onnx_native.staged_weights import staged_weights
from freshet_serving.compiler.imports.onnx_native.whole_outputs import exact_outputs
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.growth_meter import with_growth
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import (
    DEFAULT_SIGNATURE,
    FLOATS,
    INTEGERS,
    MAX_RANK,
    OUTPUT_DTYPES,
    PIECE_BITS,
    PIECES,
    STRING,
    ExecutableEntry,
    Feature,
    Input,
    Manifest,
    Output,
    ServingSignature,
    StageEntry,
    StageLookup,
    TableEntry,
    Transform,
    joined,
)
from freshet_serving.processor.repository import (
    DENSE as DENSE_FILE,
)
from freshet_serving.processor.repository import (
    GRAPH,
    Repository,
    VersionReader,
    VersionWriter,
    carry_warmup,
    table_file,
)
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed

CLOSE = 1e-5
TAIL = 3
TYPES = {"float": "float32", "double": "float64"}
SINGLE = "one number for the whole batch: left out, because replies hold numbers for every row"
EXACT = "computed as float32, which is exact for integers up to 2**24"


@dataclass(frozen=True, slots=True, eq=False)
class NativeDraft:
    """A package before anything is compiled.

    Attributes:
        manifest: Its manifest.
        tables: Keys and rows by table.
        graph: Its dense graph.
        stage: Its stage, or nothing.
    """

    manifest: Manifest
    tables: dict[str, Any]
    graph: OnnxDenseGraph
    stage: bytes = b""


class NativeImporter:
    """The importer of one file."""

    def __init__(
        self, path: Path, why: str, samples: Mapping[str, Any] | None = None, user: Sequence[str] = ()
    ) -> None:
        """Read the file, find its lookups and try it.

        Args:
            path: The file.
            why: Why it is not translated, for the report; "" if it need not be.
            samples: Rows of every input to try it on, or None.
            user: Inputs of the user.

        Raises:
            BadInput: The file is refused.
            TooLarge: It exceeds a limit.
        """
        self._model = read_native(path)
        self._names = feeds_by_name(self._model)
        self._precision = Precision.of(types_held(self._model.proto.graph))
        self._inputs = list(self._names.values())
        known = {fed.name for fed in self._inputs}
        for name, count in Counter(fed.name for fed in self._inputs).items():
            if count > 1:
                same = ", ".join(repr(own[:64]) for own, fed in self._names.items() if fed.name == name)
                raise BadInput(f"signature: expected inputs whose names differ in letters and digits, got {same}")
        own_names, samples = own_names_of(self._inputs), by_input(samples, self._inputs)
        user = [own_names.get(name, name) for name in user]
        for name in sorted(set(user) - known):
            raise BadInput(f"user: expected one of the inputs {', '.join(sorted(known))[:200]}, got {name[:64]!r}")
        self._user = frozenset(user)
        whole = [fed.name for fed in self._inputs if fed.input.dtype == "int64"]
        self._converted = dict(zip(whole, _unused([f"{name[:112]}.float32" for name in whole], known)))
        self.notes = [f"ONNX Runtime computes the graph as it is{why and f': {why}'}", *self._model.notes]
        self.shortfall = ""
        """What a package of a translation has and this one has not; "" for nothing."""
        if user:
            self.notes.append("user-once: ONNX Runtime computes the user's part with every candidate")
            self.shortfall = "natively the user's part is computed with every candidate"
        staged = [fed.name for fed in self._inputs if fed.kind == PADDED or fed.dtype.hasobject]
        if staged and self._model.offsets:
            raise BadInput(f"input {staged[0]!r}: expected a fixed size of each row beside bags of ids and offsets")
        self._staged = bool(staged)
        self._staged_lookups: list[StagedLookup] = []
        self._key_transforms: list[Transform] = []
        if staged:
            told = ", ".join(staged)[:120]
            self.notes.append(f"stage: a request at a time: strings or rows of any length in {told}")
            self._staged_lookups, constants = find_staged_lookups(self._model)
            self.notes += constants
            self.shortfall = f"natively it is computed a request at a time: strings or rows of any length in {told}"
        self._lookups = [] if staged else find_lookups(self._model)
        if not staged and (constant := constant_embedding(self._model, self._lookups)):
            self.shortfall = f"natively embedding {constant[:64]!r} takes no deltas of rows"
        self._samples = NativeSamples(self._model, self._names, self._staged_lookups or self._lookups, samples)
        self._check_outputs()
        self._check_rows()

    def publish(self, repository: Repository, writer: VersionWriter, buckets: Sequence[int]) -> VersionReader:
        """Write and commit the version.

        Args:
            repository: The model repository.
            writer: Writes the version.
            buckets: Batch sizes.
        """
        draft = self.draft(writer.model, writer.version)
        if draft.manifest.stage is not None:
            draft = replace(draft, stage=with_single_rows(draft.manifest, draft.stage))
        manifest, graph = with_growth(draft.manifest, draft.stage), draft.graph
        graph = replace(graph, examples=self._prove(draft))
        executables = compiled(graph, writer.folder, buckets)
        for name, arrays in draft.tables.items():
            check_rows(name, arrays["rows"])
            writer.tensors(table_file(name), arrays)
        if graph.weights:
            writer.tensors(DENSE_FILE, graph.weights)
        if manifest.stage is not None:
            writer.file(manifest.stage.file, draft.stage)
        graph.save(writer.folder / GRAPH)
        carry_warmup(repository, writer.model, manifest.inputs, writer)
        manifest = replace(manifest, executables=executables)
        return VersionReader(writer.commit(manifest), storage=writer.storage, keyring=writer.keyring)

    def analyse(self) -> dict[str, Any]:
        """Return the report of the import without compiling anything."""
        report: dict[str, Any] = self.draft("model", 1).manifest.notes["import"]
        return report

    def draft(self, model: str, version: int) -> NativeDraft:
        """Return the package.

        Args:
            model: Name of the model.
            version: Number of the version.
        """
        sizes = {name: int(array[0].size) for name, array in self._samples.outputs[0].items()}
        if self._staged:
            return self._staged_draft(model, version, sizes)
        served = rewrite(self._model, self._lookups, sizes)
        read = [one.table for slot in served.slots for one in slot.lookups[:1]]
        entries, tables = self._tables(read, served.weights)
        features = self._features(served)
        read_inputs = {feature.input for feature in features}
        transforms = [Transform(n, "float32", [source]) for source, n in self._converted.items() if n in read_inputs]
        transforms += self._key_transforms
        exact, _ = exact_outputs(self._model)
        named = [(served.names[label], label) for label in sorted(served.columns)]
        outputs = [self._output(name, label, sizes[name], name in exact) for name, label in named]
        manifest = Manifest(
            model=model,
            version=version,
            arch="imported",
            created_at=time.time(),
            inputs=[fed.input for fed in self._inputs],
            features=features,
            tables=entries,
            outputs=outputs,
            width=served.width,
            transforms=transforms,
            dense={name: list(array.shape) for name, array in served.weights.items()},
            files={},
            signatures=_signatures(output_labels(sizes)),
            own_names=own_names_of(self._inputs),
            notes={"import": self._report(served, features, tables), "passes": [], **NOT_JUDGED},
        )
        plain_outputs = [Output(o.name, o.columns) for o in outputs]
        graph = OnnxDenseGraph(served.model, served.width, plain_outputs, served.weights, {})
        return NativeDraft(manifest, tables, graph)

    def _tables(self, read: Sequence[str], weights: Collection[str]) -> tuple[list[TableEntry], dict[str, Any]]:
        """Return the tables of some initialisers, and their keys and rows by name.

        Args:
            read: The initialisers.
            weights: Names of the package's weights.
        """
        tables: dict[str, Any] = {}
        names: dict[str, str] = {}
        entries: list[TableEntry] = []
        for table in read:
            name, rows = package_name(table), self._model.weights[table]
            if name in weights or names.setdefault(name, table) != table:
                raise BadInput(f"initialiser {table[:64]!r}: another name differs only in case or punctuation")
            if name not in tables:
                entries.append(TableEntry(name, rows.shape[1], len(rows)))
                tables[name] = packed(np.arange(len(rows), dtype=np.int64), rows)
        return entries, tables

    def _staged_draft(self, model: str, version: int, sizes: Mapping[str, int]) -> NativeDraft:
        """Return the package of a graph that is a stage as a whole."""
        labels, (exact, _) = output_labels(sizes), exact_outputs(self._model)
        specs, features, at = [], [], 0
        taken = {fed.name for fed in self._inputs}
        ordered = sorted((label, name) for name, label in labels.items())
        fresh = _unused([f"stage.{label}"[:120] for label, _ in ordered], taken)
        for (_, name), column in zip(ordered, fresh):
            columns = sizes[name] * (PIECES if name in exact else 1)
            specs.append(Input(column, "float32", 0 if columns == 1 else columns))
            features.append(Feature(column, FLOATS, column, -1 if columns == 1 else 0, offset=at, width=columns))
            at += columns
        inputs = {name: fed.name for name, fed in self._names.items()}
        row_names = rows_names(self._staged_lookups)
        weights, constants, merged = staged_weights(self._model, {one.table for one in self._staged_lookups})
        made = {name: spec.name for (_, name), spec in zip(ordered, specs)}
        apart = {name: sizes[name] for name in exact}
        stage = stage_model(self._model, inputs, made, self._staged_lookups, row_names, apart, weights)
        entries, tables = self._tables([table for table, _ in row_names], ())
        for one in weights:
            entries.append(TableEntry(one.name, one.rows.shape[1], len(one.rows)))
            tables[one.name] = packed(np.arange(len(one.rows), dtype=np.int64), one.rows)
        lookups = [
            StageLookup(label, fed.name, package_name(table), list(range(fed.input.columns)))
            for (table, given), label in row_names.items()
            for fed in [self._names[given]]
        ]
        lookups += [StageLookup(one.name, "", one.name) for one in weights]
        outputs = [self._output(name, label, sizes[name], name in exact) for label, name in ordered]
        operators = [node.op_type for node in self._model.proto.graph.node]
        pairs = [
            BoundaryTensor(label, "float32", (f.width,), (f.offset, f.offset + f.width), sender(f, staged=True))
            for (label, _), f in zip(ordered, features)
        ]
        report = _described(self.notes, [], operators, len(self._staged_lookups))
        report |= {"constants": constants, "merged": merged}
        report["nbytes"]["tables"] = sum(int(arrays["rows"].nbytes) for arrays in tables.values())
        report["boundary"] = [
            {**p.to_json(), "op": "Stage", "input": f.input, "features": 1} for p, f in zip(pairs, features)
        ]
        manifest = Manifest(
            model=model,
            version=version,
            arch="imported",
            created_at=time.time(),
            inputs=[fed.input for fed in self._inputs],
            features=features,
            tables=entries,
            outputs=outputs,
            width=at,
            dense={},
            files={},
            stage=StageEntry(RUNTIME, STAGE_FILE, specs, lookups),
            signatures=_signatures(labels),
            own_names=own_names_of(self._inputs),
            notes={"import": report, "passes": [], **NOT_JUDGED},
        )
        passing = passing_model({o.name: o.columns for o in outputs})
        plain_outputs = [Output(o.name, o.columns) for o in outputs]
        return NativeDraft(manifest, tables, OnnxDenseGraph(passing, at, plain_outputs, {}, {}), stage)

    def _features(self, served: ServedGraph) -> list[Feature]:
        found: list[Feature] = []
        for slot in served.slots:
            if slot.given is not None and slot.exact:
                fed = self._names[slot.given.name]
                width = slot.width // PIECES
                for number, piece in enumerate(self._pieces(fed.name)):
                    column = 0 if fed.input.columns else -1
                    feature = Feature(piece, FLOATS, piece, column, offset=slot.offset + number * width, width=width)
                    found.append(self._sided(feature, fed.name, found))
                continue
            if slot.given is not None:
                fed = self._names[slot.given.name]
                column, source = 0 if fed.input.columns else -1, self._converted.get(fed.name, fed.name)
                feature = Feature(fed.name, FLOATS, source, column, offset=slot.offset, width=slot.width)
                found.append(self._sided(feature, fed.name, found))
                continue
            one = slot.lookups[0]
            dim, keys = one.dims[-1], self._key_columns(one)
            if one.combiner:
                name, table = self._names[one.columns[0][0]].name, package_name(one.table)
                feature = Feature(name, "ids", name, table=table, combiner=one.combiner, offset=slot.offset, width=dim)
                found.append(self._sided(feature, name, found))
                continue
            for number, (name, column) in enumerate(one.columns):
                fed = self._names[name]
                column = column if fed.input.columns else -1
                label = fed.name if column < 0 else f"{fed.name}.{column}"
                feature = Feature(label, "id", keys[name], column, table=package_name(one.table), width=dim)
                found.append(self._sided(replace(feature, offset=slot.offset + number * dim), fed.name, found))
        return found

    def _key_columns(self, lookup: ServedLookup) -> dict[str, str]:
        """Return the input or transform that has a lookup's keys, by the file's name of the input.

        Ids that come as floats, and those to which the file adds something, are transforms.
        """
        found = {}
        for name in dict.fromkeys(name for name, _ in lookup.columns):
            fed = self._names[name]
            key = fed.name
            if fed.input.dtype == "float32":
                key = self._key_transform("whole", key, [64])
            added = [0] * (fed.input.columns or 1)
            for (given, column), more in zip(lookup.columns, lookup.added):
                if given == name:
                    added[column] = more
            found[name] = self._key_transform("add", key, added) if any(added) else key
        return found

    def _pieces(self, source: str) -> list[str]:
        """Return the names of transforms that take an input's whole numbers apart, the lowest piece first."""
        size = 1 << PIECE_BITS
        above = self._key_transform("floor_divide", source, [size])
        parts = [self._key_transform("floor_modulo", one, [size]) for one in (source, above)]
        parts.append(self._key_transform("floor_divide", source, [size**2]))
        return [self._key_transform("float32", one, []) for one in parts]

    def _key_transform(self, op: str, source: str, integers: list[int]) -> str:
        """Return the name of a transform of keys; it is made if there is none."""
        for known in self._key_transforms:
            if (known.op, known.inputs, known.integers) == (op, [source], integers):
                return known.name
        taken = {fed.name for fed in self._inputs} | set(self._converted.values())
        taken |= {known.name for known in self._key_transforms}
        (label,) = _unused([f"{source[:112]}.{op}"], taken)
        self._key_transforms.append(Transform(label, op, [source], integers))
        return label

    def _sided(self, feature: Feature, source: str, before: Sequence[Feature]) -> Feature:
        """Return a feature under a name of its own, on the user's side if its input is the user's."""
        (label,) = _unused([feature.name[:120]], {f.name for f in before})
        return replace(feature, name=label, side="user" if source in self._user else feature.side)

    def _output(self, name: str, label: str, columns: int, exact: bool) -> Output:
        """Return an output in the shape and type that the file gives it.

        Args:
            name: Its name in the file.
            label: Its name in the package.
            columns: Numbers of a row.
            exact: Whether they come in pieces.
        """
        dims = self._samples.outputs[0][name].shape[1:]
        kept = dims != (columns,) and len(dims) < MAX_RANK
        if (labels := self._model.labels.get(name)) is not None:
            return Output(label, columns, list(dims) if kept else None, STRING, labels)
        dtype = TYPES.get(self._model.outputs[name], self._model.outputs[name])
        if exact:
            shape = list(dims) if len(dims) < MAX_RANK else [columns]
            return Output(label, columns * PIECES, shape, dtype, exact=True)
        return Output(label, columns, list(dims) if kept else None, dtype if dtype in OUTPUT_DTYPES else "float32")

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
        self.notes += [f"output {n[:64]!r} is {k}: {EXACT}" for n, k in numbers.items() if k in kinds]

    def _check_rows(self) -> None:
        """Raise BadInput if outputs depend on other rows of a batch: on which they are, or in which order."""
        columns, wanted = self._samples.columns[0], self._samples.outputs[0]
        shuffled = np.random.default_rng(SIZES[0]).permutation(SIZES[0])
        for rows in (np.arange(SIZES[0])[-TAIL:], shuffled, shuffled[:1]):
            part = {n: rows_of(column, rows, SIZES[0]) for n, column in columns.items()}
            try:
                outputs = self._samples.run(part, len(rows))
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(
                    f"graph: expected one that runs for any number of rows, got one that fails for {len(rows)} of the "
                    f"{SIZES[0]} it ran for; export it with a free first dimension: {reason_of(error)}"
                ) from None
            for name, got in outputs.items():
                if not self._precision.agree(got, wanted[name][rows], 1e-4, CLOSE):
                    raise BadInput(
                        f"output {name[:64]!r} of a row depends on the other rows: such a model cannot be batched"
                        f"{self._quantised()}"
                    )

    def _quantised(self) -> str:
        """Return why rows of a dynamically quantised model depend on each other, and what to do; "" for others."""
        if all(node.op_type != "DynamicQuantizeLinear" for node in every_node(self._model.proto.graph)):
            return ""
        return (
            ": it is quantised dynamically (DynamicQuantizeLinear), by the range of the whole batch: import the file "
            "it was made of, or quantise that with quantize_static"
        )

    def _prove(self, draft: NativeDraft) -> dict[str, Any]:
        """Verify the package; return the samples as the dense graph gets them.

        Raises:
            BadInput: The package gives something else than the file.
        """
        manifest, tables, graph = draft.manifest, draft.tables, draft.graph
        spec = manifest.stage
        loaded = OnnxStage(draft.stage, manifest.inputs, spec.outputs, spec.lookups) if spec else None
        plan = SparsePlan(manifest, loaded)
        served = [ServedTable(table, tables[table.name]) for table in manifest.tables]
        matrix = descriptors([table.descriptor() for table in served])
        run = GraphRun(manifest, plan).undivided
        examples = []
        names = dict(zip((o.name for o in manifest.outputs), manifest.outputs))
        labels = {plain(n): n for n in self._model.outputs} | {f"{plain(n)}_": n for n in self._model.outputs}
        for sample, rows, values in zip(self._samples.columns, SIZES, self._samples.outputs):
            inputs = run.spec.allocate_inputs(rows)
            run.fill(BatchView.of(matrix, 0, plan.bind_inputs(sample)), inputs)
            examples.append(inputs[MATRIX])
            got = graph.run(inputs)
            for label, output in names.items():
                numbers = joined(got[label]) if output.exact else got[label]
                self._compare(label, numbers, values[labels[label]], rows)
        return {MATRIX: np.concatenate(examples)}

    def _compare(self, label: str, got: Any, values: Any, rows: int) -> None:
        if got.dtype == np.int64:
            if not np.array_equal(got, values.astype(np.int64).reshape(rows, -1)):
                raise BadInput(f"output {label!r} differs from ONNX Runtime's for the file itself")
            return
        wanted = np.asarray(values, np.float32).reshape(rows, -1)
        if not self._precision.agree(got, wanted, CLOSE, CLOSE):
            worst = float(np.nanmax(np.abs(got - wanted)))
            differs = f"output {label!r} differs by {worst:.3g} from ONNX Runtime's for the file itself"
            raise BadInput(f"{differs}{self._precision.advice}")

    def _report(self, served: ServedGraph, features: Sequence[Feature], tables: Mapping[str, Any]) -> dict[str, Any]:
        given = [s.given for s in served.slots if s.given is not None and not s.exact]
        integers = [one for one in given if one.dtype.kind in "iu"]
        notes = self.notes + [f"input {one.name[:64]!r} is {one.dtype.name}: {EXACT}" for one in integers]
        by_offset = {feature.offset: feature for feature in features}
        cut = sum(len(slot.lookups) for slot in served.slots)
        report = _described(notes, served.operators, [], cut)
        report["boundary"] = [_pair(slot, by_offset[slot.offset]) for slot in served.slots]
        report["flops"] = sum(2 * int(w.size) for w in served.weights.values() if w.ndim == 2)
        report["nbytes"] = {
            "weights": sum(int(w.nbytes) for w in served.weights.values()),
            "tables": sum(int(arrays["rows"].nbytes) for arrays in tables.values()),
        }
        return report


def _described(notes: Sequence[str], dense: Sequence[str], stage: Sequence[str], lookups: int) -> dict[str, Any]:
    """Return a report of operators on each side (compiler.imports.import_report), without what is handed over."""
    sides = {name: dict(Counter(ops).most_common()) for name, ops in (("dense", dense), ("stage", stage))}
    return {
        "source": "ONNX",
        "signature": "serving_default",
        "notes": list(notes),
        "sides": {**sides, "tables": {"Gather": lookups} if lookups else {}},
        "reasons": {},
        "staged": [],
        "boundary": [],
        "flops": 0,
        "nbytes": {"weights": 0, "tables": 0},
    }


def compiled(graph: OnnxDenseGraph, folder: Path, buckets: Sequence[int]) -> list[ExecutableEntry]:
    """Write the graph's executable into a version's folder; return its entries, one for each bucket.

    Args:
        graph: The graph.
        folder: The folder.
        buckets: Batch sizes.
    """
    lowered = native_onnx.lower(graph, Variant(BACKEND))
    ascending = checked_buckets(buckets)
    first = build(lowered, ascending[0], folder)
    return [replace(first, bucket=bucket, source=source_hash(lowered, bucket)) for bucket in ascending]


def _signatures(labels: Mapping[str, str]) -> list[ServingSignature]:
    """Return the signature of a file whose outputs have other names in the package; none for the same names.

    Args:
        labels: The package's name of each output, by the file's.
    """
    return [ServingSignature(DEFAULT_SIGNATURE, outputs=dict(labels))] if any(a != b for a, b in labels.items()) else []


def _unused(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return the names, each with a number appended if it is taken."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in taken or free in found:
            number += 1
            free = f"{name}-{number}"
        found.append(free)
    return found


def _pair(slot: MatrixSlot, feature: Feature) -> dict[str, Any]:
    """Describe the columns of a slot as reports do (compiler.imports.boundary)."""
    given, columns = slot.given, (slot.offset, slot.offset + slot.width)
    if given is not None:
        dims = tuple(n or 1 for n in given.dims[1:])
        pair = BoundaryTensor(given.name, given.dtype.name, dims, columns, sender(feature, staged=False))
        return {**pair.to_json(), "op": "Input", "input": feature.input, "features": 1}
    one = slot.lookups[0]
    op = "EmbeddingBag" if one.combiner else "Gather"
    pair = BoundaryTensor(one.output, "float32", one.dims, columns, sender(feature, staged=False))
    return {**pair.to_json(), "op": op, "input": feature.input, "features": len(one.columns)}
