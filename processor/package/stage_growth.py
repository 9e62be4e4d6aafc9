"""The growth of a stage: how much it computes for a request, by the request's shape; asked before each run.

Limits count what a request brings as a sum; what a graph makes of it may be a product or a power: attention over a
history is quadratic in its length, and a list that is sent once is computed for every candidate. So a stage's growth is
a polynomial in the rows of a run and the longest of its lists, in cells: values of four bytes that operators write.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from freshet_serving.processor.errors import BadInput

MAX_POWER = 4
MAX_TERMS = 32
MAX_FACTOR = 1e15


@dataclass(frozen=True, slots=True)
class GrowthTerm:
    """One term of the polynomial: cells * rows ** `rows` * length ** `length`."""

    rows: int
    length: int
    cells: float


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """The cells of a run of a stage.

    Attributes:
        terms: The polynomial's terms.
        sized_by: Inputs whose values count as lengths, because the graph makes tensors as long: integers by their
            value, strings by their bytes.

    Example:
        >>> growth = StageGrowth([GrowthTerm(1, 1, 10.0), GrowthTerm(1, 2, 2.0)])
        >>> growth.cells(3, 100)
        63000
        >>> growth.rows_within(63_000, 100, 256)
        3
    """

    terms: list[GrowthTerm]
    sized_by: list[str] = field(default_factory=list)

    def cells(self, rows: int, length: int) -> int:
        """Return the cells of a run.

        Args:
            rows: Rows of the run.
            length: The longest list in it; 1 without lists.
        """
        return math.ceil(sum(t.cells * float(rows) ** t.rows * float(length) ** t.length for t in self.terms))

    def rows_within(self, cells: int, length: int, rows: int) -> int:
        """Return how many rows of a request to run at once: as many as stay within `cells`, at least one.

        Args:
            cells: Most cells of a run.
            length: The longest list.
            rows: Rows of the request.
        """
        least, most = 1, rows
        while least < most:
            middle = (least + most + 1) // 2
            if self.cells(middle, length) <= cells:
                least = middle
            else:
                most = middle - 1
        return least


def validate_growth(growth: StageGrowth, inputs: Collection[str]) -> None:
    """Raise BadInput for a growth that is no polynomial with positive factors.

    Args:
        growth: The growth.
        inputs: Names of the request's inputs.
    """
    where = "manifest.stage.growth"
    _want(0 < len(growth.terms) <= MAX_TERMS, f"{where}.terms: expected 1 to {MAX_TERMS}, got {len(growth.terms)}")
    for term in growth.terms:
        powers = 0 <= term.rows <= MAX_POWER and 0 <= term.length <= MAX_POWER
        _want(powers, f"{where}.terms: expected powers from 0 to {MAX_POWER}, got {term.rows} and {term.length}")
        _want(0 < term.cells <= MAX_FACTOR, f"{where}.terms: expected factors above 0, got {term.cells}")
    for name in growth.sized_by:
        _want(name in inputs, f"{where}.sized_by: {name[:64]!r} is not an input")


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)
