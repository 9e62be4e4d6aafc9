"""Plan which session group has which number of cores, anew every few seconds. Pure.

A group with a budget (`p99_ms`) has the least cores whose predicted 99th percentile keeps it; the others share the rest
by weight. What the others do not need is lent.

Invariants
- A plan gives every core to one group, or to those that share, and never more cores than there are.
- A group with a budget never has fewer cores than `min_cores`; those that share have one at least.
- If there are too few cores, each goes to the group that is predicted to miss its budget by most, and they stay where
  they are unless that is clearly worse (STEADY): a core that is taken from a full group leaves a queue behind. With
  fewer cores than groups all share all of them: no budget is kept.
- Cores are given at once, and taken back one a plan, after the group has needed fewer for RELEASE_S: a tide that turns
  is followed, a pause is not.

Costs: a plan predicts a latency for each core, about a microsecond each.

Source: own cores for baseline models and shared ones for models that are tried, by a cost model, are metaapp's (on
DeepRec); DeepRecSys (ISCA 2020) and Hercules (HPCA 2022) plan by measured costs, too.

Rejected: reacting within microseconds (Caladan, OSDI 2020), which needs the kernel's help; one pool for all, in which a
burst of any model is every model's tail; with too few cores, the division with the fewest predicted late requests (in
24 simulated days of 16 and 32 cores it had more misses in 16, and fewer in 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from freshet_serving.processor.extensions.core_planner.queueing import Load

RELEASE_S = 30.0
"""Seconds that a group must have needed fewer cores before one is taken back."""
BUSY = 0.7
"""Share of time that cores which are shared are busy, at most, before any is lent."""
STEADY = 1.05
"""How many times worse than the best division of too few cores the present one may be."""
TOO_SLOW = 1.5
"""A budget below what computing alone takes counts as so many times that."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The budget of one group, None if it shares cores, or its weight among those that share; and its load."""

    name: str
    load: Load
    p99_s: float | None = None
    share: float = 1.0
    min_cores: int = 1


@dataclass(frozen=True, slots=True)
class Allotment:
    """The cores of one group: its own, or its part of the shared cores (`weight`, 0 to 1), and why, for people."""

    cores: int
    weight: float
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The cores of each group, those that groups without a budget share, and how many of these may be lent."""

    groups: dict[str, Allotment]
    shared: int
    lent: int


@dataclass(slots=True)
class _Held:
    """Cores that a group has, and since when it has needed fewer."""

    cores: int
    fewer_since_s: float | None = None


class Planner:
    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._held: dict[str, _Held] = {}

    def plan(self, now_s: float, demands: Sequence[Demand]) -> Plan:
        budgeted = [demand for demand in demands if demand.p99_s is not None]
        sharing = [demand for demand in demands if demand.p99_s is None]
        most = self.cores - bool(sharing)
        if len(budgeted) > most:
            budgeted, sharing, most = [], list(demands), self.cores - 1
        # Until its load is known, a group has as many as every other.
        equal = self.cores // max(1, len(budgeted) + bool(sharing))
        self._held = {
            demand.name: self._held.get(demand.name, _Held(max(demand.min_cores, equal))) for demand in budgeted
        }
        held = {demand.name: self._held[demand.name].cores for demand in budgeted}
        needed = _divided(budgeted, most)
        if budgeted and sum(held.values()) == most == sum(needed.values()) and _as_good(budgeted, held, needed):
            needed = held
        granted, left = dict(needed), most - sum(needed.values())
        # Cores that a group still holds on to, as far as nobody else needs them: first those of who is closest to its
        # budget.
        for demand in sorted(budgeted, key=lambda demand: _missed(demand, needed[demand.name]), reverse=True):
            more = min(left, self._steadied(demand.name, needed[demand.name], now_s) - needed[demand.name])
            granted[demand.name] += more
            left -= more
        allotments = {}
        for demand in budgeted:
            cores = self._held[demand.name].cores = granted[demand.name]
            allotments[demand.name] = Allotment(cores, 0.0, _reason(demand, cores))
        shared = self.cores - sum(granted.values())
        weights = sum(demand.share for demand in sharing)
        for demand in sharing:
            weight = demand.share / weights
            few = (
                ""
                if demand.p99_s is None
                else f"; {self.cores} cores are too few for {len(demands)} groups with budgets"
            )
            allotments[demand.name] = Allotment(0, weight, f"{weight:.0%} of {shared} shared cores{few}")
        busy_cores = math.ceil(sum(demand.load.least_busy for demand in sharing) / BUSY)
        busy = min(shared, max([busy_cores, bool(sharing), *(demand.min_cores for demand in sharing)]))
        return Plan(allotments, shared, shared - busy)

    def _steadied(self, name: str, needed: int, now_s: float) -> int:
        """Return how many cores a group may have that needs so many: more at once, fewer one at a time."""
        holding = self._held[name]
        if needed >= holding.cores:
            holding.fewer_since_s = None
            return needed
        if holding.fewer_since_s is None:
            holding.fewer_since_s = now_s
        return holding.cores - 1 if now_s - holding.fewer_since_s >= RELEASE_S else holding.cores


def _divided(demands: Sequence[Demand], most: int) -> dict[str, int]:
    """Return the least cores with which groups keep their budgets; if there are too few, such that all miss them alike.

    `most` is at least one for each group.
    """
    cores = {demand.name: 1 for demand in demands}
    left = most - len(demands)
    for demand in demands:
        more = min(left, demand.min_cores - 1)
        cores[demand.name] += more
        left -= more
    misses = {demand.name: _missed(demand, cores[demand.name]) for demand in demands}
    while left and misses:
        worst = max(demands, key=lambda demand: misses[demand.name])
        if misses[worst.name][0] <= 1:
            break
        cores[worst.name] += 1
        misses[worst.name] = _missed(worst, cores[worst.name])
        left -= 1
    return cores


def _as_good(demands: Sequence[Demand], held: dict[str, int], best: dict[str, int]) -> bool:
    """Return whether groups that miss their budgets would miss them by hardly more with the cores that they have."""
    worst = [max(_missed(demand, cores[demand.name]) for demand in demands) for cores in (held, best)]
    (late, busy), (least_late, least_busy) = worst
    if least_late <= 1 or any(held[demand.name] < demand.min_cores for demand in demands):
        return False
    return busy <= STEADY * least_busy if math.isinf(least_late) else late <= STEADY * least_late


def _missed(demand: Demand, cores: int) -> tuple[float, float]:
    """Return a group's predicted latency over its budget, and its work over its cores."""
    load = demand.load
    budget_s = max(demand.p99_s or 0.0, TOO_SLOW * load.correction * load.batch_s(1.0))
    return load.response_p99_s(cores) / budget_s if load.rate else 0.0, load.least_busy / cores


def _reason(demand: Demand, cores: int) -> str:
    load, budget_ms = demand.load, 1000 * (demand.p99_s or 0.0)
    if not load.rate:
        return "no requests yet"
    alone_ms = 1000 * load.batch_s(1.0)
    why = f"{load.rate:.0f} requests/s of {alone_ms:.3g} ms within {budget_ms:g} ms"
    if budget_ms < TOO_SLOW * load.correction * alone_ms:
        why += ", which computing one takes"
    predicted_ms = 1000 * load.response_p99_s(cores)
    return f"{why}; {predicted_ms:.3g} ms expected with {cores} core{'s' if cores > 1 else ''}"
