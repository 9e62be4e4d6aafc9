"""Deltas of the tiny package of tests.loadtest.packages."""

import numpy as np

from tests.loadtest.packages import IDS, write_delta

STEPS = 6


def write_deltas(folder):
    """Each moves every row of one table."""
    random = np.random.default_rng(1)
    return [
        write_delta(folder / f"{step}.safetensors", step, IDS, random.standard_normal((4, 2)), table="ab"[step % 2])
        for step in range(1, STEPS + 1)
    ]
