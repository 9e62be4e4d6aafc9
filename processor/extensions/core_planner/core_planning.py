"""Plan the cores of a process's session groups while they serve: measure, plan, move sessions, every PLAN_S seconds.

Ownership
- One thread plans, or whoever calls turn(); it alone moves sessions. They change cores between two batches, each by
  itself, so a core is given up when its batch ends and no request waits for a plan.
- For the length of a batch a core may have the sessions of two groups.

A group with a budget has a session a core, all on the group's set of cores. The others have all the shared cores, and
sessions by their weights: the scheduler divides cores among threads that are busy, and a group alone has all of them.

What batches cost is taken from the cost tables of the versions that sessions have computed, as to how it grows with
requests, and from the seconds that they were busy, as to how much it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.extensions.core_planner.core_sets import SHARED, cores_of
from freshet_serving.processor.extensions.core_planner.group_options import check_groups
from freshet_serving.processor.extensions.core_planner.load import LoadMeter
from freshet_serving.processor.extensions.core_planner.planner import Demand, Plan, Planner
from freshet_serving.processor.extensions.core_planner.queueing import Load
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.processor.watching import Histogram, SessionStats, total

log = logging.getLogger("freshet.cores")

PLAN_S = 5.0
MOST_SESSIONS = 4
"""A group that shares cores has at most so many sessions a core."""
LEAST_REQUESTS = 100
"""A turn with fewer has no 99th percentile."""


class MeasuredGroup:
    """One group and what is measured of it."""

    def __init__(self, name: str, group: SessionGroup, config: GroupConfig) -> None:
        self.name, self.group, self.config = name, group, config
        self.meter, self.load = LoadMeter(), Load()
        self.responses = group.measure_responses()
        self._before, self._counts = SessionStats(), np.array(self.responses.counts)
        self._costs, self._most = batch_costs((), 1.0, 1.0, 0.0), 1.0

    def demand(self, seconds: float, cores: int) -> Demand:
        """Return what the group asks for after one more turn.

        Args:
            seconds: Seconds of the turn.
            cores: Cores that it had.
        """
        work = total(self.group.statistics())
        counts = np.array(self.responses.counts)
        latest, self._counts = counts - self._counts, counts
        if latest.sum() >= LEAST_REQUESTS and cores:
            self.meter.compare(self.load, cores, p99_s(self.responses, latest))
        requests, rows = work.requests - self._before.requests, work.rows - self._before.rows
        if requests > 0:
            usual_rows = max(1.0, rows / requests)
            batches = max(1, work.batches - self._before.batches)
            self._costs = batch_costs(
                self.group.cost_tables(), usual_rows, requests / batches, (work.busy_s - self._before.busy_s) / batches
            )
            self._most = max(1.0, self.group.options.max_batch_rows / usual_rows)
        self._before = work
        self.load = self.meter.turn(work, seconds, self._costs, self._most)
        config = self.config
        p99_s_ = None if config.p99_ms is None else config.p99_ms / 1000
        return Demand(self.name, self.load, p99_s_, config.share or 1.0, config.min_cores or 1)


class CorePlanning:
    """The plan of one process, and the thread that keeps it."""

    def __init__(
        self,
        groups: Mapping[str, SessionGroup],
        config: SessionConfig,
        cores: frozenset[int],
        clock: Clock,
        start: bool = True,
    ) -> None:
        """Divide the cores, then plan them anew every PLAN_S seconds.

        Args:
            groups: The session groups by name.
            config: Their options; a group without any shares cores.
            cores: The cores to plan.
            clock: The clock.
            start: False to leave turns to the caller.

        Raises:
            BadInput: The options contradict each other.
        """
        check_groups(config)
        self._cores, self._clock = cores, clock
        self._measured = {
            name: MeasuredGroup(name, group, config.groups.get(name, GroupConfig())) for name, group in groups.items()
        }
        self._planner = Planner(len(cores))
        self._sets: dict[str, frozenset[int]] = {}
        self._turned_s = clock.now_s()
        self._plan = Plan({}, 0, 0)
        self.turn()
        self._thread = PeriodicThread(self._keep, PLAN_S, PLAN_S, "freshet-cores")
        if start:
            self._thread.start()

    @property
    def lent(self) -> frozenset[int]:
        """Shared cores that nobody needs now, the highest."""
        shared = sorted(self._sets[SHARED])
        return frozenset(shared[len(shared) - self._plan.lent :])

    def turn(self) -> None:
        """Measure, plan and move sessions."""
        now_s = self._clock.now_s()
        seconds, self._turned_s = now_s - self._turned_s, now_s
        demands = [measured.demand(seconds, len(self._sets.get(name, ()))) for name, measured in self._measured.items()]
        plan = self._planner.plan(now_s, demands)
        counts = {name: allotted.cores for name, allotted in plan.groups.items() if allotted.cores}
        sets = cores_of(counts, self._sets, self._cores)
        if counts != {name: len(self._sets[name]) for name in self._sets.keys() - {SHARED}}:
            for name, count in counts.items():
                log.info("group %s: %d cores: %s", name, count, plan.groups[name].why)
        weights = {name: allotted.weight for name, allotted in plan.groups.items() if not allotted.cores}
        for name, measured in self._measured.items():
            if name in counts:
                sessions, cores = counts[name], sets[name]
            else:
                cores = sets[SHARED]
                sessions = len(cores) * min(MOST_SESSIONS, max(1, round(weights[name] / min(weights.values()))))
            if (sessions, (cores,)) != (len(measured.group), measured.group.options.cpus):
                measured.group.place(sessions, cores)
        self._plan, self._sets = plan, sets

    def describe(self, name: str) -> dict[str, Any]:
        """Return why a group has its cores, JSON-able."""
        allotted = self._plan.groups[name]
        return {"planned": {"cores": allotted.cores, "weight": round(allotted.weight, 3), "why": allotted.why}}

    def close(self) -> None:
        """Plan no more."""
        if self._thread.is_alive():
            self._thread.close()

    def _keep(self) -> bool:
        self.turn()
        return False


def p99_s(responses: Histogram, counts: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """Return the 99th percentile of counted values, as the bound above it."""
    place = int(np.searchsorted(np.cumsum(counts), 0.99 * np.sum(counts)))
    return responses.bounds[min(place, len(responses.bounds) - 1)]


def batch_costs(tables: Sequence[CostTable], rows: float, requests: float, seconds: float) -> Callable[[float], float]:
    """Return the seconds of a batch by its requests.

    Args:
        tables: Cost tables of the versions that are computed.
        rows: Rows of a usual request.
        requests: Requests of the batches that were measured.
        seconds: Seconds that such a batch took.
    """

    def predicted_s(count: float) -> float:
        whole = max(1, round(count * rows))
        return sum(costs.batch_s(whole) for costs in tables)

    if not tables:
        return lambda count: seconds
    scale = seconds / predicted_s(requests)
    return lambda count: scale * predicted_s(count)
