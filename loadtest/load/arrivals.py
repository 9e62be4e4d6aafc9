"""Arrivals, when requests are due: decided before a run, by rate and seed alone, whatever the server does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Moments in [0, seconds), ascending, of a Poisson process of `rate` arrivals a second."""
    if not (rate > 0 and seconds > 0):
        raise ValueError(f"rate and seconds: above 0 wanted, got {rate} and {seconds}")
    random = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are uniform.
    return np.sort(random.random(random.poisson(rate * seconds)) * seconds)
