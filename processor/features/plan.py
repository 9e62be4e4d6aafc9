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
elsewhere. A stage that reads rows of tables runs with each batch instead (stage_rows).

What a request leaves out (processor.package.input_fillers): online features are filled in before the request is bound;
inputs of entities are bound without values, and filled in under the state of the batch (entity_records), and so are
those that sections of extensions fill (late_values). A key that the
model does not read may be absent; one of online features is no source of the plan, and only checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from ctypes import c_float
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import BufferLayout, Column, PackedColumns
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.bound_request import (
    NOTHING,
    BoundLayout,
    BoundRequest,
    NonFiniteInput,
    Pooling,
    PoolingStep,
    RowInvariants,
    address,
    address_of_bytes,
    inputs_of,
    read_word,
)
from freshet_serving.processor.features.entity_records import EntityRecords, UsedRecords
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.features.growth_meter import assumed
from freshet_serving.processor.features.input_reader import (
    BoundInput,
    EntityShare,
    InputReader,
    LeftOut,
    Reading,
    bound_input,
    size_of,
)
from freshet_serving.processor.features.late_values import LateValues, fill_left_out, late_inputs
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.features.sequences import SequenceColumns
from freshet_serving.processor.features.stage import Limit, Stage
from freshet_serving.processor.features.stage_rows import StageRows
from freshet_serving.processor.features.stage_runs import StageRuns
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.pool import LEFT_OUT
from freshet_serving.processor.package import (
    COMBINER_OF_CODE,
    COMBINERS,
    DEFAULT,
    UNREAD,
    USER,
    Manifest,
    SequenceEntry,
    StageGrowth,
    codes_a_value,
    missing_input,
    user_features,
)

MAX_LAYOUTS = 256
KINDS = {"float": pool.KIND_FLOAT, "floats": pool.KIND_BLOCK, "id": pool.KIND_ONE, "string": pool.KIND_ONE}


class SparsePlan:
    """The sparse graph of one model as a plan: what to read, look up and pool, in which columns of the dense input.

    Attributes:
        plan: The features' plan (kernels.pool), and `scaling` their scaling.
        lookups: `plan`, followed by the columns of sequences.
        sequences: The sequences by name.
        late: What fills sources with each batch: entities, a stage that reads rows, extensions.
    """

    def __init__(self, manifest: Manifest, stage: Stage | None = None, growth: StageGrowth | None = None) -> None:
        """Make the plan.

        Args:
            manifest: The version's manifest.
            stage: The loaded stage of a manifest that names one.
            growth: How much it computes; None for what is assumed of a stage that was not measured.
        """
        self.width = manifest.width
        self.stage = None if stage is None else StageRuns(manifest, stage, growth or assumed(manifest))
        self._inputs = {i.name: i for i in manifest.inputs}
        lookups = manifest.lookups
        read = {f.input for f in lookups} | {s.time for s in manifest.sequences}
        computed = {t.name for t in manifest.transforms} - read
        self._fillers = manifest.fillers
        keys = {name for name, filler in manifest.fillers.items() if filler.kind == UNREAD}
        keys -= {entity.key for entity in manifest.entities}
        sources = {i.name: i for i in manifest.sources if i.name not in computed and i.name not in keys}
        tables = {t.name: (n, t) for n, t in enumerate(manifest.tables)}
        looked_up = {f.input for f in lookups if f.table}
        self._sources: dict[tuple[str, int], int] = {}
        keyed = {(e.key, tables[e.table][1].hash_seed) for e in manifest.entities}
        for name, spec in sources.items():
            seeds = {tables[f.table][1].hash_seed for f in lookups if f.input == name and f.table}
            seeds |= {seed for key, seed in keyed if key == name}
            for seed in sorted(seeds or {0}) if spec.dtype == "string" else [0]:
                self._sources[name, seed] = len(self._sources)
        # Floats that the kernel may never see, because a transform or the stage reads them.
        read_here = {name for t in manifest.transforms for name in t.inputs} | (set(self._inputs) if stage else set())
        finite = {i.name for i in manifest.inputs if i.dtype == "float32" and i.name in read_here}
        # In the order of the sources' numbers: the request's inputs, the stage's outputs, the transforms.
        reads = [
            (
                InputReader(spec, name in looked_up, name in finite),
                [seed for owner, seed in self._sources if owner == name],
            )
            for name, spec in sources.items()
        ]
        self._transforms = Transforms(manifest) if manifest.transforms else None
        # If every row has the same number of ids and no string has to be hashed, the row count gives the size.
        self._plain = not any(i.ragged or i.dtype == "string" for i in manifest.inputs)
        self._row_ids = sum(i.columns or 1 for i in manifest.inputs if i.dtype == "int64")
        self._keys: list[Reading] = [(InputReader(i, False, False), [0]) for i in manifest.inputs if i.name in keys]
        first = len(self._inputs) - len(keys)
        last = first + (len(manifest.stage.outputs) if manifest.stage else 0)
        self._reads, self._staged, self._transformed = reads[:first], reads[first:last], reads[last:]
        user = {f.input for f in user_features(manifest.features)}
        user |= {name for s in manifest.sequences for name in (*s.inputs, *(c.input for c in s.columns))}
        self._user = frozenset(user if USER in manifest.graphs else ())
        self._features = {f.name: row for row, f in enumerate(lookups)}
        self.sequences = {s.name: s for s in manifest.sequences}
        self._events = SequenceColumns(manifest) if manifest.sequences else None
        self._partial: dict[frozenset[str], LeftOut | None] = {}
        self._layouts: dict[BufferLayout, BoundLayout] = {}
        self._specs = sources
        self.entities = [EntityRecords(manifest, e, self._sources) for e in manifest.entities]
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
            if f.kind == "floats" and sources[f.input].ragged:
                kind = pool.KIND_FLOATS
            source = self._sources[f.input, seed]
            self.lookups[row] = (
                kind,
                source,
                max(f.column, 0),
                table,
                COMBINERS[f.combiner].code,
                f.max_length * codes,
                f.offset,
                f.width,
                codes,
            )
            self._scaling[row] = (f.log1p, f.mean, f.scale, np.inf if f.input in staged else pool.LARGEST)
        self._rows_read: StageRows | None = None
        if self.stage is not None and manifest.stage_lookups:
            made = {name: self._sources[name, 0] for name in staged}
            first = sum(len(manifest.rows_of(lookup)) for lookup in manifest.stage_lookups)
            self._rows_read = StageRows(manifest, self.stage, made, self.lookups[len(self.lookups) - first :])
        own = late_inputs(manifest, self._sources)
        self._late_names = frozenset(name for late in own for name in late.inputs)
        self.late: list[LateValues] = [*self.entities, *([self._rows_read] if self._rows_read else []), *own]
        firsts = self.lookups[[self._features[s.columns[0].name] for s in manifest.sequences]]
        self._histories: list[tuple[int, int]] = firsts[:, [pool.SOURCE, pool.CODES]].tolist()

    def bind_inputs(
        self, inputs: Mapping[str, Column], limits: RequestLimits | None = None, limit: Limit | None = None
    ) -> BoundRequest:
        """Check names, dtypes, shapes and row counts of a request, and turn it into addresses for the kernel.

        Inputs of one row are broadcast to the rows of the others.

        Args:
            inputs: Columns by name.
            limits: Limits of a request; None for inputs that are not a request.
            limit: The time that a stage may take; None for any.

        Raises:
            BadInput: An input is wrong; the message names it, with what was expected and received.
            TooLarge: The request is beyond its limits.
            EndedRun: A stage was not done in time.
        """
        if type(inputs) is PackedColumns and (layout := self._layout(inputs)) is not None:
            rows = layout.rows
            if limits is not None and self._may_exceed(limits, rows, layout.ids):
                self._measure(inputs, limits, self._left_out(inputs))
            start = address_of_bytes(inputs.buffer) + inputs.start
            packed = [word for at, count, stride in layout.sources for word in (start + at, count, stride, 0)]
            used = None if layout.left_out is None else layout.left_out.again()
            return BoundRequest(rows, layout.ids, self._pack(*packed), (inputs.buffer,), layout.user_split, used=used)
        inputs = self.aligned(inputs)
        left = self._left_out(inputs)
        reads, transformed, plain = self._reads, self._transformed, self._plain
        if left is not None:
            reads, transformed, plain = left.reads, left.transforms, left.plain
        if limits is not None and not plain:
            self._measure(inputs, limits, left)
        words: list[int] = []
        keep: list[BoundInput] = []
        rows, ids, user_split = self._read_inputs(reads, inputs, 1, words, keep)
        more = rows * sum(share.ids for share in left.entities) if left is not None else 0
        if limits is not None and plain and self._may_exceed(limits, rows, ids + more):
            self._measure(inputs, limits, left)
        later, cells = self._rows_read, 0
        if self.stage is not None:
            cells = self.stage.check(inputs, rows, limits)
        if later is not None:
            for stride in later.strides.values():
                words += (address(NOTHING.values), 0, min(LEFT_OUT, -stride), 0)
                keep.append(NOTHING)
        elif self.stage is not None:
            staged = self.stage.run(inputs, rows, limit)
            rows, more, same = self._read_inputs(self._staged, staged, rows, words, keep)
            ids, user_split = ids + more, user_split and same
        if self._transforms is not None:
            made = self._transforms.run(inputs, left.names if left is not None else frozenset())
            rows, more, same = self._read_inputs(transformed, made, rows, words, keep)
            ids, user_split = ids + more, user_split and same
        if self._keys:
            rows, _, _ = self._read_inputs(self._sent_keys(inputs), inputs, rows, [], keep)
        if left is None:
            self._check_histories(limits, rows, user_split)
            columns = inputs if later is not None else None
            return BoundRequest(
                rows, ids, self._pack(*words), keep, user_split, columns=columns, limit=limit, cells=cells
            )
        whole, sources = left.words.copy(), [NOTHING] * len(left.words)
        whole[left.sent] = np.array(words, np.int64).reshape(-1, pool.INPUT_FIELDS)
        for number, source in zip(left.sent, keep):
            sources[number] = source
        unknown, keys = [], []
        for share in left.entities:
            count, _ = size_of(inputs[share.key.name], 1)
            keys.append((share.entity, count))
            whole[share.sources, 1] = count
            ids += count * share.ids
            user_split = user_split and (count == 1 or not share.of_user)
            if share.unknown != DEFAULT:
                flags = np.zeros(count, np.int64)
                whole[share.sources, pool.INPUT_FIELDS - 1] = address(flags)
                unknown.append((share.unknown, flags))
        self._check_histories(limits, rows, user_split)
        used = UsedRecords(left.names, keys) if keys else None
        return BoundRequest(rows, ids, whole.tobytes(), sources, user_split, unknown, used=used)

    def aligned(self, inputs: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return a request's inputs as they are bound: each sequence as lists of equal lengths, cut to its max_length.

        Args:
            inputs: Columns by name.

        Raises:
            BadInput: A sequence's columns do not belong together.
        """
        return inputs if self._events is None else self._events.aligned(inputs)

    def _check_histories(self, limits: RequestLimits | None, rows: int, user_split: bool) -> None:
        if limits is not None and self._events is not None:
            self._events.check_limit(limits, 1 if user_split else rows)

    def _left_out(self, inputs: Mapping[str, Column]) -> LeftOut | None:
        """Return how requests with these inputs are read; None if nothing that the plan reads is left out.

        Raises BadInput for an unknown input, and for a missing one that no entity fills.
        """
        if inputs.keys() == self._inputs.keys():
            return None
        names = frozenset(inputs)
        if names not in self._partial:
            if len(self._partial) >= MAX_LAYOUTS:
                self._partial.clear()
            self._partial[names] = self._reading_of(names)
        return self._partial[names]

    def _reading_of(self, names: frozenset[str]) -> LeftOut | None:
        left: set[str] = set(self._late_names - names)
        shares: list[EntityShare] = []
        for entity in self.entities:
            missing = entity.left_out(names)
            if missing:
                sources = [n for (name, _), n in self._sources.items() if name in missing]
                ids = sum(entity.ids[name] for name in missing)
                of_user = not self._user.isdisjoint(missing)
                share = EntityShare(entity, self._inputs[entity.key], sources, ids, of_user, entity.unknown)
                shares.append(share)
            elif entity.key not in names and entity.key in self._fillers:
                missing = frozenset([entity.key])
            left |= missing
        self._check_names(names | left & self._inputs.keys())
        if not left:
            return None
        reads, transforms = ([r for r in some if r[0].name not in left] for some in (self._reads, self._transformed))
        words = np.zeros((len(self._sources), pool.INPUT_FIELDS), np.int64)
        sent = []
        for (name, _), n in self._sources.items():
            if name in left:
                values = next((entity.counts[name] for entity in self.entities if name in entity.counts), 0)
                words[n] = address(NOTHING.values), 1, min(LEFT_OUT, -values), 0
            else:
                sent.append(n)
        plain = not any(read.looks_at_values for read, _ in reads)
        return LeftOut(reads, transforms, frozenset(left), sent, words, shares, plain)

    def _may_exceed(self, limits: RequestLimits, rows: int, ids: int) -> bool:
        """Return whether a request whose size follows from its rows may be beyond its limits."""
        return rows > limits.max_rows or max(ids, rows * self._row_ids) > limits.max_ids

    def _measure(self, inputs: Mapping[str, Column], limits: RequestLimits, left: LeftOut | None = None) -> None:
        """Raise TooLarge for a request beyond its limits, without reading a value."""
        extent = RequestSize(limits)
        for read, _ in (*(self._reads if left is None else left.reads), *self._sent_keys(inputs)):
            extent.add(read.spec, *size_of(inputs[read.name], read.width))
        for share in left.entities if left is not None else ():
            rows, _ = size_of(inputs[share.key.name], 1)
            extent.add(share.key, rows, rows * share.ids)

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
        if layout is None and self.stage is None and self._transforms is None and self._events is None:
            left = self._left_out(inputs)
            if any(read.looks_at_values for read, _ in (self._reads if left is None else left.reads)):
                return None
            if left is not None and any(share.unknown != DEFAULT for share in left.entities):
                return None
            bound = self.bind_inputs({name: inputs[name] for name in inputs})
            offsets = {place.name: place.offset for place in places.columns}
            words = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS).tolist()
            found = tuple(
                (offsets.get(name, 0), count, stride) for (name, _), (_, count, stride, _) in zip(self._sources, words)
            )
            layout = BoundLayout(bound.rows, bound.ids, found, bound.user_split, bound.used)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[places] = layout
        return layout

    def _sent_keys(self, inputs: Mapping[str, Column]) -> list[Reading]:
        """Return the keys that the model does not read and the request has."""
        return [reading for reading in self._keys if reading[0].name in inputs]

    def _check_names(self, inputs: Collection[str]) -> None:
        for name in inputs:
            if name not in self._inputs:
                raise BadInput(f"input {name[:64]!r} is not one of the model's: {', '.join(self._inputs)}")
        for read, _ in self._reads:
            if read.name not in inputs:
                raise missing_input(read.name, self._fillers, inputs)

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
            FreshetError: The stage refuses a request, or was not done in time.
        """
        inputs, kept = inputs_of(bound), None
        if self.late:
            kept = fill_left_out(self.late, tables, epoch, bound, inputs, spans, counts)
        if pool.run(tables, self.plan, self.scaling, inputs, spans, epoch, out, counts):
            refusals = filter(None, map(self.non_finite_error, bound))
            raise next(refusals, None) or NonFiniteInput("inputs: expected finite numbers (or NaN)")
        if kept is not None and kept.refusal is not None:
            raise kept.refusal

    def filled(self, tables: NDArray[np.int64], epoch: int, bound: BoundRequest) -> BoundRequest:
        """Return a request with the values of its left-out sources, as of an epoch.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            bound: The bound request.

        Raises:
            FreshetError: The stage refuses the request, or was not done in time.
        """
        inputs, counts = inputs_of([bound]), np.zeros((len(tables), 2), np.int64)
        kept, refusal = fill_left_out(self.late, tables, epoch, [bound], inputs, np.array([[0, bound.rows]]), counts)
        if refusal is not None:
            raise refusal
        if not kept:
            return bound
        specs = {number: self._specs[name] for (name, _), number in self._sources.items()}
        # Sources that no feature reads stay left out.
        keep = [
            NOTHING if words[2] <= LEFT_OUT else bound_input(specs[number], words)
            for number, words in enumerate(inputs[0].tolist())
        ]
        return BoundRequest(bound.rows, bound.ids, inputs.tobytes(), [*keep, bound, kept], bound.user_split)

    def non_finite_error(self, bound: BoundRequest) -> NonFiniteInput | None:
        """Return the error of a request with a float that is infinite or becomes so when scaled; else None."""
        (inputs,) = self._sent([bound])
        feature, row, column = pool.find_non_finite(self.lookups, self._scaling, inputs)
        if feature < 0:
            return None
        number = self.lookups[feature, pool.SOURCE]
        name = first_of(name for (name, _), n in self._sources.items() if n == number)
        values, _, stride, splits = inputs[number].tolist()
        first = int(read_word(splits + 8 * row).value) if splits else row * stride
        return _non_finite_error(name, c_float.from_address(values + 4 * (first + column)).value, row, column)

    def _sent(self, bound: Sequence[BoundRequest]) -> NDArray[np.int64]:
        """Return the inputs of requests, those left out without rows: what fills them has no number that is refused."""
        inputs = inputs_of(bound)
        if self.late:
            inputs[inputs[:, :, 2] <= LEFT_OUT, 1] = 0
        return inputs

    def _late_of(self, plan: NDArray[np.int64]) -> list[LateValues]:
        """Return what fills inputs of some features with each batch."""
        return [late for late in self.late if late.feeds(plan[:, pool.SOURCE])]

    def _some(self, rows: Any) -> Pooling:
        """Return the pooling of some features, in the columns that fill() writes them to."""
        plan = self.plan[rows]
        return Pooling(plan, self.scaling[rows], self._late_of(plan))

    def largest(self, bound: BoundRequest) -> float:
        """Return the magnitude of a request's largest float, after scaling if it is scaled; 0 without floats."""
        (inputs,) = self._sent([bound])
        return float(pool.largest(self.lookups, self._scaling, inputs))

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
            late = source[2] <= LEFT_OUT
            length = _length(source) if source[3] or late else int(tables[row] >= 0)
            length = min(length, most) if most > 0 else length
            # A list that a record fills has no more values than the record, and is read with its batch.
            if length > max_ids and not late and COMBINER_OF_CODE[int(self.plan[row, pool.COMBINER])].merge:
                parts += self._parts(bound, words, row, length, max_ids)
                continue
            if together and count + length > max_ids:
                parts.append(PoolingStep(self._some(together), bound))
                together, count = [], 0
            together.append(row)
            count += length
        if together:
            parts.append(PoolingStep(self._some(together), bound))
        return RowInvariants(ids, parts, self._some(~row_invariants))

    def _parts(
        self, bound: BoundRequest, words: NDArray[np.int64], row: int, length: int, max_ids: int
    ) -> Iterator[PoolingStep]:
        """Yield the steps that sum one feature's list: in order, so bit-identical to summing it at once."""
        scaling, plan = self.scaling[row : row + 1], self.plan[row : row + 1].copy()
        fields = [pool.SOURCE, pool.COMBINER, pool.OFFSET, pool.WIDTH, pool.CODES]
        source, code, offset, width, codes = plan[0, fields].tolist()
        combiner = COMBINER_OF_CODE[code]
        plan[0, [pool.COMBINER, pool.MAX_LENGTH]] = COMBINERS[combiner.merge].code, 0
        for start in range(0, length, max_ids):
            splits, own = np.array([start, min(start + max_ids, length)], np.int64), words.copy()
            own[source, 3] = address(splits)
            divisor = combiner.divisor(length // codes) if splits[1] == length else np.float32(1)
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
        return Pooling(plan, self._scaling[rows], self._late_of(plan))

    def places(self, sequence: SequenceEntry, length: int) -> Pooling:
        """Return the pooling of a sequence's columns with so many places each, side by side."""
        pooling = self.pooling([column.name for column in sequence.columns])
        plan, whole = pooling.plan, sequence.max_length
        plan[:, pool.MAX_LENGTH] = plan[:, pool.CODES] * length
        plan[:, pool.WIDTH] = plan[:, pool.WIDTH] // whole * length
        plan[:, pool.OFFSET] = np.cumsum([0, *plan[:-1, pool.WIDTH]])
        return pooling

    def longest_history(self, bound: BoundRequest) -> int:
        """Return the events of the longest history of a request whose user inputs have one row."""
        inputs = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS)
        return max([_length(inputs[source]) // codes for source, codes in self._histories], default=0)

    def source(self, name: str) -> int:
        """Return the number of an input that is no string, among BoundRequest.keep."""
        return self._sources[name, 0]


def _length(words: NDArray[np.int64]) -> int:
    """Return the number of ids in an input's one row; `words` are int64 [4] (kernels.pool's inputs)."""
    _, _, stride, splits = words.tolist()
    # A left-out input has as stride minus the most values of a record, and flags where others have row_splits.
    return int(read_word(splits + 8).value) if splits and stride > LEFT_OUT else abs(int(stride))


def _non_finite_error(name: str, value: float, row: int, column: int) -> NonFiniteInput:
    wanted = "a number that is finite after scaling" if np.isfinite(value) else "finite numbers (or NaN)"
    return NonFiniteInput(f"input {name!r}: expected {wanted}, got {value:.6g} in row {row}, column {column}")
