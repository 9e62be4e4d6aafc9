"""Read and validate [guard], the limits beyond which a delta is held (quarantined) before it is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require_between
from freshet_serving.processor.options import option

OF_LABELS = ("auc_drop", "calibration", "loss_rise")
"""Keys about the scores of labelled rows."""


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """The section [guard].

    A window is an outlier if one of its figures deviates by more than six times its usual spread and by more than the
    limit of that figure.
    """

    enabled: bool = option(True, "whether the guard checks windows at all")
    auc_drop: float = option(0.02, "ignore a fall of the AUC below this")
    calibration: float = option(0.2, "ignore a mean score that differs from the mean label by less than this share")
    loss_rise: float = option(0.1, "ignore a rise of the log-loss on earlier rows below this share")
    release_windows: int = option(2, "release what is held after this many normal windows in a row; 0: only by hand")


def read_guard(raw: dict[str, Any]) -> GuardConfig:
    guard = parse_section(GuardConfig, raw, "guard")
    for key in OF_LABELS:
        require_between(getattr(guard, key), 0.0, 100.0, f"guard.{key}")
    require_between(guard.release_windows, 0, 10_000, "guard.release_windows")
    return guard
