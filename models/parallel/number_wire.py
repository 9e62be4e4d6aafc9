"""Encode rows and gradients for transport between processes, as float32 or as scaled float16.

float16 has 11 significant bits and no values below 6e-8, which gradients of a mean soon reach. So a message's numbers
are multiplied by the power of two that brings the largest just below 2^15: the loss is at most 2^-11 of each number, or
2^-39 of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.parallel.ranks import Array, Bytes, blank, packed

Float32s = NDArray[np.float32]

LARGEST_EXPONENT = 15
MOST_EXPONENT = 120
"""Largest exponent whose power of two is a finite float32."""


def to_wire(parts: Sequence[Float32s], wire: str) -> list[Array | Sequence[Array]]:
    """Return arrays for packed() of float32 vectors, one after another; `wire` is one of train_section.WIRES."""
    if wire == "float32":
        return [parts]
    numbers = np.concatenate(parts) if parts else np.empty(0, np.float32)
    largest = float(np.abs(numbers).max(initial=0.0))
    exponent = LARGEST_EXPONENT - int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
    scale = np.float32(2.0 ** min(exponent, MOST_EXPONENT))
    with np.errstate(over="ignore"):
        return [np.array([scale]), (numbers * scale).astype(np.float16)]


class NumberMessage:
    """A message of float32 vectors of given lengths: fill in `parts`, then call packed()."""

    def __init__(self, counts: Sequence[int], wire: str) -> None:
        self._wire = wire
        if wire == "float32":
            self._message, (numbers,) = blank([((sum(counts),), np.float32)])
        else:
            numbers = np.empty(sum(counts), np.float32)
        ends = [0, *accumulate(counts)]
        self.parts = [numbers[first:last] for first, last in zip(ends, ends[1:])]

    def packed(self) -> Bytes:
        return self._message if self._wire == "float32" else packed(to_wire(self.parts, self._wire))


def from_wire(arrays: Sequence[Array]) -> Float32s:
    if len(arrays) == 1:
        return arrays[0]
    scale, numbers = arrays
    return numbers.astype(np.float32) / np.float32(scale[0])
