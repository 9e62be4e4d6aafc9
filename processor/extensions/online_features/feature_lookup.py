"""Fill the inputs that requests of one version leave out, from the online stores of this process.

Invariants
- What a request sends wins: its inputs are passed on as they are, and only absent ones are added.
- A request makes at most one read, of all groups together, for the keys of what it leaves out.
- No state of a store fails a request: what a store does not give becomes the training default, and its status is kept.
  A request fails only by what it sends, or if this server has no store of that name.
- Columns of one sequence have lists of one length. Where lists of the store differ from one another they become empty;
  where they differ from a list that was sent, they become as many missing values.
- A key that is the same in all rows is looked up once and fills inputs of one row: a user's features stay the user's.

It is an InputLookup (processor.features.input_lookup), which says from which threads it may be called.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, Ragged, Strings, take_rows
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.extensions.online_features.online_columns import OnlineColumn, OnlineColumns, Status
from freshet_serving.processor.extensions.online_features.online_store import OpenStore
from freshet_serving.processor.extensions.online_features.reader import OnlineFeatures, RequestKeys
from freshet_serving.processor.extensions.online_features.section import ONLINE, groups_of
from freshet_serving.processor.features.input_lookup import FilledInputs
from freshet_serving.processor.features.sequences import is_sound, unpack
from freshet_serving.processor.package import Manifest, SequenceEntry
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.versions.erasure import ErasedUser

log = logging.getLogger("freshet.features")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Inputs that a request leaves out, none if it is complete; no other lookup than the one that found it fills it."""

    lookup: FeatureLookup
    names: list[str]
    keys: RequestKeys | None


class FeatureLookup:
    """Fills inputs of one version's requests. Thread-safe."""

    def __init__(self, manifest: Manifest, stores: Mapping[str, OpenStore], clock: Clock) -> None:
        """Prepare the lookup in stores that stay the caller's; one that is not there is missed by who needs it."""
        every = groups_of(manifest)
        features = {f.input: f for group in every for f in group.features}
        self._specs = {i.name: i for i in manifest.inputs if i.name in features}
        self._keys = {n: f.keys for n, f in manifest.fillers.items() if f.kind == ONLINE}
        self._blank = {name for name, feature in features.items() if feature.default is None}
        self._sequences = manifest.sequences
        self._stores = {f.input: group.store for group in every for f in group.features}
        groups = [group for group in every if group.store in stores]
        self._closed = {name: store for name, store in self._stores.items() if store not in stores}
        for store in sorted(set(self._closed.values())):
            log.warning(
                "%s version %d: this server has no online store %r: requests have to send %s (--online-store %s=URL)",
                manifest.model, manifest.version, store,
                ", ".join(name for name, of in self._closed.items() if of == store)[:200], store,
            )  # fmt: skip
        defaults = {name: f.default for name, f in features.items() if f.default is not None}
        unsigned = frozenset(i.name for i in manifest.inputs if i.declared == "uint64")
        where = f"{manifest.model} version {manifest.version}"
        self._features = OnlineFeatures(groups, stores, defaults, clock, unsigned, where)
        self._model = manifest.model
        KEEPERS.add(self)

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        return {"online_features": self._features.erase(user)} if user.model == self._model else {}

    def find(self, inputs: Mapping[str, Column]) -> LeftOut:
        """Return what a request leaves out; raise BadInput if a key is not one, or a store is not this server's."""
        missing = [name for name, keys in self._keys.items() if name not in inputs and all(k in inputs for k in keys)]
        if not missing:
            return LeftOut(self, missing, None)
        for name in missing if self._closed else ():
            if name in self._closed:
                store = self._closed[name]
                raise BadInput(
                    f"input {name!r} is missing: expected it, because this server has no online store {store!r} "
                    f"(freshet serve --online-store {store}=redis://HOST:PORT)"
                )
        entities = _entities(inputs, dict.fromkeys(key for name in missing for key in self._keys[name]))
        return LeftOut(self, missing, self._features.keys_of(entities))

    def peek(self, inputs: Mapping[str, Column], left_out: LeftOut) -> FilledInputs | None:
        """Add what a request leaves out, from memory; return None if a store would have to be asked."""
        if left_out.keys is None:
            return FilledInputs(inputs, {}, {})
        columns = self._features.peek(left_out.keys)
        return None if columns is None else self._filled(inputs, left_out.names, columns)

    def fill(
        self, inputs: Mapping[str, Column], end_s: float = math.inf, left_out: LeftOut | None = None
    ) -> FilledInputs:
        """Add what a request leaves out, until its deadline on the clock's now_s().

        Raises BadInput as find() does, which is called unless `left_out` is its result.
        """
        if left_out is None or left_out.lookup is not self:
            left_out = self.find(inputs)
        if left_out.keys is None:
            return FilledInputs(inputs, {}, {})
        return self._filled(inputs, left_out.names, self._features.read(left_out.keys, end_s))

    def _filled(self, inputs: Mapping[str, Column], names: list[str], online: OnlineColumns) -> FilledInputs:
        columns = {name: self._input(name, online.columns[name], name in online.defaulted) for name in names}
        reasons = {name: why for name, why in online.defaulted.items() if name in columns}
        filled = {**inputs, **columns}
        for sequence in self._sequences:
            if columns.keys().isdisjoint(sequence.inputs):
                continue
            unpack(filled, sequence)
            for name, misfits in _align(sequence, filled, columns).items():
                columns[name] = filled[name]
                if rows := int(np.count_nonzero(misfits & (online.columns[name].status == Status.PRESENT))):
                    self._features.count_misfits(name, rows)
                reasons.setdefault(name, Status.DAMAGED.name.lower())
        return FilledInputs(filled, columns, reasons)

    def counted(self) -> Snapshot:
        return self._features.counted()

    def _input(self, name: str, column: OnlineColumn, defaulted: bool) -> Column:
        """Return a feature's values in the type of the input that it fills; `defaulted`: some are the default."""
        values, spec = column.values, self._specs[name]
        if isinstance(values, Strings):
            return values
        if isinstance(values, Ragged):
            return (
                values
                if isinstance(values.values, Strings)
                else Ragged(values.values.astype(spec.dtype), values.row_splits)
            )
        numbers = values.astype(spec.dtype, copy=defaulted)
        if defaulted and spec.dtype == "float32" and name in self._blank:
            # As in training, where a float that is missing is NaN.
            numbers[column.status != Status.PRESENT] = np.nan
        return numbers


def _align(
    sequence: SequenceEntry, filled: dict[str, Column], looked_up: Collection[str]
) -> dict[str, NDArray[np.bool_]]:
    """Give the looked-up columns of a sequence, in `filled`, lists of one length.

    Return for each that has changed, as bool [its rows], which of the store's lists do not fit.
    """
    lists = {
        name: column
        for name in sequence.inputs
        if isinstance(column := filled.get(name), Ragged) and (name in looked_up or is_sound(column))
    }
    sent = [np.diff(column.row_splits) for name, column in lists.items() if name not in looked_up]
    counts = {name: np.diff(column.row_splits) for name, column in lists.items() if name in looked_up}
    if sent:
        # One user's list serves all rows, as it does alone; a request that sends lists of two lengths is refused later.
        lengths = sent[0]
        fitting = {n: each == lengths for n, each in counts.items() if len(each) in (1, len(lengths))}
    elif len({len(each) for each in counts.values()}) == 1:
        alike = np.logical_and.reduce([each == first_of(counts.values()) for each in counts.values()])
        lengths = np.where(alike, first_of(counts.values()), 0)
        fitting = dict.fromkeys(counts, alike)
    else:
        return {}
    changed = {}
    for name, fits in fitting.items():
        if not fits.all() or len(fits) != len(counts[name]):
            filled[name] = _refitted(lists[name], lengths, fits)
            changed[name] = ~(fits if len(fits) == len(counts[name]) else fits.all(keepdims=True))
    return {name: misfits for name, misfits in changed.items() if misfits.any()}


def _refitted(column: Ragged, lengths: NDArray[np.int64], fits: NDArray[np.bool_]) -> Ragged:
    """Return lists of given lengths, int64 [n]: the column's, or one for all rows, where they fit, else missing."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    starts = np.broadcast_to(column.row_splits[:-1], len(lengths))
    places = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)
    places[np.repeat(~fits, lengths)] = len(column.values)
    return Ragged(take_rows(_with_missing(column.values), places), splits)


def _with_missing(values: NDArray[Any] | Strings) -> NDArray[Any] | Strings:
    """Return the values and one more, which is missing as in training: NaN, "" or 0."""
    if isinstance(values, Strings):
        return Strings(values.data, np.append(values.offsets, values.offsets[-1]))
    missing: Any = np.nan if values.dtype.kind == "f" else 0
    return np.append(values, values.dtype.type(missing))


def _entities(inputs: Mapping[str, Column], keys: Mapping[str, None]) -> dict[str, Column]:
    """Return the keys of a request with one row for each of its entities: one, if all rows have the same."""
    columns = {key: inputs[key] for key in keys}
    for key, column in columns.items():
        if isinstance(column, Ragged):
            raise BadInput(f"input {key!r}: expected one value per row, got ragged rows")
        if not isinstance(column, Strings):
            if column.dtype.kind not in "iu" or column.size != len(column):
                raise BadInput(f"input {key!r}: expected one integer in each row")
            columns[key] = column.reshape(-1)
        if not len(column):
            raise BadInput(f"input {key!r}: expected at least one row, got none")
    if all(_is_constant(column) for column in columns.values()):
        return {key: _rows(column, 1) for key, column in columns.items()}
    rows = max(map(len, columns.values()))
    return {key: _rows(column, rows) for key, column in columns.items()}


def _is_constant(column: Column) -> bool:
    if isinstance(column, Strings):
        return len(column) == 1 or len(set(column.tolist())) == 1
    assert isinstance(column, np.ndarray), "no lists are keys"
    return len(column) == 1 or (bool((column == column[:1]).all()) and len(column) > 0)


def _rows(column: Column, rows: int) -> Column:
    if len(column) == rows:
        return column
    if isinstance(column, Strings):
        values = column.tolist()
        return Strings.of(values * rows if len(values) == 1 else values[:rows])
    assert isinstance(column, np.ndarray), "no lists are keys"
    repeated: NDArray[Any] = np.repeat(column, rows) if len(column) == 1 else column[:rows]
    return repeated
