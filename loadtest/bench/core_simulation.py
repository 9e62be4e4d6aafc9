"""`make -C loadtest cores`: cores planned by the minute against the best fixed division; loadtest/results/cores.md.

A day of requests is simulated on machines of 16 to 64 cores, with two to six session groups whose traffic swings by a
factor of ten. A batch takes what the benchmark's model takes on this machine, measured first, times a factor of the
group; sessions take what is queued, up to 256 rows, as they do in a server. Each group has a budget for 99 of 100
requests; a request that takes longer is a miss. The best fixed division is found by simulating every group on every
number of cores that it could have. The planner (processor.extensions.core_planner) sees what a server sees: counters,
every five seconds; what it lends counts as not used. The best division is that of all days' requests together: where
cores are too few it gives up a group with few requests, while a plan has all groups miss their budgets alike. So the
misses of the group that misses most are shown, too.

In the second table a baseline with a budget shares the machine with four models that are tried. Its figures are the
most requests a second, relative to the fixed division, at which the baseline keeps its budget and the others one that
is five times as long, after a minute: with the best fixed division, with all cores shared, and planned.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.models.bench import FLOATS, TABLES, write_model
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.core_planner.load import LoadMeter
from freshet_serving.processor.extensions.core_planner.planner import Demand, Planner
from freshet_serving.processor.extensions.core_planner.queueing import Load
from freshet_serving.processor.watching import SessionStats
from loadtest.bench.core_kernels import (
    A_DECADE,
    BATCHES,
    BINS,
    BUSY_S,
    COUNT,
    DROPPED,
    LATE,
    LEAST_S,
    WAITED_S,
    simulate,
)
from loadtest.reports.report import machine, opening, origin, store, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
ROWS, MEASURED_ROWS, TURNS = 20_000, (1, 8, 32, 64, 128, 256), 15
MOST_ROWS, TIMEOUT_S = 256, 1.0
PLAN_S, WARM_UP_S = 5.0, 60.0
SWING = 10.0
JUST_ENOUGH = 0.005
"""Share of a day's requests that a fixed division may miss."""
BASELINE = 8.0
"""Cost of the baseline, over the measured one: networks of today are larger than the benchmark's."""
TRIED = {"as the baseline": (0.5, 1.0, 1.0, 2.0), "larger": (4.0, 4.0, 8.0, 8.0)}
"""Costs of the models that are tried, over that of the baseline."""
LOOSE = 5.0
"""Budget of the models that are tried, over that of the baseline."""


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """One group: mean rows of its requests; its cost over the measured one; peak requests a second; its budget (None
    for a group that shares); when its day begins, as a share of a day."""

    name: str
    rows: int
    cost: float
    rate: float
    budget_s: float | None
    phase: float = 0.0


@dataclass(frozen=True, slots=True)
class Day:
    """All requests of one group, and the seconds of its batches by rows."""

    traffic: GroupTraffic
    times: NDArray[np.float64]
    rows: NDArray[np.int64]
    costs: NDArray[np.float64]


@dataclass(slots=True)
class Pool:
    """Cores that serve some groups, and what of their requests still waits."""

    days: Sequence[Day]
    late_s: Sequence[float]
    free_at: NDArray[np.float64]
    sums: NDArray[np.float64]
    bins: NDArray[np.int64]
    waiting: list[NDArray[Any]]
    counted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    load: Load | None = None

    @classmethod
    def of(cls, days: Sequence[Day], cores: int, late_s: Sequence[float]) -> Pool:
        empty = [np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)]
        sums, bins = np.zeros((len(days), WAITED_S + 1)), np.zeros((len(days), BINS), np.int64)
        return cls(days, late_s, np.zeros(cores), sums, bins, empty)

    def serve(self, since_s: float, until_s: float) -> None:
        parts = [self.waiting]
        for number, day in enumerate(self.days):
            first, stop = np.searchsorted(day.times, [since_s, until_s])
            parts.append([day.times[first:stop], np.full(stop - first, number), day.rows[first:stop]])
        times, groups, rows = (np.concatenate(columns) for columns in zip(*parts))
        order = np.argsort(times, kind="stable")
        times, groups, rows = times[order], groups[order], rows[order]
        numbers = np.empty(len(times), np.int64)
        left = simulate(
            until_s, times, groups, rows, numbers, self.free_at, np.stack([day.costs for day in self.days]), MOST_ROWS,
            np.array(self.late_s), TIMEOUT_S, self.sums, self.bins,
        )  # fmt: skip
        self.waiting = [column[numbers[:left]] for column in (times, groups, rows)]

    def forget(self) -> None:
        """Count no misses so far: they belong to the warm-up."""
        self.sums[:, (COUNT, LATE)] = 0

    def move(self, cores: int, other: NDArray[np.float64], now_s: float) -> NDArray[np.float64]:
        """Give up the cores that are free first, or take some of `other`; return what `other` is then."""
        own = np.sort(self.free_at)
        if cores < len(own):
            self.free_at = own[len(own) - cores :]
            return np.concatenate([other, own[: len(own) - cores]])
        other = np.sort(other)
        self.free_at = np.concatenate([own, np.maximum(other[: cores - len(own)], now_s)])
        return other[cores - len(own) :]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.core_simulation", description=__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--day", type=float, default=1800.0, help="seconds of a simulated day")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    console = Console()
    curve = measured_costs()
    days, mixes = [], []
    for cores in args.cores:
        for groups in args.groups:
            for shifted in (False, True):
                traffic = tide(cores, groups, curve, shifted, args.day)
                days.append(compared(cores, traffic, curve, args.day) | {"groups": groups, "shifted": shifted})
                console.print(days[-1]["line"])
        for tried, costs in TRIED.items():
            mixes.append(mixed(cores, tried, costs, curve, args.day / 3))
            console.print(mixes[-1])
    results = {
        "machine": machine(),
        "origin": origin("-C loadtest cores", "ARGS", sys.argv[1:]),
        "curve": curve[list(MEASURED_ROWS)].tolist(),
        "days": days,
        "mixes": mixes,
    }
    store(args.out, "cores", results, page(results))


def measured_costs() -> NDArray[np.float64]:
    """Seconds of a batch of the benchmark's model by its rows, 0 to MOST_ROWS: medians, and lines between them."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="freshet-cores-") as folder:
        write_model(Path(folder), ROWS)
        with Processor.initialize(ProcessorConfig(folder, sessions=1, compute="inline")) as processor:
            seconds = []
            for rows in MEASURED_ROWS:
                inputs: dict[str, Any] = {
                    "ids": random.integers(0, ROWS, (rows, TABLES)),
                    "floats": random.random((rows, FLOATS), np.float32),
                }
                request = PredictRequest("bench", inputs)
                seconds.append(np.median([timed(partial(processor.process, request)) for _ in range(TURNS)]))
    curve: NDArray[np.float64] = np.interp(
        np.arange(MOST_ROWS + 1), [0, *MEASURED_ROWS], [0, *np.maximum.accumulate(seconds)]
    )
    return curve


def timed(call: Callable[[], object]) -> float:
    started_s = time.thread_time()
    call()
    return time.thread_time() - started_s


def tide(cores: int, groups: int, curve: NDArray[np.float64], shifted: bool, day_s: float) -> list[GroupTraffic]:
    """Groups for which a fixed division is just enough: each has the most traffic that its part keeps up with."""
    traffic = []
    weights = np.arange(1, groups + 1) / sum(range(groups + 1))
    parts = np.diff(np.rint(cores * np.cumsum(np.concatenate([[0], weights])))).astype(int)
    for number, part in enumerate(parts.tolist()):
        rows, cost = (64, 8, 128)[number % 3], (8.0, 16.0, 4.0)[number // 2 % 3]
        phase = number / (2 * groups) if shifted else 0.0
        budget_s = (10, 20)[number % 2] * cost * curve[rows]
        group = GroupTraffic(f"group {number + 1}", rows, cost, part / (cost * curve[rows]), budget_s, phase)

        def kept(load: float, group: GroupTraffic = group, part: int = part, seed: int = number) -> bool:
            day = requests(replace(group, rate=group.rate * load), curve, day_s / 4, seed)
            pool = Pool.of([day], part, [group.budget_s or np.inf])
            pool.serve(0, day_s / 4)
            return late(pool) <= JUST_ENOUGH * len(day.times)

        traffic.append(replace(group, rate=group.rate * most_load(kept, 8.0)))
    return traffic


def requests(traffic: GroupTraffic, curve: NDArray[np.float64], day_s: float, seed: int) -> Day:
    random = np.random.default_rng(seed)
    count = random.poisson(traffic.rate * day_s)
    times = np.sort(random.random(count)) * day_s
    swing = 0.5 - 0.5 * np.cos(2 * np.pi * (times / day_s + traffic.phase))
    kept = random.random(count) < (1 + (SWING - 1) * swing) / SWING
    rows = np.clip(random.poisson(traffic.rows, count), 1, MOST_ROWS)
    return Day(traffic, times[kept], rows[kept].astype(np.int64), curve * traffic.cost)


def compared(cores: int, traffic: Sequence[GroupTraffic], curve: NDArray[np.float64], day_s: float) -> dict[str, Any]:
    """One day with the best fixed division and with planned cores."""
    days = [requests(group, curve, day_s, seed) for seed, group in enumerate(traffic)]
    count = sum(len(day.times) for day in days)
    split, fixed_misses = best_division(days, cores, day_s)
    planned_by_group, planned_s, _ = planned(days, cores, day_s)
    planned_misses = sum(planned_by_group)
    saved = 1 - planned_s / (cores * day_s)
    line = (
        f"{cores} cores, {len(days)} groups: misses {fixed_misses / count:.4%} fixed {split}, "
        f"{planned_misses / count:.4%} planned; core-hours saved {saved:.0%}"
    )
    return {
        "cores": cores,
        "requests": count,
        "division": split,
        "fixed": fixed_misses / count,
        "planned": planned_misses / count,
        "worst_fixed": worst(divided(days, split, day_s), days),
        "worst_planned": worst(planned_by_group, days),
        "saved": saved,
        "line": line,
    }


def divided(days: Sequence[Day], division: Sequence[int], day_s: float) -> list[int]:
    """Misses of each group on a fixed number of cores."""
    pools = [Pool.of([day], number, [day.traffic.budget_s or np.inf]) for day, number in zip(days, division)]
    for pool in pools:
        pool.serve(0, day_s)
    return [late(pool) for pool in pools]


def worst(misses: Sequence[int], days: Sequence[Day]) -> float:
    """The largest share of a group's requests that were misses."""
    return max(missed / len(day.times) for missed, day in zip(misses, days))


def best_division(days: Sequence[Day], cores: int, day_s: float) -> tuple[list[int], int]:
    """The fixed division with the fewest misses, and these: every group on every number of cores, then the best sum."""
    none: list[int] = []
    best = [(0.0, none), *[(np.inf, none)] * cores]
    for day in days:
        traffic = day.traffic
        least = traffic.rate * day.costs[MOST_ROWS] / MOST_ROWS * traffic.rows
        low, high = max(1, int(0.5 * least)), min(cores, int(1.5 * least) + 4)
        misses = {}
        for number in range(high, low - 1, -1):
            pool = Pool.of([day], number, [traffic.budget_s or np.inf])
            pool.serve(0, day_s)
            misses[number] = late(pool)
            if misses[number] > 0.2 * len(day.times):
                break
        following: list[tuple[float, list[int]]] = [(np.inf, [])] * (cores + 1)
        for used, (sum_so_far, division) in enumerate(best):
            for number, missed in misses.items():
                if used + number <= cores and sum_so_far + missed < following[used + number][0]:
                    following[used + number] = (sum_so_far + missed, [*division, number])
        best = following
    total, division = min(best, key=lambda entry: entry[0])
    return division, int(total)


def late(pool: Pool) -> int:
    return int(pool.sums[:, LATE].sum()) + len(pool.waiting[0])


def planned(days: Sequence[Day], cores: int, day_s: float) -> tuple[list[int], float, list[list[int]]]:
    """Misses of each group, core-seconds that groups had, and cores of each group and of the lent ones at each turn."""
    pools = {day.traffic.name: Pool.of([day], 1, [day.traffic.budget_s or np.inf]) for day in days}
    planner, meters = Planner(cores), {name: LoadMeter() for name in pools}
    spare, used_s, now_s, by_turn = np.zeros(cores - len(days)), 0.0, 0.0, []
    plan = None
    while now_s < day_s:
        demands = []
        for day in days:
            name = day.traffic.name
            demands.append(Demand(name, measured(meters[name], pools[name]), day.traffic.budget_s))
        plan = planner.plan(now_s, demands)
        # Cores that are given up first: others take them at the end of their batch.
        for name, pool in sorted(pools.items(), key=lambda entry: plan.groups[entry[0]].cores - len(entry[1].free_at)):
            spare = pool.move(plan.groups[name].cores, spare, now_s)
        used_s += PLAN_S * (cores - plan.lent)
        by_turn.append([*(plan.groups[day.traffic.name].cores for day in days), plan.lent])
        for pool in pools.values():
            pool.serve(now_s, now_s + PLAN_S)
        now_s += PLAN_S
    return [late(pool) for pool in pools.values()], used_s, by_turn


def measured(meter: LoadMeter, pool: Pool) -> Load:
    """The load of a pool as a server would measure it, by its counters and the costs of its batches."""
    latest, pool.counted = pool.bins.sum(axis=0) - pool.counted, pool.bins.sum(axis=0)
    if pool.load is not None and latest.sum():
        meter.compare(pool.load, len(pool.free_at), p99_s(latest))
    traffic, costs = pool.days[0].traffic, pool.days[0].costs
    rows = np.arange(len(costs))
    pool.load = meter.turn(
        counted(pool),
        PLAN_S,
        lambda requests: float(np.interp(requests * traffic.rows, rows, costs)),
        MOST_ROWS / traffic.rows,
    )
    return pool.load


def p99_s(bins: NDArray[np.int64]) -> float:
    place = int(np.searchsorted(np.cumsum(bins), 0.99 * bins.sum()))
    return float(LEAST_S * 10 ** ((place + 1) / A_DECADE))


def counted(pool: Pool) -> SessionStats:
    """What a server's session group would have counted."""
    sums = pool.sums.sum(axis=0)
    return SessionStats(
        batches=int(sums[BATCHES]),
        requests=int(pool.bins.sum() - sums[DROPPED]),
        expired=int(sums[DROPPED]),
        wait_s=float(sums[WAITED_S]),
        busy_s=float(sums[BUSY_S]),
    )


def mixed(cores: int, kind: str, costs: Sequence[float], curve: NDArray[np.float64], seconds: float) -> dict[str, Any]:
    """The most load with budgets kept, relative to the best fixed division."""
    service_s = BASELINE * float(curve[64])
    base = GroupTraffic("baseline", 64, BASELINE, 0.5 * cores / service_s, 10 * service_s)
    tried = [
        GroupTraffic(f"tried {n}", 64, BASELINE * cost, 0.125 * cores / (cost * service_s), None, phase=n / 8)
        for n, cost in enumerate(costs, 1)
    ]

    def days(load: float) -> list[Day]:
        groups = [replace(group, rate=group.rate * load) for group in (base, *tried)]
        return [requests(group, curve, seconds, seed) for seed, group in enumerate(groups)]

    budget_s = base.budget_s or 0.0
    late_s = [budget_s, *[LOOSE * budget_s] * len(tried)]

    def kept(pools: Sequence[Pool]) -> bool:
        return all(
            pool.sums[n, LATE] <= 0.01 * max(1, pool.sums[n, COUNT]) for pool in pools for n in range(len(pool.days))
        )

    def fixed(load: float) -> bool:
        whole = days(load)
        for own in range(int(0.3 * cores), int(0.8 * cores) + 1):
            pools = [Pool.of(whole[:1], own, late_s[:1])]
            # The tried models get equal parts of the rest, the first ones what is over.
            for n in range(len(tried)):
                pools.append(Pool.of([whole[n + 1]], (cores - own + n) // len(tried), [late_s[1]]))
            for pool in pools:
                pool.serve(0, WARM_UP_S)
                pool.forget()
                pool.serve(WARM_UP_S, seconds)
                if not kept([pool]):
                    break
            else:
                return True
        return False

    def shared(load: float) -> bool:
        pool = Pool.of(days(load), cores, late_s)
        pool.serve(0, WARM_UP_S)
        pool.forget()
        pool.serve(WARM_UP_S, seconds)
        return kept([pool])

    def by_plan(load: float) -> bool:
        whole = days(load)
        own, rest = Pool.of(whole[:1], cores // 2, late_s[:1]), Pool.of(whole[1:], cores - cores // 2, late_s[1:])
        planner, meters = Planner(cores), [LoadMeter(), LoadMeter()]
        for now_s in np.arange(0, seconds, PLAN_S):
            demands = [
                Demand("baseline", measured(meters[0], own), budget_s),
                Demand("tried", measured(meters[1], rest)),
            ]
            rest.free_at = own.move(planner.plan(now_s, demands).groups["baseline"].cores, rest.free_at, now_s)
            for pool in (own, rest):
                if now_s == WARM_UP_S:
                    pool.forget()
                pool.serve(now_s, now_s + PLAN_S)
        return kept([own, rest])

    most = {name: most_load(holds) for name, holds in (("fixed", fixed), ("shared", shared), ("planned", by_plan))}
    return {"tried": kind, "cores": cores, **{name: load / most["fixed"] for name, load in most.items()}}


def most_load(holds: Callable[[float], bool], high: float = 2.0) -> float:
    """The largest load that holds, to a percent."""
    low = 0.1
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def page(results: dict[str, Any]) -> str:
    rows = [
        [
            str(day["cores"]),
            str(day["groups"]),
            "each its own" if day["shifted"] else "the same",
            f"{day['fixed']:.3%}",
            f"{day['planned']:.3%}",
            f"{day['worst_fixed']:.2%}",
            f"{day['worst_planned']:.2%}",
            f"{day['saved']:.0%}",
        ]
        for day in results["days"]
    ]
    ways = ("fixed", "shared", "planned")
    mixes = [[mix["tried"], str(mix["cores"]), *(f"{mix[way]:.2f}" for way in ways)] for mix in results["mixes"]]
    header = ["cores", "groups", "height of the day", "misses, fixed", "misses, planned"]
    header += ["worst group, fixed", "worst group, planned", "core-hours saved"]
    return "\n".join(
        [
            *opening("Planned cores", __doc__ or "", results),
            table(header, rows),
            "",
            table(["tried models", "cores", *ways], mixes),
            "",
        ]
    )


if __name__ == "__main__":
    main()
