"""Types of an architecture's options, used as annotations of its builder and read by models.config.arch_options.

int, float, bool, str, Sequence[int], Sequence[float] and Literal["a", "b"] are supported as they are; Annotated with a
ClosedInterval adds bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from freshet_serving.processor.package.item_rows import MOST_SUCCESSORS


@dataclass(frozen=True, slots=True)
class ClosedInterval:
    """Bounds of a number, or of each number of a list, inclusive."""

    low: float
    high: float


Units = Annotated[int, ClosedInterval(1, 65_536)]
"""Number of outputs of a layer."""
Hidden = Annotated[Sequence[int], ClosedInterval(1, 65_536)]
"""Units of each hidden layer of a tower; empty for no hidden layer."""
Negatives = Annotated[int, ClosedInterval(1, 65_536)]
"""Most items that a target is compared with in a step: all of them, if there are no more."""
MoreNegatives = Annotated[int, ClosedInterval(0, 65_536)]
"""Items of recent rows that a step compares its users with beside those of the batch; 0 for none."""
Temperature = Annotated[float, ClosedInterval(0, 100)]
"""What products are divided by in the softmax; 0: learned for cosines, 1 for inner products."""
Successors = Annotated[int, ClosedInterval(0, MOST_SUCCESSORS)]
"""Items that are remembered for each item, of those that followed it."""
Dropout = Annotated[float, ClosedInterval(0, 0.95)]
"""The share of each hidden layer's units that a training step leaves out, anew at each step; serving uses all."""
