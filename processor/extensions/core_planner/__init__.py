"""Plan the cores of session groups by what they cost: a budget gets the least cores that keep it, the rest is shared.

core_planning   the plan of one process: measures, plans, moves sessions
group_options   the options of groups, checked
planner         who has how many cores, and why: pure
core_sets       which cores these are
load            the load of a group from its counters
queueing        predicts latencies on a number of cores
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _plan(groups: Any, config: Any, cores: frozenset[int], clock: Any) -> Any:
    from freshet_serving.processor.extensions.core_planner.core_planning import CorePlanning

    return CorePlanning(groups, config, cores, clock)


REQUIRES = ()
EXTENSION = Extension(core_planner=_plan)
