"""Describe what was chosen of several ways to compute the same, what each costs, and how to choose otherwise.

One form for all that chooses by cost: `freshet compile` (which executable, precision and device), a version at load and
its review by requests (which requests are divided). `freshet inspect` and `GET /admin/models` show it. Nothing here
decides.

Notes of a package may hold anything: what does not look like a measurement is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from freshet_serving.processor.package import PRECISIONS, SCORE, USER, ExecutableEntry, Manifest, undivided_name
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.graph_run import WORTH
from freshet_serving.processor.running.split_choice import SplitCost

NOT_MEASURED = "not measured"
COMPILE = "freshet compile --backends, --precision"
SIDES = "the features' `side` in training, `freshet import --user`"
WHOLE_WAY, DIVIDED_WAY, AT_LOAD = "whole", "divided", "timed at load"
MOST_SAVED = 1 << 20
"""Most measurements that are read of a package's notes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: what for (rows of the batch or request; 0 for any), by which costs, and how to choose otherwise.

    `cost_us` are microseconds by candidate, None where it was not measured.
    """

    name: str
    rows: int
    chosen: str
    cost_us: Mapping[str, float | None]
    why: str
    override: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "cost_us": dict(self.cost_us)}

    @property
    def measured(self) -> bool:
        return any(cost is not None for cost in self.cost_us.values())

    def costs(self) -> str:
        """Return the chosen candidate and then the others, with their costs."""
        others = [_cost(name, cost) for name, cost in self.cost_us.items() if name != self.chosen]
        chosen = _cost(self.chosen, self.cost_us[self.chosen]) if self.chosen in self.cost_us else self.chosen
        return chosen + (f"; others: {', '.join(others)}" if others else "")


def choice_lines(choices: Sequence[Choice]) -> list[str]:
    """Return lines for people: one for each choice, one for all of a name (in a row) that nobody has measured."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for choice in choices:
        alone = str(choice.rows) if choice.measured else ""
        key = (choice.name, choice.costs(), choice.why, choice.override, alone)
        lines.setdefault(key, []).append(f"{choice.rows:,}" if choice.rows else "")
    text, override = list[str](), ""
    for (name, costs, why, how, _), rows in lines.items():
        of_rows = f" of {', '.join(rows)} rows" if any(rows) else ""
        text.append(f"{name}{of_rows}: {costs} ({why}{f'; otherwise: {how}' if how != override else ''})")
        override = how
    return text


def package_choices(manifest: Manifest) -> list[Choice]:
    """Return the choices that a package holds, with costs as measured when it was compiled."""
    costs = _compiled_costs(manifest)
    entries: dict[tuple[str, int], list[ExecutableEntry]] = {}
    for entry in manifest.executables:
        entries.setdefault((entry.subgraph, entry.bucket), []).append(entry)
    choices = [_executable(subgraph, bucket, costs, tried) for (subgraph, bucket), tried in entries.items()]
    undivided = [tried for (subgraph, _), tried in entries.items() if subgraph == undivided_name(manifest)]
    if undivided:
        largest = max(undivided, key=lambda tried: tried[0].bucket)
        cost_us = costs[largest[0].subgraph, largest[0].bucket]
        choices += [_precision(manifest, largest, cost_us), _device(largest, cost_us)]
    return [*choices, *_predicted_splits(manifest, entries)]


def split_choices(splits: Iterable[SplitCost]) -> list[Choice]:
    """Return the choices of a loaded version between whole and divided requests."""
    return [
        Choice(
            "request" + (f" with at most {each.length} events" if each.length else ""),
            each.rows,
            DIVIDED_WAY if each.divided else WHOLE_WAY,
            {WHOLE_WAY: each.whole_us, DIVIDED_WAY: each.divided_us},
            f"timed at load, compared by requests {each.reviews} times" if each.reviews else "timed at load",
            SIDES,
        )
        for each in splits
    ]


def _compiled_costs(manifest: Manifest) -> dict[tuple[str, int], dict[str, float | None]]:
    """Return microseconds by variant, for each subgraph and bucket that has an executable."""
    costs: dict[tuple[str, int], dict[str, float | None]] = {}
    for entry in manifest.executables:
        costs.setdefault((entry.subgraph, entry.bucket), {}).setdefault(
            entry.variant, entry.cost_us if _is_cost(entry.cost_us) else None
        )
    note = manifest.notes.get("compile")
    if isinstance(note, dict):
        parts = note.get("parts")
        listed = {undivided_name(manifest): note.get("measured"), **(parts if isinstance(parts, dict) else {})}
        for subgraph, lines in listed.items():
            for line in lines[:MOST_SAVED] if isinstance(lines, list) else ():
                if not isinstance(line, dict):
                    continue
                variant, bucket, cost_us = line.get("variant"), line.get("bucket"), line.get("cost_us")
                cost_by_variant = costs.get((subgraph, bucket)) if isinstance(bucket, int) else None
                if cost_by_variant is not None and isinstance(variant, str) and _is_cost(cost_us):
                    cost_by_variant[variant[:64]] = cost_us
    return costs


def _is_cost(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _executable(
    subgraph: str,
    bucket: int,
    costs: Mapping[tuple[str, int], dict[str, float | None]],
    tried: Sequence[ExecutableEntry],
) -> Choice:
    cost_us, first = costs[subgraph, bucket], tried[0]
    if len(cost_us) == 1:
        why = "the only one compiled"
    elif cost_us[first.variant] is None:
        why = "where its device is; else the next that was compiled"
    elif first.cost_us <= min(cost for cost in cost_us.values() if cost is not None):
        why = f"the fastest on {first.measured_on}"
    else:
        why = "the fastest in its precision"
    return Choice(f"executable of {subgraph}", bucket, first.variant, cost_us, why, COMPILE)


def _precision(manifest: Manifest, tried: Sequence[ExecutableEntry], cost_us: Mapping[str, float | None]) -> Choice:
    by_precision: dict[str, float | None] = {}
    for variant, cost in cost_us.items():
        last = variant.rpartition(" ")[2]
        precision = last if last in PRECISIONS else "float32"
        by_precision[precision] = _least(by_precision.get(precision), cost)
    note = manifest.notes.get("compile")
    named = note.get("precision") if isinstance(note, dict) else None
    chosen = tried[0].precision
    why = "exact" if chosen == "float32" else f"at most {tried[0].max_error:g} off float32's scores"
    if isinstance(named, str):
        why += f"; compiled with --precision {named[:16]}"
    return Choice("precision", tried[0].bucket, chosen, by_precision, why, "freshet compile --precision")


def _device(tried: Sequence[ExecutableEntry], cost_us: Mapping[str, float | None]) -> Choice:
    by_device: dict[str, float | None] = {}
    for entry in tried:
        by_device[_device_of(entry)] = _least(by_device.get(_device_of(entry)), cost_us[entry.variant])
    why = "the only one compiled for" if len(by_device) == 1 else "where it is; else the next"
    return Choice(
        "device", tried[0].bucket, _device_of(tried[0]), by_device, why, "freshet compile --targets, device_stages"
    )


def _predicted_splits(manifest: Manifest, entries: Mapping[tuple[str, int], Sequence[ExecutableEntry]]) -> list[Choice]:
    """Return what the server's timing at load is likely to choose, for the longest histories."""
    tables: dict[str, dict[int, float]] = {}
    for (subgraph, bucket), tried in entries.items():
        tables.setdefault(subgraph, {})[bucket] = tried[0].cost_us * 1e-6
    if USER not in tables or SCORE not in tables or undivided_name(manifest) not in tables:
        return []
    names = (undivided_name(manifest), USER, SCORE)
    most = max(max(tables[names[0]]), max(tables[SCORE]))
    sizes = [1 << power for power in range(most.bit_length())]
    if not all(cost > 0 for name in names for cost in tables[name].values()):
        unknown = {WHOLE_WAY: None, DIVIDED_WAY: None}
        return [Choice("request", size, AT_LOAD, unknown, "by the server", SIDES) for size in sizes]
    whole, user, score = (CostTable(tables[name]) for name in names)
    choices = []
    for size in sizes:
        whole_us, divided_us = whole.amortised_dense_s(size) * 1e6, (user.dense_s(1) + score.dense_s(size)) * 1e6
        chosen = DIVIDED_WAY if divided_us < WORTH * whole_us else WHOLE_WAY
        costs = {WHOLE_WAY: round(whole_us, 1), DIVIDED_WAY: round(divided_us, 1)}
        choices.append(Choice("request", size, chosen, costs, "predicted; the server times both at load", SIDES))
    return choices


def _device_of(entry: ExecutableEntry) -> str:
    return entry.target if "cuda" in entry.target or "tensorrt" in entry.target else "cpu"


def _least(first: float | None, second: float | None) -> float | None:
    return min((cost for cost in (first, second) if cost is not None), default=None)


def _cost(name: str, cost_us: float | None) -> str:
    return f"{name} {NOT_MEASURED}" if cost_us is None else f"{name} {cost_us:,.0f} us"
