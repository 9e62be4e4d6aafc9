"""Share between the sides of a race of steps: the rows that all learn, and a side's end of the line.

The race writes how many steps to learn, the side answers with what they took: one JSON object a line, both ways. numpy
alone: sides run in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEATURES, DIM, HIDDEN = 8, 16, (256, 128, 64)
"""DeepFM over 8 ids."""
RATE, DENSE_RATE = 0.05, 0.001
HELD_ROWS = 1 << 19
"""Rows that are held in memory and learned over and over, so that no side waits for a disk."""


@dataclass(frozen=True, slots=True)
class RaceShape:
    """batch_rows: of a step. table_rows: ids of each feature, drawn with a chance of one over their number."""

    batch_rows: int
    table_rows: int = 1_000_000

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """ids [n, FEATURES] and labels [n], of which a network can learn something."""
        random = np.random.default_rng(0)
        # Of the continuous law with density 1 / x on [1, table_rows + 1), cut off.
        ids = np.exp(random.random((HELD_ROWS, FEATURES)) * np.log(self.table_rows + 1.0)).astype(np.int64) - 1
        taste = random.standard_normal((FEATURES, 1 << 16)).astype(np.float32)
        logit = sum(taste[f, ids[:, f] * 2654435761 % (1 << 16)] for f in range(FEATURES)) * 0.7 - 1.0
        return ids, (random.random(HELD_ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)

    def steps(self) -> int:
        """Steps of one pass over the rows."""
        return HELD_ROWS // self.batch_rows


def serve(learn: Callable[[int], float]) -> None:
    """Answers until the other end closes. learn(steps): learns so many more; returns the mean loss of the last."""
    # Whatever a library prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        loss = learn(steps)
        spent = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s, "loss": loss}
        answers.write(json.dumps(spent) + "\n")
