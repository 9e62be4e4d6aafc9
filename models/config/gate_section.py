"""Read and validate [publish.gate], the bounds beyond which a full version is refused before it is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require_between, require_one_of
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option, type_name

GATES = ("on", "warn", "off")


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The section [publish.gate].

    A figure is out of bounds if it is worse by more than its bound here, by more than six times its sampling
    error, and by more than six times what it usually moves by from one version to the next.
    """

    mode: str = option(
        "on",
        "what happens to a full version that is out of bounds: `on`: it becomes a candidate and is not served, "
        "`warn`: it is published and reported, `off`: no version is judged",
    )
    auc_drop: float = option(0.02, "ignore an AUC lower than the served version's by this")
    held_out_drop: float = option(
        0.05,
        "ignore an AUC or NDCG of held-out rows, or an NDCG or hit rate of the newest events, lower than the "
        "version's before by this",
    )
    loss_rise: float = option(0.1, "ignore a rise of the log-loss below this share")
    calibration: float = option(0.25, "ignore a mean score that is further off the mean label by less than this share")
    coverage: float = option(0.1, "ignore a fall of the share of ids that have a row, other than zeros, below this")
    rows: float = option(0.5, "least rows trained on, as a share of the version's before")


def read_gate(raw: Any) -> GateConfig:
    """Read and validate [publish.gate], or its mode alone; raise BadInput if it is invalid."""
    if not isinstance(raw, str | dict):
        raise BadInput(f"publish.gate: expected one of {', '.join(GATES)}, or a section, got {type_name(raw)}")
    gate = parse_section(GateConfig, {"mode": raw} if isinstance(raw, str) else raw, "publish.gate")
    require_one_of(gate.mode, GATES, "publish.gate")
    for key in ("auc_drop", "held_out_drop", "coverage", "rows"):
        require_between(getattr(gate, key), 0.0, 1.0, f"publish.gate.{key}")
    for key in ("loss_rise", "calibration"):
        require_between(getattr(gate, key), 0.0, 100.0, f"publish.gate.{key}")
    return gate
