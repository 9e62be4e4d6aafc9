"""What options of an architecture may be, as the annotations of its builder say it for models.config.arch_options.

int, float, bool, str, Sequence[int], Sequence[float] and Literal["a", "b"] need no more; Annotated with a Within has
bounds besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class ClosedInterval:
    """Of a number, or of each number of a list: low <= number <= high."""

    low: float
    high: float


Units = Annotated[int, ClosedInterval(1, 65_536)]
"""Numbers that a layer makes of a row."""
Hidden = Annotated[Sequence[int], ClosedInterval(1, 65_536)]
"""Units of each hidden layer of a tower; none: no hidden layer."""
Dropout = Annotated[float, ClosedInterval(0, 0.95)]
"""The share of each hidden layer's units that a training step leaves out, others at each step; served are all."""
