"""Evaluate a model's sparse graph: a request's named inputs in, the dense graph's input matrix out.

A SparsePlan is made once from the manifest. bind_inputs() checks a request against it and turns it into addresses;
fill() runs the fused kernel over the bound requests of a batch. Bounds are checked in bind_inputs() and only there: the
kernel trusts what bind_inputs() returns. The size of a request is checked there, too, by shapes alone: before strings
are hashed, transforms computed or a stage run (processor.features.limits).

A float that is infinite, or becomes so when scaled, is refused, because a network's output for it is meaningless; NaN
is a missing value. fill() reads every float anyway and raises NonFiniteInput after writing all rows; non_finite_error()
then finds the request and the position, for the code that answers the batch. Outputs of a stage are not checked for
this.

A version's own transforms of a request's inputs, such as hash buckets (processor.features.evaluation), are computed in
bind_inputs(), too, once the inputs are checked. A version with a stage (processor.features.stage) has part of its
inputs computed elsewhere: bind_inputs() checks the request, runs the stage on it once, and checks the stage's outputs
as it checks clients' inputs. That takes as long as the stage does, so callers on an event loop bind such versions
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float, c_int64
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import BufferLayout, Column, PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.features.sequences import SequenceColumns
from freshet_serving.processor.features.stage import Stage
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import COMBINERS, USER, Input, Manifest, codes_a_value, user_features

MAX_LAYOUTS = 256
KINDS = {"float": pool.KIND_FLOAT, "floats": pool.KIND_BLOCK, "id": pool.KIND_ONE, "string": pool.KIND_ONE}


class BoundInput(NamedTuple):
    """One checked input as the kernel reads it: value v of row r at values[r * stride + v], or by row_splits.

    Attributes:
        values: int64 (strings hashed) or float32, contiguous.
        rows: Number of rows; one row is broadcast.
        stride: Values per row.
        splits: Row splits of a ragged input; None for a dense one.
    """

    values: NDArray[Any]
    rows: int
    stride: int
    splits: NDArray[np.int64] | None


class BoundRequest(NamedTuple):
    """A checked request.

    Attributes:
        rows: Number of candidates.
        ids: Number of ids to look up, before inputs of one row are broadcast.
        words: int64 [sources, 4] as bytes (kernels.pool's inputs), addresses into `keep`.
        keep: The arrays, which must outlive `words`.
        user_split: True if the user's inputs (processor.package.subgraphs) have one row for all candidates.
    """

    rows: int
    ids: int
    words: bytes
    keep: Sequence[Any]
    user_split: bool = False


class BoundLayout(NamedTuple):
    """The binding shared by all PackedColumns of one BufferLayout.

    Attributes:
        sources: Offset of the values, rows and stride of each source.
    """

    rows: int
    ids: int
    sources: tuple[tuple[int, int, int], ...]
    user_split: bool


class NonFiniteInput(BadInput):
    """Raised if a float of a request is infinite, or becomes so when scaled. All rows have been written by then."""


class Pooling(NamedTuple):
    """Some features of a plan and the matrix columns they fill: plan and scaling of kernels.pool."""

    plan: NDArray[np.int64]
    scaling: NDArray[np.float32]

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: Sequence[BoundRequest],
        spans: NDArray[np.int64],
        out: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """Write rows spans[i] of each bound request, one request after another; other features' columns are unchanged.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            bound: The bound requests.
            spans: int64 [R, 2], first row and rows of each request.
            out: float32 [rows, width], to write to.
            counts: Lookups and misses by table, int64 [T, 2], to add to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
        """
        if pool.run(tables, self.plan, self.scaling, inputs_of(bound), spans, epoch, out, counts):
            raise NonFiniteInput("inputs: expected numbers that are finite after scaling")


class PoolingStep(NamedTuple):
    """Some features of one row, or some ids of one feature's list.

    Attributes:
        columns: The columns to divide once they are filled.
        divisor: What to divide them by.
    """

    pooling: Pooling
    bound: BoundRequest
    columns: slice = slice(0, 0)
    divisor: np.float32 = np.float32(1)

    def fill(self, tables: NDArray[np.int64], epoch: int, out: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
        """Fill this step's columns of a row in which earlier steps have written.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            out: float32 [1, width], the row.
            counts: Lookups and misses by table, int64 [T, 2], to add to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
        """
        self.pooling.fill(tables, epoch, [self.bound], np.array([[0, 1]], np.int64), out, counts)
        if self.divisor != 1:
            out[0, self.columns] /= self.divisor


class RowInvariants(NamedTuple):
    """The features of a request that are the same in all of its rows.

    Attributes:
        ids: Number of their ids.
        parts: Steps to run one after another.
        varying: The features that differ between rows, in the columns that SparsePlan.fill() writes them to.
    """

    ids: int
    parts: Sequence[PoolingStep]
    varying: Pooling


class SparsePlan:
    """The sparse graph of one model as a plan: what to read, look up and pool, in which columns of the dense input.

    Attributes:
        plan: The features' plan (kernels.pool), and `scaling` their scaling.
        lookups: `plan`, followed by the columns of sequences.
        sequences: The sequences by name.
    """

    def __init__(self, manifest: Manifest, stage: Stage | None = None) -> None:
        """Make the plan.

        Args:
            manifest: The version's manifest.
            stage: The loaded stage of a manifest that names one.
        """
        self.width = manifest.width
        self.stage = stage
        self._inputs = {i.name: i for i in manifest.inputs}
        lookups = manifest.lookups
        read = {f.input for f in lookups} | {s.time for s in manifest.sequences}
        computed = {t.name for t in manifest.transforms} - read
        sources = {i.name: i for i in manifest.sources if i.name not in computed}
        tables = {t.name: (n, t) for n, t in enumerate(manifest.tables)}
        looked_up = {f.input for f in lookups if f.table}
        self._sources: dict[tuple[str, int], int] = {}
        for name, spec in sources.items():
            seeds = {tables[f.table][1].hash_seed for f in lookups if f.input == name and f.table}
            for seed in sorted(seeds or {0}) if spec.dtype == "string" else [0]:
                self._sources[name, seed] = len(self._sources)
        # Floats that the kernel may never see, because a transform or the stage reads them.
        read_here = {name for t in manifest.transforms for name in t.inputs} | (set(self._inputs) if stage else set())
        finite = {i.name for i in manifest.inputs if i.dtype == "float32" and i.name in read_here}
        # In the order of the sources' numbers: the request's inputs, the stage's outputs, the transforms.
        reads = [
            (
                _InputReader(spec, name in looked_up, name in finite),
                [seed for owner, seed in self._sources if owner == name],
            )
            for name, spec in sources.items()
        ]
        self._transforms = Transforms(manifest)
        # If every row has the same number of ids and no string has to be hashed, the row count gives the size.
        self._plain = not any(i.ragged or i.dtype == "string" for i in manifest.inputs)
        self._row_ids = sum(i.columns or 1 for i in manifest.inputs if i.dtype == "int64")
        first = len(self._inputs)
        last = first + (len(manifest.stage.outputs) if manifest.stage else 0)
        self._reads, self._staged, self._transformed = reads[:first], reads[first:last], reads[last:]
        user = {f.input for f in user_features(manifest.features)}
        user |= {name for s in manifest.sequences for name in (*s.inputs, *(c.input for c in s.columns))}
        self._user = frozenset(user if USER in manifest.graphs else ())
        self._features = {f.name: row for row, f in enumerate(lookups)}
        self.sequences = {s.name: s for s in manifest.sequences}
        self._events = SequenceColumns(manifest) if manifest.sequences else None
        self._layouts: dict[BufferLayout, BoundLayout] = {}
        self._pack = Struct(f"={len(self._sources) * pool.INPUT_FIELDS}q").pack
        self.lookups = np.zeros((len(lookups), pool.PLAN_FIELDS), np.int64)
        self._scaling = np.zeros((len(lookups), pool.SCALING_FIELDS), np.float32)
        count = len(manifest.features)
        self.plan, self.scaling = self.lookups[:count], self._scaling[:count]
        staged = {i.name for i in manifest.stage.outputs} if manifest.stage else set()
        hashed = {t.name: codes_a_value(t) for t in manifest.transforms}
        for row, f in enumerate(lookups):
            table, seed = -1, 0
            if f.table:
                table = tables[f.table][0]
                seed = tables[f.table][1].hash_seed if sources[f.input].dtype == "string" else 0
            kind, codes = KINDS.get(f.kind, pool.KIND_MANY), hashed.get(f.input, 1)
            source = self._sources[f.input, seed]
            self.lookups[row] = (
                kind,
                source,
                max(f.column, 0),
                table,
                COMBINERS[f.combiner],
                f.max_length * codes,
                f.offset,
                f.width,
                codes,
            )
            self._scaling[row] = (f.log1p, f.mean, f.scale, np.inf if f.input in staged else pool.LARGEST)

    def bind_inputs(self, inputs: Mapping[str, Column], limits: RequestLimits | None = None) -> BoundRequest:
        """Check names, dtypes, shapes and row counts of a request, and turn it into addresses for the kernel.

        Inputs of one row are broadcast to the rows of the others.

        Args:
            inputs: Columns by name.
            limits: Limits of a request; None for inputs that are not a request.

        Raises:
            BadInput: An input is wrong; the message names it, with what was expected and received.
            TooLarge: The request is beyond its limits.
        """
        if type(inputs) is PackedColumns and (layout := self._layout(inputs)) is not None:
            rows = layout.rows
            if limits is not None and (rows > limits.max_rows or rows * self._row_ids > limits.max_ids):
                self._measure(inputs, limits)
            start = address_of_bytes(inputs.buffer) + inputs.start
            packed = [word for at, count, stride in layout.sources for word in (start + at, count, stride, 0)]
            return BoundRequest(rows, layout.ids, self._pack(*packed), (inputs.buffer,), layout.user_split)
        if self._events is not None:
            inputs = self._events.aligned(inputs)
        if inputs.keys() != self._inputs.keys():
            self._reject_unknown_inputs(inputs)
        if limits is not None and not self._plain:
            self._measure(inputs, limits)
        words: list[int] = []
        keep: list[BoundInput] = []
        rows, ids, user_split = self._read_inputs(self._reads, inputs, 1, words, keep)
        if limits is not None and self._plain and (rows > limits.max_rows or rows * self._row_ids > limits.max_ids):
            self._measure(inputs, limits)
        if self.stage is not None:
            staged = self.stage.run(inputs, rows)
            rows, more, same = self._read_inputs(self._staged, staged, rows, words, keep)
            ids, user_split = ids + more, user_split and same
        if self._transforms:
            rows, more, same = self._read_inputs(self._transformed, self._transforms.run(inputs), rows, words, keep)
            ids, user_split = ids + more, user_split and same
        return BoundRequest(rows, ids, self._pack(*words), keep, user_split)

    def _measure(self, inputs: Mapping[str, Column], limits: RequestLimits) -> None:
        """Raise TooLarge for a request beyond its limits, without reading a value."""
        extent = RequestSize(limits)
        for read, _ in self._reads:
            extent.add(read.spec, *_size(inputs[read.name], read.width))

    def _read_inputs(
        self,
        reads: Sequence[Reading],
        inputs: Mapping[str, Column],
        rows: int,
        words: list[int],
        keep: list[BoundInput],
    ) -> tuple[int, int, bool]:
        """Add the sources of these inputs.

        Returns the rows of all inputs so far, the ids of these, and whether all of the user's inputs among them have
        one row.
        """
        ids, user_split = 0, bool(self._user)
        for read, seeds in reads:
            for seed in seeds:
                source = read(inputs[read.name], seed)
                values, count, stride, splits = source
                if read.finite and np.isinf(values).any():
                    place = int(np.isinf(values).argmax())
                    raise _non_finite_error(read.name, values.reshape(-1)[place], *divmod(place, stride))
                keep.append(source)
                words += (address(values), count, stride, 0 if splits is None else address(splits))
                if count != 1:
                    if rows not in (1, count):
                        raise BadInput(f"input {read.name!r}: expected {rows} rows (or 1), got {count}")
                    rows = count
                    user_split = user_split and read.name not in self._user
                if read.looked_up:
                    ids += values.size
        return rows, ids, user_split

    def _layout(self, inputs: PackedColumns) -> BoundLayout | None:
        """Return the binding for this buffer layout, whatever the values; None if bind_inputs() has to read values."""
        places = inputs.places
        layout = self._layouts.get(places)
        alone = self.stage is None and not self._transforms
        if layout is None and alone and not any(read.looks_at_values for read, _ in self._reads):
            bound = self.bind_inputs({name: inputs[name] for name in inputs})
            offsets = {place.name: place.offset for place in places.columns}
            sources = [(offsets[read.name], source) for (read, _), source in zip(self._reads, bound.keep)]
            found = tuple((at, source.rows, source.stride) for at, source in sources)
            layout = BoundLayout(bound.rows, bound.ids, found, bound.user_split)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[places] = layout
        return layout

    def _reject_unknown_inputs(self, inputs: Mapping[str, Column]) -> None:
        for name in inputs:
            if name not in self._inputs:
                raise BadInput(f"input {name[:64]!r} is not one of the model's: {', '.join(self._inputs)}")
        missing = next(name for name in self._inputs if name not in inputs)
        raise BadInput(f"input {missing!r} is missing")

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: Sequence[BoundRequest],
        spans: NDArray[np.int64],
        out: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """Write rows spans[i] of each bound request, one request after another, into `out`.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            bound: The bound requests.
            spans: int64 [R, 2], first row and rows of each request.
            out: float32 [rows, width], to write to.
            counts: Lookups and misses by table, int64 [T, 2], to add to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
        """
        if pool.run(tables, self.plan, self.scaling, inputs_of(bound), spans, epoch, out, counts):
            refusals = filter(None, map(self.non_finite_error, bound))
            raise next(refusals, None) or NonFiniteInput("inputs: expected finite numbers (or NaN)")

    def non_finite_error(self, bound: BoundRequest) -> NonFiniteInput | None:
        """Return the error of a request with a float that is infinite or becomes so when scaled; else None."""
        (inputs,) = inputs_of([bound])
        feature, row, column = pool.find_non_finite(self.plan, self.scaling, inputs)
        if feature < 0:
            return None
        number = self.plan[feature, pool.SOURCE]
        name = next(name for (name, _), n in self._sources.items() if n == number)
        values, _, stride, _ = inputs[number].tolist()
        return _non_finite_error(name, c_float.from_address(values + 4 * (row * stride + column)).value, row, column)

    def largest(self, bound: BoundRequest) -> float:
        """Return the magnitude of a request's largest float, after scaling if it is scaled; 0 without floats."""
        (inputs,) = inputs_of([bound])
        return float(pool.largest(self.plan, self.scaling, inputs))

    def row_invariants(self, bound: BoundRequest, max_ids: int) -> RowInvariants | None:
        """Return the features of a request that are the same in all rows, in steps; None if all may differ.

        Args:
            bound: The bound request.
            max_ids: Maximum ids of a step.
        """
        words = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS)
        sources, tables = self.plan[:, pool.SOURCE], self.plan[:, pool.TABLE]
        row_invariants = words[sources, 1] == 1
        if not row_invariants.any():
            return None
        ids = 0
        for source in np.unique(sources[row_invariants & (tables >= 0)]).tolist():
            ids += _length(words[source])
        parts: list[PoolingStep] = []
        together: list[int] = []
        count = 0
        for row in np.flatnonzero(row_invariants).tolist():
            source, most = words[sources[row]], int(self.plan[row, pool.MAX_LENGTH])
            length = _length(source) if source[3] else int(tables[row] >= 0)
            length = min(length, most) if most > 0 else length
            if length > max_ids and self.plan[row, pool.COMBINER] != pool.NONE:
                parts += self._parts(bound, words, row, length, max_ids)
                continue
            if together and count + length > max_ids:
                parts.append(PoolingStep(Pooling(self.plan[together], self.scaling[together]), bound))
                together, count = [], 0
            together.append(row)
            count += length
        if together:
            parts.append(PoolingStep(Pooling(self.plan[together], self.scaling[together]), bound))
        return RowInvariants(ids, parts, Pooling(self.plan[~row_invariants], self.scaling[~row_invariants]))

    def _parts(
        self, bound: BoundRequest, words: NDArray[np.int64], row: int, length: int, max_ids: int
    ) -> Iterator[PoolingStep]:
        """Yield the steps that sum one feature's list: in order, so bit-identical to summing it at once."""
        scaling, plan = self.scaling[row : row + 1], self.plan[row : row + 1].copy()
        fields = [pool.SOURCE, pool.COMBINER, pool.OFFSET, pool.WIDTH, pool.CODES]
        source, combiner, offset, width, codes = plan[0, fields].tolist()
        plan[0, [pool.COMBINER, pool.MAX_LENGTH]] = COMBINERS["sum"], 0
        for start in range(0, length, max_ids):
            splits, own = np.array([start, min(start + max_ids, length)], np.int64), words.copy()
            own[source, 3] = address(splits)
            divisor = np.float32(1)
            if splits[1] == length and combiner in (pool.MEAN, pool.SQRTN):
                values = np.float32(length // codes)
                divisor = np.sqrt(values) if combiner == pool.SQRTN else values
            some = BoundRequest(1, int(splits[1]) - start, own.tobytes(), (bound, splits))
            yield PoolingStep(Pooling(plan, scaling), some, slice(offset, offset + width), divisor)
            plan = plan.copy()
            plan[0, pool.KIND] = pool.KIND_MORE

    def in_order(self, features: Sequence[str]) -> bool:
        """Report whether these are all features, in the order of their columns in the whole matrix."""
        rows = [self._features[name] for name in features]
        return len(rows) == len(self.plan) and bool((np.diff(self.plan[rows, pool.OFFSET]) > 0).all())

    def pooling(self, features: Sequence[str]) -> Pooling:
        """Return the pooling of these features alone, side by side in their order from column 0 on."""
        rows = [self._features[name] for name in features]
        plan = self.lookups[rows]
        plan[:, pool.OFFSET] = np.cumsum([0, *plan[:-1, pool.WIDTH]])
        return Pooling(plan, self._scaling[rows])

    def source(self, name: str) -> int:
        """Return the number of an input that is no string, among BoundRequest.keep."""
        return self._sources[name, 0]


def _length(words: NDArray[np.int64]) -> int:
    """Return the number of ids in an input's one row; `words` are int64 [4] (kernels.pool's inputs)."""
    _, _, stride, splits = words.tolist()
    return int(_read_word(splits + 8).value) if splits else int(stride)


def _non_finite_error(name: str, value: float, row: int, column: int) -> NonFiniteInput:
    wanted = "a number that is finite after scaling" if np.isfinite(value) else "finite numbers (or NaN)"
    return NonFiniteInput(f"input {name!r}: expected {wanted}, got {value:.6g} in row {row}, column {column}")


def blank_inputs(manifest: Manifest) -> dict[str, Column]:
    """Return a request of one row: zeros and empty strings; one value in each ragged input."""
    inputs: dict[str, Column] = {}
    for spec in manifest.inputs:
        count = spec.columns or 1
        flat = Strings.of([""] * count) if spec.dtype == "string" else np.zeros(count, spec.dtype)
        if spec.ragged:
            inputs[spec.name] = Ragged(flat, np.array([0, 1], np.int64))
        else:
            inputs[spec.name] = (
                flat if isinstance(flat, Strings) else flat.reshape((1, count) if spec.columns else (1,))
            )
    return inputs


def inputs_of(bound: Sequence[BoundRequest]) -> NDArray[np.int64]:
    """Return the inputs of bound requests as kernels read them: int64 [R, S, 4] (kernels.pool)."""
    words = bytearray().join([b.words for b in bound])
    return np.frombuffer(words, np.int64).reshape(len(bound), -1, pool.INPUT_FIELDS)


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element, in an eighth of the time of array.ctypes.data.

    Each tensor of each request would pay for that. PyArrayObject begins with the object's head, then the data pointer
    (numpy's stable ABI).
    """
    at: int = _read_word(id(array) + object.__basicsize__).value
    return at


def address_of_bytes(data: bytes) -> int:
    """Return the address of the first byte of a bytes object, which follows the object's head."""
    return id(data) + bytes.__basicsize__ - 1


_read_word = c_int64.from_address
_bytes = b"probe"
_probe = np.frombuffer(_bytes, np.uint8)
if not address(_probe) == address_of_bytes(_bytes) == _probe.ctypes.data:
    raise ImportError("CPython's bytes and numpy's arrays are not laid out as expected")


class _InputReader:
    """Reads one input: contiguous and typed as the manifest says, or BadInput."""

    def __init__(self, spec: Input, looked_up: bool, finite: bool) -> None:
        """Create a reader.

        Args:
            spec: The input.
            looked_up: True if a feature looks its values up in a table.
            finite: True if its values must be finite because not only the kernel reads them.
        """
        self.name = spec.name
        self.spec = spec
        self.looked_up, self.finite = looked_up, finite
        self._where = f"input {spec.name!r}"
        self.width = spec.columns or 1
        self.looks_at_values = spec.ragged or spec.dtype == "string"
        self._dtype = None if self.looks_at_values else np.dtype(spec.dtype)
        self._shapes = ((spec.columns,),) if spec.columns else ((), (1,))

    def __call__(self, column: Column, seed: int) -> BoundInput:
        # Check for None first: a float64 dtype equals None.
        if self._dtype is not None and type(column) is np.ndarray and column.dtype == self._dtype:
            shape = column.shape
            if shape and shape[0] and shape[1:] in self._shapes:
                values = column if column.flags.c_contiguous else np.ascontiguousarray(column)
                return BoundInput(values, shape[0], self.width, None)
        return self._ragged(column, seed) if self.spec.ragged else self._dense(column, seed)

    def _ragged(self, column: Column, seed: int) -> BoundInput:
        where = self._where
        if not isinstance(column, Ragged):
            raise BadInput(f"{where}: expected ragged rows, got {_describe(column)}")
        values = _ids(self.spec, column.values, seed, where)
        whole = column.row_splits.dtype.kind in "iu" and column.row_splits.ndim == 1
        splits = np.ascontiguousarray(column.row_splits, np.int64) if whole else np.empty(0, np.int64)
        # Compare neighbours, do not subtract them: a difference can wrap around to a positive number.
        if len(splits) < 2 or splits[0] != 0 or splits[-1] != len(values) or (splits[1:] < splits[:-1]).any():
            raise BadInput(f"{where}: expected row_splits ascending from 0 to {len(values)} for at least one row")
        return BoundInput(values, len(splits) - 1, 1, splits)

    def _dense(self, column: Column, seed: int) -> BoundInput:
        spec, where, width = self.spec, self._where, self.width
        if isinstance(column, Ragged):
            raise BadInput(f"{where}: expected one value per row, got ragged rows")
        if isinstance(column, Strings):
            values = _ids(spec, column, seed, where)
            if len(values) == 0 or len(values) % width:
                raise BadInput(f"{where}: expected a multiple of {width} strings, got {len(values)}")
            return BoundInput(values, len(values) // width, width, None)
        if spec.dtype == "string":
            raise BadInput(f"{where}: expected strings, got {_describe(column)}")
        if column.ndim == 0 or column.shape[0] == 0 or column.shape[1:] not in self._shapes:
            raise BadInput(f"{where}: expected shape [n, {width}], got {list(column.shape)}")
        if column.dtype != self._dtype:
            raise BadInput(f"{where}: expected {spec.dtype}, got {column.dtype.name}")
        return BoundInput(np.ascontiguousarray(column), column.shape[0], width, None)


def _size(column: Column, width: int) -> tuple[int, int]:
    """Return rows and values of a column, whether or not it is valid; `width` is the values in a row of strings."""
    if isinstance(column, Ragged):
        return len(column.row_splits) - 1, len(column.values)
    if isinstance(column, Strings):
        return len(column) // width, len(column)
    return len(column) if column.ndim else 0, column.size


Reading = tuple[_InputReader, list[int]]
"""An input, and the seeds that its strings are hashed with."""


def _ids(spec: Input, values: NDArray[np.int64] | Strings, seed: int, where: str) -> NDArray[np.int64]:
    if isinstance(values, Strings):
        if spec.dtype != "string":
            raise BadInput(f"{where}: expected {spec.dtype}, got strings")
        hashed: NDArray[np.int64] = hash_strings(values, seed)
        return hashed
    if spec.dtype == "string" and len(values):
        raise BadInput(f"{where}: expected strings, got {values.dtype.name}")
    if values.dtype != np.int64 or values.ndim != 1:
        raise BadInput(f"{where}: expected int64 values, got {_describe(values)}")
    return np.ascontiguousarray(values)


def _describe(column: Column) -> str:
    if isinstance(column, Ragged):
        return "ragged rows"
    if isinstance(column, Strings):
        return "strings"
    return f"{column.dtype.name} of shape {list(column.shape)}"
