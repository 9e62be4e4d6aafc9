"""Measure which share of rows occurs more than once, as after a repeated delivery.

Rows are compared by a 64-bit hash of columns, labels and time. Equal rows of a model that knows little of each (two
clicks on one item) count, too: compare the share only with that of the version before.

Costs: a pass over each column, and one sort of a hash for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freshet_serving.models.data.source import Batch
from freshet_serving.models.data.value_hashes import Hashes, mixed, value_hashes
from freshet_serving.processor.columns import Column


def repeated_share(rows: Sequence[Batch]) -> float:
    hashes = [_rows(batch) for batch in rows if len(batch)]
    if not hashes:
        return float("nan")
    count = sum(map(len, hashes))
    return 1 - len(np.unique(np.concatenate(hashes))) / count


def _rows(batch: Batch) -> Hashes:
    columns: list[Column] = [batch.columns[name] for name in sorted(batch.columns)]
    hashes = np.zeros(len(batch), np.uint64)
    for column in (*columns, batch.label, *(() if batch.time is None else (batch.time,))):
        hashes = mixed(hashes + value_hashes(column))
    return hashes
