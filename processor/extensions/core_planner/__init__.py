"""Plan the cores of session groups by what they cost: a budget gets the least cores that keep it, the rest is shared.

core_planning  the plan of one server: checks options, measures, plans, chooses cores, moves sessions
group_counts   the groups of one process: counted, and placed
lent_cores     cores that nobody needs are lent to trainers
planner        who has how many cores, and why: pure
load           the load of a group from its counters
queueing       predicts latencies on a number of cores
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import CorePlanner, Extension

__all__: list[str] = []


def _process(groups: Any, config: Any, cores: frozenset[int], clock: Any) -> Any:
    from freshet_serving.processor.extensions.core_planner.core_planning import CorePlanning
    from freshet_serving.processor.extensions.core_planner.group_counts import CountedGroups

    own = CountedGroups(groups)
    return CorePlanning(list(groups), config, cores, 1, clock, lambda: (own.counts(), own.costs()), own.place)


def _worker(groups: Any) -> Any:
    from freshet_serving.processor.extensions.core_planner.group_counts import CountedGroups

    return CountedGroups(groups)


def _workers(config: Any, cores: frozenset[int], workers: int, clock: Any, reports: Any, place: Any) -> Any:
    from freshet_serving.processor.cores import numa_nodes
    from freshet_serving.processor.extensions.core_planner.core_planning import CorePlanning
    from freshet_serving.processor.extensions.core_planner.group_counts import mean_costs
    from freshet_serving.processor.sessions.placement import plan

    def measure() -> Any:
        counts, costs = reports()
        return counts, mean_costs(costs)

    names = list(plan(config, cores, numa_nodes()))
    return CorePlanning(names, config, cores, workers, clock, measure, place)


def _borrower(repository: str, learning: Any) -> Any:
    from freshet_serving.processor.extensions.core_planner.lent_cores import Borrower

    return Borrower(repository, learning)


REQUIRES = ()
EXTENSION = Extension(core_planner=CorePlanner(_process, _worker, _workers, _borrower))
