"""The session groups of one process, as a plan sees them: what they have done, what their batches cost, where they are.

Counts and costs are nested lists and objects of numbers, so that they travel in the reports of workers. Counts of
several processes add up, those of dead ones too; costs are averaged over the living.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.processor.watching import SessionStats, total

COUNTED = ("batches", "requests", "rows", "busy_s", "refused_full", "refused_late", "expired")
MAX_ROWS = GroupOptions().max_batch_rows
SIZES = tuple(1 << n for n in range(MAX_ROWS.bit_length()))
"""Rows of the batches whose costs are reported."""

Placements = Mapping[str, tuple[int, Sequence[int]]]
"""Sessions of each group in one process, and their cores."""


class CountedGroups:
    """The groups of one process. A worker's half of the plan: the supervisor reads counts() and costs(), and places."""

    def __init__(self, groups: Mapping[str, SessionGroup]) -> None:
        self._groups = groups
        self._responses = {name: group.measure_responses() for name, group in groups.items()}

    def counts(self) -> dict[str, Any]:
        """Return what each group has done since its start: its work, and what requests took by SHORT_S."""
        counted = {}
        for name, group in self._groups.items():
            work = total(group.statistics())
            counted[name] = {
                "work": {field: getattr(work, field) for field in COUNTED},
                "responses": list(self._responses[name].counts),
            }
        return counted

    def costs(self) -> dict[str, list[float]]:
        """Return predicted seconds of batches of SIZES rows, summed over the versions that each group has computed."""
        return {
            name: [sum(table.batch_s(rows) for table in tables) for rows in SIZES]
            for name, group in self._groups.items()
            if (tables := group.cost_tables())
        }

    def place(self, placements: Placements) -> None:
        """Move each group to its cores, where it is not there yet; each session goes at the end of its batch."""
        for name, (sessions, cores) in placements.items():
            group, cpus = self._groups[name], frozenset(cores)
            if (sessions, (cpus,)) != (len(group), group.options.cpus):
                group.place(sessions, cpus)

    def describe(self, name: str) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing: whoever plans has ended."""


def work_of(counts: Mapping[str, Any]) -> SessionStats:
    return SessionStats(**counts["work"])


def mean_costs(costs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return the mean of reports of CountedGroups.costs(), for each group of those that have computed it."""
    names = {name for report in costs for name in report}
    return {name: np.mean([report[name] for report in costs if name in report], axis=0).tolist() for name in names}
