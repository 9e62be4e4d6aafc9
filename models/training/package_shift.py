"""Compare the scores of a package with those of the weights that it was made of.

Labels do not reveal scores that are all a tenth too high: the mean of a thousand positive ones has an error of 3 %, and
a good retrain moves its calibration as much. The trainer's weights do: they score the same rows, so any difference is
due to packing, compiling or a lower precision. It is in the last digits for float32, and of each row for int8, where it
cancels in the mean.

Costs: the trainer scores COMPARED_ROWS.

Rejected: calibration against the newest labels with tighter bounds (it reports as many good nights, nights.md of commit
5a7d3e30); the mean score against that of the version before on the same rows (it reported 4 of 6 good nights of a shop
whose calibration differs by a fifth from night to night); a regression on the log-odds of the version before (where
good retrains differ by 5 % in the odds, it reports 6 of 100 at three sigmas; its slope is 0.85 on good nights and bad
ones).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.trainer import Trainer

COMPARED_ROWS = 4096
REPORTED_SHIFT = 0.02
"""Mean difference of log-odds from which on a package is reported."""
LEAST_ODDS = 1e-6

Floats = NDArray[np.float32]


def compared(rows: Sequence[Batch]) -> list[Batch]:
    """Return the newest COMPARED_ROWS, in order."""
    newest, left = list[Batch](), COMPARED_ROWS
    for batch in reversed(rows):
        if left <= 0:
            break
        newest.append(batch.slice(max(0, len(batch) - left), len(batch)))
        left -= len(newest[-1])
    return newest[::-1]


def trained_scores(trainer: Trainer, rows: Sequence[Batch]) -> Floats:
    """Return the scores [n] of the first label by the trainer's current weights."""
    with trainer.with_prefetched_rows(PrefetchPipeline(iter(rows), trainer.transform)) as works:
        scores = [trainer.score(work).reshape(len(work.batch), -1)[:, 0] for work in works]
    return np.concatenate(scores)


def package_shift(trained: Floats, packaged: Floats) -> float:
    """Return the mean rise of the log-odds from the weights' scores [n] to the package's; NaN if any is NaN."""
    return float(np.mean(_log_odds(packaged) - _log_odds(trained))) if len(trained) else 0.0


def _log_odds(scores: Floats) -> NDArray[np.float64]:
    share = np.clip(scores.astype(np.float64), LEAST_ODDS, 1 - LEAST_ODDS)
    odds: NDArray[np.float64] = np.log(share / (1 - share))
    return odds
