"""Plan the cores of session groups while they serve: measure, plan, move sessions, every PLAN_S seconds.

One thread plans, or the caller of turn(); its plan alone moves sessions. They change cores between two batches, each by
itself: no request waits for a plan, and for the length of a batch a core may have the sessions of two groups.

A group with a budget has a session a core, all on the group's set of cores. The others have all the shared cores, and
sessions by their weights: the scheduler divides cores among threads that are busy.

Workers
- The supervisor plans for all: it outlives them, has the counts of dead ones too, and answers no request.
- A request is computed by the worker that has read it. So every worker has sessions of every group, on all cores of
  the group: of N workers each has the Nth part of the group's sessions, rounded up.
- A worker has the newest plan before its first connection.
- A plan is whole, and sent anew with every turn. A worker that has missed one (short of memory, or silent) computes
  where the plan before put it. No session is ever without a core, and a plan has no state in workers.
- Plans reach a worker in their order, and its sessions move at the end of their batches once its loop has read them.

How batches' costs grow with requests comes from the cost tables of the versions that sessions have computed, how much
they are from the seconds that sessions were busy.

Rejected: a plan of each worker for itself (it sees its own load, and two take the same core); taking cores from all
before giving them to others, in two rounds (it saves part of a batch, and one slow worker delays every plan).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.core_planner.group_counts import MAX_ROWS, SIZES, Placements, work_of
from freshet_serving.processor.extensions.core_planner.lent_cores import Lender
from freshet_serving.processor.extensions.core_planner.load import LoadMeter
from freshet_serving.processor.extensions.core_planner.planner import Demand, Plan, Planner
from freshet_serving.processor.extensions.core_planner.queueing import Load
from freshet_serving.processor.sessions.session_options import MAX_SESSIONS, GroupConfig, SessionConfig
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.processor.watching import SHORT_S, SessionStats

log = logging.getLogger("freshet.cores")

PLAN_S = 5.0
MOST_SESSIONS = 4
"""A group that shares cores has at most so many sessions a core."""
LEAST_REQUESTS = 100
"""A turn with fewer has no 99th percentile."""
CLOSE_S = 2.0
SHARED = ""
"""Name under which cores_of() has the shared cores."""


class MeasuredGroup:
    def __init__(self, name: str, config: GroupConfig) -> None:
        self.name, self.config = name, config
        self.meter, self.load = LoadMeter(), Load()
        self._before, self._counts = SessionStats(), np.zeros(len(SHORT_S) + 1, np.int64)
        self._costs, self._most = batch_costs((), 1.0, 1.0, 0.0), 1.0

    def demand(self, counts: Mapping[str, Any], costs: Sequence[float], seconds: float, cores: int) -> Demand:
        """Return what the group asks for after one more turn of so many seconds, in which it had these cores.

        Counts and costs are those of group_counts, since the start; empty before there are any.
        """
        if counts:
            work, responses = work_of(counts), np.array(counts["responses"])
        else:
            work, responses = self._before, self._counts
        latest, self._counts = responses - self._counts, responses
        if latest.sum() >= LEAST_REQUESTS and cores:
            self.meter.compare(self.load, cores, p99_s(SHORT_S, latest))
        requests, rows = work.requests - self._before.requests, work.rows - self._before.rows
        if requests > 0:
            usual_rows = max(1.0, rows / requests)
            batches = max(1, work.batches - self._before.batches)
            self._costs = batch_costs(
                costs, usual_rows, requests / batches, (work.busy_s - self._before.busy_s) / batches
            )
            self._most = max(1.0, MAX_ROWS / usual_rows)
        self._before = work
        self.load = self.meter.turn(work, seconds, self._costs, self._most)
        config = self.config
        p99_s_ = None if config.p99_ms is None else config.p99_ms / 1000
        return Demand(self.name, self.load, p99_s_, config.share or 1.0, config.min_cores or 1)


class CorePlanning:
    def __init__(
        self,
        names: Sequence[str],
        config: SessionConfig,
        cores: frozenset[int],
        workers: int,
        clock: Clock,
        measure: Callable[[], tuple[Mapping[str, Any], Mapping[str, Sequence[float]]]],
        place: Callable[[Placements], None],
        start: bool = True,
    ) -> None:
        """Divide the cores, then plan them anew every PLAN_S seconds; raise BadInput if options contradict each other.

        Args:
            config: Their options; a group without any shares cores.
            workers: Number of processes that compute.
            measure: Returns counts and costs by group (group_counts), of all processes.
            place: Has every process move its sessions; called by the planning thread.
            start: False to leave turns to the caller.
        """
        check_groups(config)
        self._cores, self._workers, self._clock = cores, workers, clock
        self._measure, self._place = measure, place
        self._measured = [MeasuredGroup(name, config.groups.get(name, GroupConfig())) for name in names]
        self._planner = Planner(len(cores))
        self._lender: Lender | None = None
        self._turned_s = clock.now_s()
        # Replaced as a whole: others read it.
        self._now: tuple[Plan, dict[str, frozenset[int]]] = Plan({}, 0, 0), {}
        self.turn()
        self._thread = PeriodicThread(self._keep, PLAN_S, PLAN_S, "freshet-cores")
        if start:
            self._thread.start()

    @property
    def cores(self) -> dict[str, frozenset[int]]:
        """The cores of each group; those that share have the same."""
        plan, sets = self._now
        return {name: sets[name] if allotted.cores else sets[SHARED] for name, allotted in plan.groups.items()}

    @property
    def lent(self) -> frozenset[int]:
        """Shared cores that nobody needs now, the highest."""
        plan, sets = self._now
        shared = sorted(sets[SHARED])
        return frozenset(shared[len(shared) - plan.lent :])

    def lend(self, folder: Path) -> None:
        """Say with each further turn which cores are lent, to trainers that publish to a repository's folder."""
        self._lender = Lender(folder)

    def turn(self) -> None:
        counts, costs = self._measure()
        now_s = self._clock.now_s()
        seconds, self._turned_s = now_s - self._turned_s, now_s
        _, before = self._now
        demands = [
            group.demand(
                counts.get(group.name, {}), costs.get(group.name, ()), seconds, len(before.get(group.name, ()))
            )
            for group in self._measured
        ]
        plan = self._planner.plan(now_s, demands)
        numbers = {name: allotted.cores for name, allotted in plan.groups.items() if allotted.cores}
        sets = cores_of(numbers, before, self._cores)
        if numbers != {name: len(before[name]) for name in before.keys() - {SHARED}}:
            for name, number in numbers.items():
                log.info("group %s: %d cores: %s", name, number, plan.groups[name].why)
        self._now = plan, sets
        if self._lender is not None:
            self._lender.write(self.lent, min(sets[SHARED] or self._cores))
        self._place(placements(plan, sets, self._workers))

    def describe(self, name: str) -> dict[str, Any]:
        plan, _ = self._now
        allotted = plan.groups[name]
        cores = self.cores[name]
        planned = {"cores": allotted.cores, "weight": round(allotted.weight, 3), "why": allotted.why}
        return {"planned": {**planned, "cpus": sorted(cores), "lent": sorted(cores & self.lent)}}

    def close(self) -> None:
        if self._thread.is_alive():
            self._thread.close(CLOSE_S)
        if self._lender is not None:
            self._lender.close()

    def _keep(self) -> bool:
        self.turn()
        return False


def check_groups(config: SessionConfig) -> None:
    """Raise BadInput unless all cores are left to the plan."""
    for name, group in config.groups.items():
        where = f"groups.{name[:64]}"
        if group.cpus:
            raise BadInput(f"{where}.cpus: cores are planned (p99_ms, share, min_cores): remove cpus")
        if group.sessions is not None:
            raise BadInput(f"{where}.sessions: cores are planned (p99_ms, share, min_cores): remove sessions")
        for field, value, most in (("p99_ms", group.p99_ms, 1e6), ("share", group.share, 1e6)):
            if value is not None and not 0 < value <= most:
                raise BadInput(f"{where}.{field}: expected more than 0, at most {most:.0f}, got {value:g}")
        if group.p99_ms is not None and group.share is not None:
            raise BadInput(f"{where}.share: expected p99_ms or share: a group with a budget shares no cores")
        if group.min_cores is not None and not 1 <= group.min_cores <= MAX_SESSIONS:
            raise BadInput(f"{where}.min_cores: expected 1 to {MAX_SESSIONS}, got {group.min_cores}")


def cores_of(
    counts: Mapping[str, int], before: Mapping[str, frozenset[int]], allowed: frozenset[int]
) -> dict[str, frozenset[int]]:
    """Return each group's cores by their counts; what is left of the allowed ones is SHARED.

    A group keeps the cores that it had before, the lowest of them if it has too many; what it lacks it takes from the
    shared ones, the highest first.
    """
    sets = {name: frozenset(sorted(before.get(name, frozenset()) & allowed)[:count]) for name, count in counts.items()}
    free = sorted(allowed.difference(*sets.values()))
    for name, count in counts.items():
        missing = count - len(sets[name])
        if missing > 0:
            sets[name] |= frozenset(free[len(free) - missing :])
            free = free[: len(free) - missing]
    return {**sets, SHARED: frozenset(free)}


def placements(plan: Plan, sets: Mapping[str, frozenset[int]], workers: int) -> dict[str, tuple[int, list[int]]]:
    """Return the sessions of each group in one process, and their cores, by those of each set. Pure."""
    weights = [allotted.weight for allotted in plan.groups.values() if not allotted.cores]
    placed = {}
    for name, allotted in plan.groups.items():
        cores = sets[name] if allotted.cores else sets[SHARED]
        sessions = -(-len(cores) // workers)
        if not allotted.cores:
            sessions *= min(MOST_SESSIONS, max(1, round(allotted.weight / min(weights))))
        placed[name] = sessions, sorted(cores)
    return placed


def p99_s(bounds: Sequence[float], counts: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """Return the 99th percentile of values counted in bins (Histogram), as the bound above it."""
    place = int(np.searchsorted(np.cumsum(counts), 0.99 * np.sum(counts)))
    return bounds[min(place, len(bounds) - 1)]


def batch_costs(costs: Sequence[float], rows: float, requests: float, seconds: float) -> Callable[[float], float]:
    """Return the seconds of a batch by its requests, of so many usual rows.

    Predicted `costs` of batches of SIZES rows, empty before the first, are scaled to what batches with so many requests
    took on average.
    """
    if not costs:
        return lambda count: seconds
    by_rows = np.interp(np.arange(MAX_ROWS + 1), SIZES, costs).tolist()

    def predicted_s(count: float) -> float:
        whole = max(1, round(count * rows))
        return float(by_rows[whole] if whole <= MAX_ROWS else by_rows[-1] * whole / MAX_ROWS)

    scale = seconds / predicted_s(requests)
    return lambda count: scale * predicted_s(count)
