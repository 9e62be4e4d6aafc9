"""The rows of samples: limits of generated numbers, rows that a user gave, and some rows of many. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.feeds import FeedSpec, repeated_rows
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput

SCALES = (1000, 50, 10, 2, 1)
"""Unbounded integers are drawn below these limits, tried in order until the model accepts them."""
MAX_LENGTH = 6
TAIL = 3
"""Rows that a model is run on again, by themselves."""


class SamplesRequired(BadInput):
    """Raised for a model that accepts no generated inputs, and may be imported with some that are given."""


def given_samples(
    inputs: Iterable[FeedSpec], given: Mapping[str, Any], sizes: Sequence[int]
) -> list[dict[str, Column]]:
    """Return a request of each size with the rows that a user gave, as in a JSON request, repeated."""
    specs = list(inputs)
    return [{spec.name: repeated_rows(spec, given.get(spec.name), rows) for spec in specs} for rows in sizes]


def rows_of(column: Column, rows: NDArray[np.int64], count: int) -> Column:
    """Return some rows of a column of `count` rows."""
    if isinstance(column, Ragged):
        first, lengths = column.row_splits[rows], np.diff(column.row_splits)[rows]
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.arange(splits[-1]) + np.repeat(first - splits[:-1], lengths)
        values = rows_of(column.values, places, len(column.values))
        assert not isinstance(values, Ragged), "values are not ragged themselves"
        return Ragged(values, splits)
    if isinstance(column, Strings):
        texts, each = column.tolist(), len(column) // count
        return Strings.of([text for row in rows for text in texts[row * each : (row + 1) * each]])
    per_row = column.reshape(count, -1)[rows]
    return per_row.reshape(-1, *column.shape[1:]) if len(column) == count else per_row.ravel()
