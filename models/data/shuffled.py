"""Yield the rows of a source in a random order that can be resumed at any position.

Rows are shuffled within consecutive windows, each held in memory once, and in smaller ones where rows have long lists.
Neighbours in a stream are similar (one user's clicks, one hour's), and a network learns less from batches of them. The
order within a window depends only on the seed and its start, so a reader that starts within a window continues exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from freshet_serving.models.data.source import Batch, Source, check_position, join_batches
from freshet_serving.processor.columns import nbytes_of

PART_ROWS, WINDOW_NBYTES = 1024, 1 << 29


def shuffled(
    source: Source, rows: int, start: int, until: int, window_rows: int, seed: Sequence[int]
) -> Iterator[Batch]:
    """Yield rows [start, until) of the shuffled stream [0, until); a batch's start is its position in that stream.

    `start` is 0 or the end of a batch; the last batch of a window may have fewer than `rows` rows.
    """
    check_position(rows, start)
    for window in _windows(source, start - start % window_rows, until, window_rows):
        order = np.random.default_rng([*seed, window.start]).permutation(len(window))
        for first in range(max(0, start - window.start), len(window), rows):
            batch = window.take(order[first : first + rows])
            yield replace(batch, start=window.start + first)


def _windows(source: Source, first: int, until: int, window_rows: int) -> Iterator[Batch]:
    """Yield rows [first, until) in windows, the first at `first`; one that takes more than WINDOW_NBYTES in several."""
    held: list[Batch] = []
    nbytes = 0
    for batch in source.batches(min(PART_ROWS, window_rows), first):
        at = 0
        while at < len(batch) and batch.start + at < until:
            start = batch.start + at
            end = min(until, start - start % window_rows + window_rows)
            part = batch.slice(at, min(len(batch), at + end - start))
            held.append(part)
            nbytes += nbytes_of(part.columns)
            at += len(part)
            if part.end == end or nbytes >= WINDOW_NBYTES:
                yield join_batches(held)
                held, nbytes = [], 0
        if batch.end >= until:
            break
    if held:
        yield join_batches(held)
