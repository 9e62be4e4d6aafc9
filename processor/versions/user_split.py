"""User/candidate split at run time: run the user part of a dense graph once per request.

A request is split where its user inputs have one row and where splitting is faster. That is decided once, when a
version is loaded, by timing both ways in turn. It is not revised later: what sessions measure depends on other users of
the machine at the time, and only the way that is taken would be measured. Splitting changes scores by no more than
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.cost import CostTable
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import CANDIDATE, USER, WHOLE, RolePart, UserSplitSpec, write_user_vector

# A smaller saving does not pay for another run: filling and starting one costs about this much.
WORTH = 0.97


class UserSplitRuntime:
    """The user/candidate split of one version: its parts, how their inputs are filled, costs of their executables."""

    def __init__(self, division: UserSplitSpec, plan: SparsePlan) -> None:
        self.parts: dict[str, RolePart] = {USER: division.user, CANDIDATE: division.candidate}
        self.fill = {role: plan.pooling(part.features).fill for role, part in self.parts.items()}
        self.costs: dict[str, CostTable] = {}
        self._division = division

    def price(self, costs: Mapping[str, Mapping[int, float]]) -> None:
        """Store measured costs and decide from which row counts on splitting pays.

        Args:
            costs: Seconds of one run, by role and bucket.
        """
        self.costs = {role: CostTable(costs[role]) for role in self.parts}
        whole, user, candidate = (CostTable(costs[role]) for role in (WHOLE, USER, CANDIDATE))
        most = max(whole.max_rows, candidate.max_rows)
        self._worth_splitting = [
            user.dense_s(1) + candidate.dense_s(rows) < WORTH * whole.amortised_dense_s(rows)
            for rows in range(most + 1)
        ]

    def worth_splitting(self, rows: int) -> bool:
        """Return True if a request of this many candidates is faster split than whole, in a batch with others."""
        return self._worth_splitting[min(rows, len(self._worth_splitting) - 1)]

    @property
    def thresholds(self) -> list[int]:
        """Row counts, ascending, at which splitting begins to pay, stops paying, pays again, and so on."""
        before = [False, *self._worth_splitting]
        return [rows for rows, worth_splitting in enumerate(self._worth_splitting) if worth_splitting != before[rows]]

    def write_user_vector(self, u: NDArray[np.float32], x: NDArray[np.float32]) -> None:
        """Write a user's computed vector into the user columns of a candidate input.

        Args:
            u: Output of the user part, float32 [user_width].
            x: Input of the candidate part.
        """
        write_user_vector(self._division, u, x)
