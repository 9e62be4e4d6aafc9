"""Provide calibration sets, inputs of the whole graph: drawn from a package's own tables, or read from labelled data.

Both are what a request would give: embeddings as the tables hold them, floats after their transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.building.calibrate import LabelledRows
from freshet_serving.compiler.dense.dense_graph import Tensors
from freshet_serving.processor.backends import MATRIX, Matrix
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import needed
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.stage import load_stage
from freshet_serving.processor.package import Feature, Input, Manifest, undivided_name
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.repository import WARMUP, VersionReader, parse_warmup, table_file
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.running.opening import io_spec
from freshet_serving.processor.tables.quantise import StoredRows, dequantise
from freshet_serving.processor.tables.table import descriptor, descriptors
from freshet_serving.processor.versions.served_version import ServedVersion

CHUNK_ROWS, PRACTICE_ROWS = 4096, 4096
LABEL = "label"


def random_inputs(reader: VersionReader, rows: int) -> dict[str, Matrix]:
    """Return random inputs of the undivided subgraph.

    Features have embeddings of random ids of each table; everything else has floats of a standard normal distribution.
    An empty table gives small numbers.
    """
    random, m = np.random.default_rng(0), reader.manifest
    x = random.standard_normal((rows, m.width), np.float32)
    files = {t.name: reader.tensors(table_file(t.name)) for t in m.tables if t.rows}
    for feature in m.features:
        if not feature.table:
            continue
        spec = m.table(feature.table)
        for at in range(feature.length or 1):
            block = slice(feature.offset + at * spec.dim, feature.offset + (at + 1) * spec.dim)
            if spec.rows:
                file = files[spec.name]
                picked = random.integers(0, spec.rows, rows)
                scales = file["scales"][picked] if "scales" in file else np.empty(0, np.float32)
                x[:, block] = dequantise(StoredRows(file["rows"][picked], scales), spec.dtype)
            else:
                x[:, block] *= 0.05
        if feature.length:
            _mask(x, feature, spec.dim, random)
    shapes = io_spec(undivided_name(m), subgraphs(m)[undivided_name(m)]).input_shapes(rows)
    others = {n: random.standard_normal(shape, np.float32) for n, shape in shapes.items() if n != MATRIX}
    return {MATRIX: x, **others}


def calibration_set(reader: VersionReader, labelled: LabelledRows | None) -> Tensors | None:
    """Return realistic inputs of the undivided subgraph.

    They are labelled rows, or else those recorded for the version; None without either.
    """
    if labelled is not None:
        return {name: rows[:PRACTICE_ROWS] for name, rows in labelled.inputs.items()}
    m = reader.manifest
    if WARMUP not in m.files:
        return None
    builder = _InputBuilder(reader)
    parts: list[Tensors] = []
    for request in parse_warmup(reader.file(WARMUP), m.inputs):
        # Requests recorded before non-finite numbers were refused are no realistic sample.
        with suppress(NonFiniteInput):
            parts.append(builder.rows(request))
        if sum(len(rows[MATRIX]) for rows in parts) >= PRACTICE_ROWS:
            break
    return {n: rows[:PRACTICE_ROWS] for n, rows in _joined(parts).items()} if parts else None


def _joined(parts: Sequence[Tensors]) -> dict[str, Matrix]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def read_labelled(reader: VersionReader, path: Path, label: str = LABEL, most: int = 200_000) -> LabelledRows:
    """Read the first rows of a Parquet file as a request of the model would bring them, or raise BadInput.

    Its columns are the model's inputs, or else its features, by name. The output to compare with the labels is the one
    that the version's notes map to the column `label`, 0 or 1.
    """
    table = _parquet(path, most)
    if label not in table.column_names:
        raise BadInput(f"data: expected column {label[:64]!r}, got {', '.join(table.column_names)[:200]}")
    labels = table.column(label).to_numpy().astype(np.float32)
    if not np.isin(labels, (0, 1)).all():
        raise BadInput(f"data: column {label[:64]!r}: expected 0 or 1")
    m, builder = reader.manifest, _InputBuilder(reader)
    parts = []
    for start in range(0, len(labels), CHUNK_ROWS):
        part = table.slice(start, CHUNK_ROWS)
        parts.append(builder.rows({spec.name: _column(part, spec, m) for spec in m.inputs}))
    outputs = m.notes.get("labels")
    output = outputs.get(label) if isinstance(outputs, dict) else None
    return LabelledRows(_joined(parts), labels, output if isinstance(output, str) else "")


class _InputBuilder:
    def __init__(self, reader: VersionReader) -> None:
        m = self._manifest = reader.manifest
        self._version = ServedVersion(reader, 0, SystemClock())
        self._plan = SparsePlan(m, load_stage(m, reader.file(m.stage.file)) if m.stage else None)
        self._run = GraphRun(m, self._plan).undivided
        arrays = self._version.change.frame.arrays
        self._tables = descriptors([descriptor(t, a) for t, a in zip(m.tables, arrays)])

    def rows(self, columns: Mapping[str, Column]) -> dict[str, Matrix]:
        bound = self._plan.bind_inputs(columns)
        inputs = self._run.spec.allocate_inputs(bound.rows)
        self._run.fill(BatchView.of(self._tables, 0, bound), inputs)
        return inputs


def read_sample(path: Path, column: str = "rows") -> list[int]:
    """Read the rows of each request from a column of a Parquet file; raise BadInput unless it is of integers."""
    table = _parquet(path, None)
    if column not in table.column_names:
        raise BadInput(f"sample: expected column {column!r}, got {', '.join(table.column_names)[:200]}")
    values = table.column(column).to_numpy()
    if values.dtype.kind not in "iu":
        raise BadInput(f"sample: expected whole numbers in column {column!r}, got {values.dtype}")
    return [int(v) for v in values]


def _parquet(path: Path, most: int | None) -> Any:
    with needed("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        raise BadInput(f"{path.name}: expected a Parquet file") from None
    return table if most is None else table.slice(0, most)


def _column(table: Any, spec: Input, m: Manifest) -> Column:
    if spec.name in table.column_names:
        return _values(table.column(spec.name).combine_chunks(), spec)
    parts = sorted((f for f in m.features if f.input == spec.name and f.column >= 0), key=lambda f: f.column)
    absent = [f.name for f in parts if f.name not in table.column_names]
    if absent or len(parts) != spec.columns:
        raise BadInput(f"data: expected column {(absent or [spec.name])[0][:64]!r}")
    if spec.dtype == "string":
        rows = [[str(v) for v in table.column(f.name).to_pylist()] for f in parts]
        return Strings.of([v for row in zip(*rows) for v in row])
    arrays = [table.column(f.name).to_numpy().astype(spec.dtype) for f in parts]
    return np.ascontiguousarray(np.stack(arrays, 1))


def _values(array: Any, spec: Input) -> Column:
    """Return a column of values, or of lists of values if the input has columns or is ragged."""
    import pyarrow as pa

    nested = pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)
    if nested != bool(spec.ragged or spec.columns):
        raise BadInput(f"data: column {spec.name!r}: expected {'one value' if nested else 'a list'} a row")
    flat = array.flatten() if nested else array
    values: NDArray[Any] | Strings
    if spec.dtype == "string":
        values = Strings.of([str(v) for v in flat.to_pylist()])
    else:
        values = np.ascontiguousarray(flat.to_numpy(zero_copy_only=False).astype(spec.dtype))
    if spec.ragged:
        lengths = [len(v or ()) for v in array.to_pylist()]
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    return values.reshape(-1, spec.columns) if spec.columns and not isinstance(values, Strings) else values


def _mask(x: Matrix, feature: Feature, dim: int, random: np.random.Generator) -> None:
    """Make a feature of unpooled values realistic: ones in the mask, zeros where a row has fewer values."""
    lengths = random.integers(0, feature.max_length + 1, len(x))
    present = np.arange(feature.max_length) < lengths[:, None]
    end = feature.offset + feature.max_length * dim
    block = x[:, feature.offset : end].reshape(len(x), feature.max_length, dim)
    x[:, feature.offset : end] = (block * present[:, :, None]).reshape(len(x), -1)
    x[:, end : end + feature.max_length] = present
