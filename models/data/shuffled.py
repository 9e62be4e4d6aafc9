"""Rows of a source in a random order that can be gone on with at any position.

Rows are mixed with each other in windows, one after another, each in memory once: neighbours in a stream are alike (one
user's clicks, one hour's), and a network learns less of batches of them. The order of a window is a function of the
seed and of where the window begins, so that a reader that starts in the middle of one gives what would have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from freshet_serving.models.data.source import Batch, Source, check_position


def shuffled(
    source: Source, rows: int, start: int, until: int, window_rows: int, seed: Sequence[int]
) -> Iterator[Batch]:
    """Rows [start, until) of the shuffled stream [0, until), in batches of `rows`; one at the end of a window may be
    shorter. start: 0, or the end of a batch. Batch.start is the place in the shuffled stream."""
    check_position(rows, start)
    for window in source.batches(window_rows, start - start % window_rows):
        if window.start >= until:
            return
        window = window.slice(0, min(len(window), until - window.start))
        order = np.random.default_rng([*seed, window.start]).permutation(len(window))
        for first in range(max(0, start - window.start), len(window), rows):
            batch = window.take(order[first : first + rows])
            yield replace(batch, start=window.start + first)
