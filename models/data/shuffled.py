"""Yield the rows of a source in a random order that can be resumed at any position.

Rows are shuffled within consecutive windows, each held in memory once. Neighbours in a stream are similar (one user's
clicks, one hour's), and a network learns less from batches of them. The order within a window depends only on the seed
and on the window's start, so a reader that starts within a window continues exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from freshet_serving.models.data.source import Batch, Source, check_position


def shuffled(
    source: Source, rows: int, start: int, until: int, window_rows: int, seed: Sequence[int]
) -> Iterator[Batch]:
    """Yield rows [start, until) of the shuffled stream [0, until).

    Args:
        source: The source.
        rows: Rows of a batch; the last batch of a window may be shorter.
        start: Position in the shuffled stream: 0, or the end of a batch.
        until: End of the stream.
        window_rows: Rows of a window.
        seed: Seed of the order.

    Returns:
        Batches whose start is their position in the shuffled stream.
    """
    check_position(rows, start)
    for window in source.batches(window_rows, start - start % window_rows):
        if window.start >= until:
            return
        window = window.slice(0, min(len(window), until - window.start))
        order = np.random.default_rng([*seed, window.start]).permutation(len(window))
        for first in range(max(0, start - window.start), len(window), rows):
            batch = window.take(order[first : first + rows])
            yield replace(batch, start=window.start + first)
