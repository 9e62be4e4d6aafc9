"""Read what the replicas of a fleet report about trainers, and choose the newest report of each.

A trainer that is silent or has failed makes no replica unhealthy: all serve what there is. A replica that is cut off
from the repository sees every trainer fall silent, so the report with the least age counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.errors import BadInput, printable

MAX_TEXT, HIGHEST = 400, 2**63


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """A trainer as one replica reports it.

    Attributes:
        age_s: Seconds since the replica saw its report change.
        problem: Reason why somebody should look at it; "" for none.
    """

    state: str
    age_s: float
    rows_per_s: float
    problem: str


def read_trainer(entry: Any) -> TrainerStatus | None:
    """Return the trainer of a model's entry in GET /admin/models; None if it has none, as from an older server."""
    trainer = entry.get("trainer") if isinstance(entry, dict) else None
    if trainer is None:
        return None
    if not isinstance(trainer, dict):
        raise BadInput(f"trainer: expected an object, got {type(trainer).__name__}")
    state, problem = (_text(trainer, name) for name in ("state", "problem"))
    age_s, rows_per_s = (_number(trainer, name) for name in ("age_s", "rows_per_s"))
    return TrainerStatus(state, age_s, rows_per_s, problem)


def newest_trainers(reports: Iterable[Mapping[str, TrainerStatus]]) -> dict[str, TrainerStatus]:
    newest: dict[str, TrainerStatus] = {}
    for report in reports:
        for model, status in report.items():
            if model not in newest or status.age_s < newest[model].age_s:
                newest[model] = status
    return dict(sorted(newest.items()))


def trainer_line(model: str, status: TrainerStatus) -> str:
    if status.problem:
        return f"{model}: {status.problem}"
    rate = f", {status.rows_per_s:,.0f} rows/s" if status.state == "running" else ""
    return f"{model}: trainer {status.state}{rate}"


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise BadInput(f"trainer: {name}: expected a text, got {type(value).__name__}")
    return printable(value)[:MAX_TEXT]


def _number(document: dict[str, Any], name: str) -> float:
    value = document.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < HIGHEST:
        raise BadInput(f"trainer: {name}: expected a number of at least 0")
    return float(value)
