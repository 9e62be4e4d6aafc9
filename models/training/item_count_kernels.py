"""Count events one by one in the rows of their items (models.training.item_counts has the invariants)."""

# mypy: ignore-errors

import math

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.package.item_rows import KEY_PARTS, SCALE

MOST_COUNTED = 4096.0
"""A later event first halves the counts of a row with more, so that habits may change."""

_I64 = nb.types.Array(nb.int64, 1, "A", readonly=True)


@inlined
def follow(rows, before, item, dense, successors, number):
    """Count that an item followed another one, `before`; `number` is 0 for the next event, 1 for the one after it."""
    totals = dense + KEY_PARTS
    keys = totals + 2
    times = keys + KEY_PARTS * successors
    if rows[before, totals + number] >= MOST_COUNTED:
        rows[before, totals] *= np.float32(0.5)
        rows[before, totals + 1] *= np.float32(0.5)
        for place in range(2 * successors):
            rows[before, times + place] *= np.float32(0.5)
    rows[before, totals + number] += np.float32(1)
    place, least, fewest = -1, 0, np.float32(np.inf)
    for at in range(successors):
        counted = rows[before, times + at] + rows[before, times + successors + at]
        if counted < fewest:
            least, fewest = at, counted
        same = counted > 0
        for part in range(KEY_PARTS):
            same &= rows[before, keys + part * successors + at] == rows[item, dense + part]
        if same:
            place = at
            break
    if place >= 0:
        rows[before, times + number * successors + place] += np.float32(1)
    elif fewest > 1:
        for after in range(2):
            at = times + after * successors + least
            rows[before, at] = max(rows[before, at] - np.float32(1), np.float32(0))
    else:
        for part in range(KEY_PARTS):
            rows[before, keys + part * successors + least] = rows[item, dense + part]
        for after in range(2):
            rows[before, times + after * successors + least] = np.float32(after == number)


@kernel(nb.void(nb.float32[:, ::1], _I64, _I64, _I64, nb.int64, nb.int64, nb.float64))
def count_events(rows, refs, splits, counts, dense, successors, gained):
    """Count the newest events of some histories.

    Args:
        rows: float32 [_, width], rows of items; written.
        refs: int64 [n], row numbers of the items of all events; negative for those without a row.
        splits: Events of history i are [splits[i], splits[i + 1]).
        counts: How many of the newest are new.
        dense: First number of a row that no product reads; the popularity is before it.
        successors: Successors of a row.
        gained: What an event adds to the popularity: a logarithm, and LOG_FLOOR.
    """
    for history in range(len(counts)):
        start, stop = splits[history], splits[history + 1]
        for at in range(max(start, stop - counts[history]), stop):
            item = refs[at]
            if item < 0:
                continue
            most, least = np.float64(rows[item, dense - 1]) * SCALE, gained
            if most == 0:
                most, least = gained, -np.inf
            elif most < gained:
                most, least = gained, most
            rows[item, dense - 1] = max(0.0, (most + math.log1p(math.exp(least - most))) / SCALE)
            if successors:
                for number in range(2):
                    if at - number - 1 >= start and refs[at - number - 1] >= 0:
                        follow(rows, refs[at - number - 1], item, dense, successors, number)
