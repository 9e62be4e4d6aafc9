"""Cross the columns of a request: an id for each combination of a row's values (processor.kernels.crosses).

Crosses of the same two columns, each with other events of one of them, are made by one call: with `decay` a cross over
a history has as many parts as its events have distances. The ids are those that cross() makes of each part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.bound_request import address
from freshet_serving.processor.features.flat_columns import FlatColumn, check_count, named, rows_of
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.kernels import crosses
from freshet_serving.processor.kernels.string_hashes import fingerprints
from freshet_serving.processor.package import MAX_CROSSED, Transform

ALL_VALUES = (0, 1 << 62)
"""The window of a column that is crossed as a whole."""
FEW_EVENTS = 64
"""Events of a list up to which comparing each with a row's value takes less than a search among sorted ones."""


class PairCrosses(NamedTuple):
    """Crosses of the same two columns, each with a window of one of them, `windowed` (0 or 1).

    `windows` are int64 [P, 2], as the integers of `newest`; of ALL_VALUES for a cross without.
    """

    first: Transform
    names: list[str]
    inputs: tuple[str, str]
    windowed: int
    windows: NDArray[np.int64]

    def run(
        self, pair: Sequence[FlatColumn], crossed: int, limits: RequestLimits | None
    ) -> tuple[list[FlatColumn], int]:
        """Return the crosses' columns, and `crossed` with the ids that they make of lists; BadInput or TooLarge."""
        t, (first, second) = self.first, pair
        rows, ragged = rows_of(t, pair), first.splits is not None or second.splits is not None
        bounds = [(0 if f.splits is None else address(f.splits), f.width, f.rows) for f in pair]
        if ragged:
            ends = np.empty((len(self.names), rows + 1), np.int64)
            total, most = crosses.pair_ends(*bounds[0], *bounds[1], self.windows, self.windowed, ends)
            if limits is not None:
                crossed = within_limit(t, crossed + total, limits)
            counts: list[int] = ends[:, -1].tolist()
        else:
            windowed, other = pair[self.windowed].width, pair[1 - self.windowed].width
            pairs = [min(max(windowed - skip, 0), window) * other for skip, window in self.windows.tolist()]
            most, counts = max(pairs), [rows * count for count in pairs]
            total = sum(counts)
        if most > MAX_CROSSED:
            raise BadInput(f"{named(t)}: expected at most {MAX_CROSSED} crossed values per row")
        check_count(t, max(counts))
        values = [_hashed(f) for f in pair]
        columns = [(address(v), len(v), *bound) for v, bound in zip(values, bounds)]
        mixed, ids = np.empty(sum(map(len, values)), np.uint64), np.empty(total, np.int64)
        buckets, key = map(np.uint64, t.integers)
        crosses.cross_pairs(*columns[0], *columns[1], self.windows, self.windowed, rows, buckets, key, mixed, ids)
        flat, start = [], 0
        for n, count in enumerate(counts):
            part_ids = ids[start : start + count]
            flat.append(FlatColumn(part_ids, rows, 1, ends[n]) if ragged else FlatColumn(part_ids, rows, count // rows))
            start += count
        return flat, crossed


def pair_crosses(transforms: Sequence[Transform], read: Collection[str]) -> tuple[dict[str, PairCrosses], set[str]]:
    """Return the crosses of two columns by the name of each group's first, and the transforms that need no run.

    These are the other crosses of a group, and windows of a column that nothing but such crosses reads; features read
    the columns `read`.
    """
    windows = {t.name: t for t in transforms if t.op == "newest"}
    replaced: set[str] = set()
    groups: dict[Any, list[tuple[Transform, tuple[int, int]]]] = {}
    for t in transforms:
        if t.op == "cross" and len(t.inputs) == 2:
            at = [n for n, name in enumerate(t.inputs) if name in windows]
            inputs, windowed, window = list(t.inputs), 0, ALL_VALUES
            if len(at) == 1:
                (windowed,) = at
                window_of = windows[inputs[windowed]]
                replaced.add(window_of.name)
                inputs[windowed], window = window_of.inputs[0], (window_of.integers[0], window_of.integers[1])
            groups.setdefault((*inputs, windowed, *t.integers), []).append((t, window))
    pairs: dict[str, PairCrosses] = {}
    for (first, second, windowed, *_), members in groups.items():
        names = [t.name for t, _ in members]
        ranges = np.array([window for _, window in members], np.int64)
        pairs[names[0]] = PairCrosses(members[0][0], names, (first, second), windowed, ranges)
    needed = {*read, *(name for group in pairs.values() for name in group.inputs)}
    crossed = {name for group in pairs.values() for name in group.names}
    needed |= {name for t in transforms if t.name not in crossed for name in t.inputs}
    return pairs, (replaced - needed) | (crossed - pairs.keys())


def within_limit(t: Transform, crossed: int, limits: RequestLimits) -> int:
    """Return the ids that crosses with lists have made up to `t`; raise TooLarge if a request may not have as many."""
    if crossed > limits.max_ids:
        raise TooLarge(
            f"max_ids: expected at most {limits.max_ids} crossed ids per request, got {crossed} or more, up"
            f" to those of {named(t)}; ask for fewer at once"
        )
    return crossed


def combinations(t: Transform, given: Sequence[FlatColumn]) -> int:
    """Return the number of values that a cross will make."""
    rows_of(t, given)
    # Floats do not overflow, and are exact up to more than any limit.
    each: NDArray[np.float64] = np.ones(1)
    for f in given:
        each = each * np.diff(f.bounds)
    return int(min(each.sum(), 2.0**62))


def cross(t: Transform, given: Sequence[FlatColumn]) -> FlatColumn:
    """Return the ids of a cross of any number of columns; raise BadInput if they would exceed their limit."""
    rows = rows_of(t, given)
    buckets, key = t.integers
    values = [_hashed(f) for f in given]
    starts = np.cumsum([0, *map(len, values[:-1])], dtype=np.int64)
    # Broadcast columns of one row to all rows.
    splits = np.empty((len(given), rows + 1), np.int64)
    if any(f.rows != rows for f in given):
        check_count(t, max(len(f.values) * (rows // f.rows) for f in given))
        given, values = map(list, zip(*(_spread(f, v, rows) for f, v in zip(given, values))))
        starts = np.cumsum([0, *map(len, values[:-1])], dtype=np.int64)
    for i, f in enumerate(given):
        splits[i] = f.bounds
    ends = np.empty(rows + 1, np.int64)
    if not crosses.count(splits, MAX_CROSSED, ends):
        raise BadInput(f"{named(t)}: expected at most {MAX_CROSSED} crossed values per row")
    check_count(t, int(ends[-1]))
    ids = np.empty(int(ends[-1]), np.int64)
    crosses.cross(np.concatenate(values), starts, splits, ends, np.uint64(buckets), np.uint64(key), ids)
    if any(f.splits is not None for f in given):
        return FlatColumn(ids, rows, 1, ends)
    return FlatColumn(ids, rows, len(ids) // max(rows, 1))


def equal(t: Transform, given: Sequence[FlatColumn]) -> FlatColumn:
    """Return how many values of a row's list are the row's value of the other column, as a number of bits.

    A list of one row is compared with each row's value if it is short, else sorted; lists of many are read once.
    """
    (listed, one), rows = given, rows_of(t, given)
    events, value = _hashed(listed), _hashed(one)
    if listed.rows == 1 and len(events) <= FEW_EVENTS:
        counts = np.empty(len(value), np.int64)
        crosses.count_equal(address(events), len(events), address(value), len(value), counts)
    elif listed.rows == 1:
        events = np.sort(events)
        counts = np.searchsorted(events, value, "right") - np.searchsorted(events, value, "left")
    else:
        before = np.zeros(len(events) + 1, np.int64)
        np.cumsum(events == np.repeat(np.broadcast_to(value, rows), np.diff(listed.bounds)), out=before[1:])
        counts = np.diff(before[listed.bounds])
    # frexp has the bits of a whole number as the exponent, exactly.
    return FlatColumn(np.frexp(counts.astype(np.float64))[1].astype(np.int64), len(counts))


def _hashed(f: FlatColumn) -> NDArray[np.uint64]:
    if isinstance(f.values, Strings):
        return fingerprints(f.values)
    values: NDArray[np.uint64] = np.ascontiguousarray(f.values).view(np.uint64)
    return values


def _spread(f: FlatColumn, values: NDArray[np.uint64], rows: int) -> tuple[FlatColumn, NDArray[np.uint64]]:
    if f.rows == rows:
        return f, values
    each = len(values)
    splits = None if f.splits is None else np.arange(rows + 1, dtype=np.int64) * each
    return FlatColumn(f.values, rows, f.width, splits), np.tile(values, rows)
