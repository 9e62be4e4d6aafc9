"""Bind a request: check its named inputs against the manifest, and turn them into addresses for kernels.

Bounds are checked here and only here: kernels trust what bind() returns. The size of a request is checked by shapes
alone, before strings are hashed, transforms computed or a stage run (limits). A float that is infinite is refused here
if a transform or the stage reads it; the others are left to fill() (plan).

A stage is run once on the checked request, and its outputs are checked as clients' inputs are. That takes as long as
the stage does, so callers on an event loop bind such versions elsewhere. A stage that reads rows of tables runs with
each batch instead (stage_rows).

What a request leaves out (processor.package.input_fillers): online features are filled in before; inputs of entities
and of extensions' sections are bound without values, and filled in under the state of the batch (entity_records,
late_values). A key that the model does not read may be absent; one of online features is no source, and only checked.

Threads bind at the same time: how requests of one shape are bound is cached, and may be computed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import BufferLayout, Column, PackedColumns
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import (
    NOTHING,
    BoundLayout,
    BoundRequest,
    UsedRecords,
    address,
    address_of_bytes,
    non_finite_input,
    read_word,
)
from freshet_serving.processor.features.input_reader import BoundInput, Reading, size_of
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.features.sources import Sources
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import DEFAULT, Input, Manifest, missing_input

if TYPE_CHECKING:
    # Loaded for the versions that have them (optional_parts).
    from freshet_serving.processor.features.entity_records import EntityRecords
    from freshet_serving.processor.features.evaluation import Transforms
    from freshet_serving.processor.features.sequences import SequenceColumns
    from freshet_serving.processor.features.stage import Limit
    from freshet_serving.processor.features.stage_runs import StageRuns

MAX_LAYOUTS = 256


class EntityShare(NamedTuple):
    """The inputs that one entity fills for requests.

    Attributes:
        sources: Numbers of the sources that it fills.
        ids: Ids that a row of the key leads to.
        unknown: What a row gets whose key has no record (processor.package.entities.UNKNOWN).
    """

    entity: EntityRecords
    key: Input
    sources: list[int]
    ids: int
    of_user: bool
    unknown: str


class LeftOut(NamedTuple):
    """The reading of requests that leave the same inputs out.

    Attributes:
        reads: The inputs that they have, in the order of their sources.
        transforms: The transforms that are computed for them, in that order.
        sent: Numbers of the sources of `reads` and `transforms`.
        words: int64 [S, INPUT_FIELDS], what the kernel reads (kernels.pool) with stand-ins for what is left out.
        plain: Whether the row count gives the size of what they have.
    """

    reads: list[Reading]
    transforms: list[Reading]
    names: frozenset[str]
    sent: list[int]
    words: NDArray[np.int64]
    entities: list[EntityShare]
    plain: bool


class OptionalParts(NamedTuple):
    """Binders of the parts of a request that only some models have; None or empty for the others.

    `late_strides` are the values of a row by source that the stage fills with each batch; None if it runs at once.
    `late_names` are inputs that extensions fill with each batch.
    """

    stage: StageRuns | None
    late_strides: Mapping[int, int] | None
    transforms: Transforms | None
    events: SequenceColumns | None
    entities: Sequence[EntityRecords]
    late_names: frozenset[str]


class RequestBinder:
    """Binds the requests of one model."""

    def __init__(self, manifest: Manifest, sources: Sources, parts: OptionalParts) -> None:
        self._stage, self._late_strides, self._transforms, self._events, self._entities, self._late_names = parts
        self._sources, self._fillers, self._histories = sources, manifest.fillers, manifest.sequences
        self._inputs = {i.name: i for i in manifest.inputs}
        # If every row has the same number of ids and no string has to be hashed, the row count gives the size.
        self._plain = not any(i.ragged or i.dtype == "string" for i in manifest.inputs)
        self._row_ids = sum(i.columns or 1 for i in manifest.inputs if i.dtype == "int64")
        self._partial: dict[frozenset[str], LeftOut | None] = {}
        self._layouts: dict[BufferLayout, BoundLayout] = {}
        self._pack = Struct(f"={len(sources.numbers) * pool.INPUT_FIELDS}q").pack

    def bind(
        self, inputs: Mapping[str, Column], limits: RequestLimits | None = None, limit: Limit | None = None
    ) -> BoundRequest:
        """Check and bind a request; arguments and errors as of SparsePlan.bind_inputs()."""
        if type(inputs) is PackedColumns and (layout := self._layout(inputs)) is not None:
            return self._bind_packed(inputs, layout, limits)
        inputs = self.aligned(inputs)
        omission = self._left_out(inputs)
        reads, transformed, plain = self._sources.sent, self._sources.computed, self._plain
        if omission is not None:
            reads, transformed, plain = omission.reads, omission.transforms, omission.plain
        if limits is not None and not plain:
            self._measure(inputs, limits, omission)
        words: list[int] = []
        keep: list[BoundInput] = []
        rows, ids, user_split = self._read_inputs(reads, inputs, 1, words, keep)
        more_ids = rows * sum(share.ids for share in omission.entities) if omission is not None else 0
        if limits is not None and plain and self._may_exceed(limits, rows, ids + more_ids):
            self._measure(inputs, limits, omission)
        late, cells = self._late_strides, 0
        if self._stage is not None:
            cells = self._stage.check(inputs, rows, limits)
        if late is not None:
            for stride in late.values():
                words += (address(NOTHING.values), 0, stride, 0, pool.BY_STAGE)
                keep.append(NOTHING)
        elif self._stage is not None:
            staged = self._stage.run(inputs, rows, limit)
            rows, more_ids, same = self._read_inputs(self._sources.staged, staged, rows, words, keep)
            ids, user_split = ids + more_ids, user_split and same
        if self._transforms is not None:
            computed = self._transforms.run(inputs, omission.names if omission is not None else (), limits)
            rows, more_ids, same = self._read_inputs(transformed, computed, rows, words, keep)
            ids, user_split = ids + more_ids, user_split and same
        if self._sources.keys:
            rows, _, _ = self._read_inputs(self._sent_keys(inputs), inputs, rows, [], keep)
        if omission is not None:
            return self._bind_left_out(inputs, limits, omission, BoundRequest(rows, ids, b"", keep, user_split), words)
        self._check_histories(limits, rows, user_split)
        columns = inputs if late is not None else None
        return BoundRequest(rows, ids, self._pack(*words), keep, user_split, columns=columns, limit=limit, cells=cells)

    def aligned(self, inputs: Mapping[str, Column]) -> Mapping[str, Column]:
        """Align the sequences; see SparsePlan.aligned()."""
        return inputs if self._events is None else self._events.aligned(inputs)

    def _bind_packed(self, inputs: PackedColumns, layout: BoundLayout, limits: RequestLimits | None) -> BoundRequest:
        rows = layout.rows
        if limits is not None and self._may_exceed(limits, rows, layout.ids):
            self._measure(inputs, limits, self._left_out(inputs))
        start = address_of_bytes(inputs.buffer) + inputs.start
        words = [
            word for at, count, stride, filler in layout.sources for word in (start + at, count, stride, 0, filler)
        ]
        used = None if layout.left_out is None else layout.left_out.again()
        return BoundRequest(rows, layout.ids, self._pack(*words), (inputs.buffer,), layout.user_split, used=used)

    def _bind_left_out(
        self,
        inputs: Mapping[str, Column],
        limits: RequestLimits | None,
        omission: LeftOut,
        sent: BoundRequest,
        words: list[int],
    ) -> BoundRequest:
        """Return a bound request with the sources that it leaves out, between those of `sent`, which has no words."""
        rows, ids, user_split = sent.rows, sent.ids, sent.user_split
        all_words, sources = omission.words.copy(), [NOTHING] * len(omission.words)
        all_words[omission.sent] = np.array(words, np.int64).reshape(-1, pool.INPUT_FIELDS)
        for number, source in zip(omission.sent, sent.keep):
            sources[number] = source
        unknown, keys = [], []
        for share in omission.entities:
            count, _ = size_of(inputs[share.key.name], 1)
            keys.append((share.entity, count))
            all_words[share.sources, pool.ROWS] = count
            ids += count * share.ids
            user_split = user_split and (count == 1 or not share.of_user)
            if share.unknown != DEFAULT:
                flags = np.zeros(count, np.int64)
                all_words[share.sources, pool.FLAGS] = address(flags)
                unknown.append((share.unknown, flags))
        self._check_histories(limits, rows, user_split)
        used = UsedRecords(omission.names, keys) if keys else None
        return BoundRequest(rows, ids, all_words.tobytes(), sources, user_split, unknown, used=used)

    def _check_histories(self, limits: RequestLimits | None, rows: int, user_split: bool) -> None:
        if limits is not None and self._events is not None:
            self._events.check_limit(limits, 1 if user_split else rows)

    def _left_out(self, inputs: Mapping[str, Column]) -> LeftOut | None:
        """Return how requests with these inputs are read; None if nothing is left out. Raises BadInput."""
        if inputs.keys() == self._inputs.keys():
            return None
        names = frozenset(inputs)
        if names not in self._partial:
            if len(self._partial) >= MAX_LAYOUTS:
                self._partial.clear()
            self._partial[names] = self._reading_of(names)
        return self._partial[names]

    def _reading_of(self, names: frozenset[str]) -> LeftOut | None:
        fillers = dict.fromkeys(self._late_names - names, pool.BY_EXTENSION)
        numbers, strides = self._sources.numbers, dict[str, int]()
        shares: list[EntityShare] = []
        for entity in self._entities:
            missing = entity.left_out(names)
            if missing:
                sources = [n for (name, _), n in numbers.items() if name in missing]
                ids = sum(entity.ids[name] for name in missing)
                of_user = not self._sources.user.isdisjoint(missing)
                share = EntityShare(entity, self._inputs[entity.key], sources, ids, of_user, entity.unknown)
                shares.append(share)
                fillers |= dict.fromkeys(missing, pool.BY_ENTITY)
                strides |= {name: entity.counts[name] for name in missing}
            elif entity.key not in names and entity.key in self._fillers:
                fillers.setdefault(entity.key, pool.UNREAD)
        self._check_names(names | fillers.keys() & self._inputs.keys())
        if not fillers:
            return None
        reads, transforms = (
            [r for r in readings if r[0].name not in fillers]
            for readings in (self._sources.sent, self._sources.computed)
        )
        words = np.zeros((len(numbers), pool.INPUT_FIELDS), np.int64)
        sent = []
        for (name, _), n in numbers.items():
            if name in fillers:
                words[n] = address(NOTHING.values), 1, max(1, strides.get(name, 0)), 0, fillers[name]
            else:
                sent.append(n)
        plain = not any(read.looks_at_values for read, _ in reads)
        return LeftOut(reads, transforms, frozenset(fillers), sent, words, shares, plain)

    def _may_exceed(self, limits: RequestLimits, rows: int, ids: int) -> bool:
        """Report whether a request whose size follows from its rows may be beyond its limits."""
        return rows > limits.max_rows or max(ids, rows * self._row_ids) > limits.max_ids

    def _measure(self, inputs: Mapping[str, Column], limits: RequestLimits, omission: LeftOut | None = None) -> None:
        """Raise TooLarge for a request beyond its limits, without reading a value."""
        extent = RequestSize(limits)
        for read, _ in (*(self._sources.sent if omission is None else omission.reads), *self._sent_keys(inputs)):
            extent.add(read.spec, *size_of(inputs[read.name], read.width))
        for share in omission.entities if omission is not None else ():
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
        """Add the sources of inputs; return all rows so far, these ids, and whether the user's inputs have one row."""
        user, sent = self._sources.user, pool.SENT
        # As address() has it: a call for each source costs a twentieth of what binding does.
        word_at, head = read_word, object.__basicsize__
        ids, user_split = 0, bool(user)
        for read, seeds in reads:
            for seed in seeds:
                source = read(inputs[read.name], seed)
                values, count, stride, splits = source
                if read.finite and np.isinf(values).any():
                    place = int(np.isinf(values).argmax())
                    raise non_finite_input(read.name, values.reshape(-1)[place], *divmod(place, stride))
                keep.append(source)
                start = word_at(id(values) + head).value
                words += (start, count, stride, 0 if splits is None else address(splits), sent)
                if count != 1:
                    if rows not in (1, count):
                        raise BadInput(f"input {read.name!r}: expected {rows} rows (or 1), got {count}")
                    rows = count
                    user_split = user_split and read.name not in user
                if read.looked_up:
                    ids += values.size
        return rows, ids, user_split

    def _layout(self, inputs: PackedColumns) -> BoundLayout | None:
        """Return the binding for this buffer layout, whatever the values; None if bind() has to read values."""
        places = inputs.places
        layout = self._layouts.get(places)
        if layout is None and self._stage is None and self._transforms is None and self._events is None:
            omission = self._left_out(inputs)
            if any(read.looks_at_values for read, _ in (self._sources.sent if omission is None else omission.reads)):
                return None
            if omission is not None and any(share.unknown != DEFAULT for share in omission.entities):
                return None
            bound = self.bind({name: inputs[name] for name in inputs})
            offsets = {place.name: place.offset for place in places.columns}
            words = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS).tolist()
            sources = tuple(
                (offsets.get(name, 0), count, stride, filler)
                for (name, _), (_, count, stride, _, filler) in zip(self._sources.numbers, words)
            )
            layout = BoundLayout(bound.rows, bound.ids, sources, bound.user_split, bound.used)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[places] = layout
        return layout

    def _sent_keys(self, inputs: Mapping[str, Column]) -> list[Reading]:
        return [reading for reading in self._sources.keys if reading[0].name in inputs]

    def _check_names(self, inputs: Collection[str]) -> None:
        for name in inputs:
            if name not in self._inputs:
                raise BadInput(f"input {name[:64]!r} is not one of the model's: {', '.join(self._inputs)}")
        for read, _ in self._sources.sent:
            if read.name not in inputs:
                raise missing_input(read.name, self._fillers, inputs, self._histories)
