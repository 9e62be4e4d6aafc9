"""User-once: how one process runs the user's part once a request: what is filled, lent and weighed up.

A request goes this way where its user's inputs have one row and where it pays. What pays is settled when a version is
loaded, by runs of both ways in turn, and stays settled: what sessions measure later depends on who else uses the
machine at the time, and only the way that is taken would be measured. A request's way never changes its scores by more
than rounding does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import CostTable
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import CANDIDATE, USER, WHOLE, RolePart, UserSplitSpec, write_user_vector

# Less than this is not worth a run more: it is what filling and starting one costs.
WORTH = 0.97


class UserSplitRuntime:
    """One version's division at run time: its parts, how their inputs are filled, what their executables cost."""

    def __init__(self, division: UserSplitSpec, plan: SparsePlan) -> None:
        self.parts: dict[str, RolePart] = {USER: division.user, CANDIDATE: division.candidate}
        self.fill = {role: plan.pooling(part.features).fill for role, part in self.parts.items()}
        self.costs: dict[str, CostTable] = {}
        self._division = division

    def price(self, costs: Mapping[str, Mapping[int, float]]) -> None:
        """Takes measured costs: seconds of one run, by role and bucket."""
        self.costs = {role: CostTable(costs[role]) for role in self.parts}
        whole, user, candidate = (CostTable(costs[role]) for role in (WHOLE, USER, CANDIDATE))
        most = max(whole.max_rows, candidate.max_rows)
        self._worth_splitting = [
            user.dense_s(1) + candidate.dense_s(rows) < WORTH * whole.amortised_dense_s(rows)
            for rows in range(most + 1)
        ]

    def worth_splitting(self, rows: int) -> bool:
        """Whether a request of so many candidates takes less in parts than whole, in one batch with others."""
        return self._worth_splitting[min(rows, len(self._worth_splitting) - 1)]

    @property
    def thresholds(self) -> list[int]:
        """The row counts from which on it pays, does not, pays again, and so on, ascending."""
        before = [False, *self._worth_splitting]
        return [rows for rows, worth_splitting in enumerate(self._worth_splitting) if worth_splitting != before[rows]]

    def write_user_vector(self, u: NDArray[np.float32], x: NDArray[np.float32]) -> None:
        """Writes what was computed of a user, float32 [user_width], into the lane of a candidates' input."""
        write_user_vector(self._division, u, x)
