"""[guard]: when a delta is held back before it is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require_between, require_positive


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """[guard]. enabled: whether windows are judged at all. A window is out of line where a figure of it is off by more
    than `sigmas` of its usual spread, and by more than these: auc_drop: of AUC; calibration: of the mean score over the
    mean label, as a share; loss_rise: of the log-loss of rows learned before, as a share of it. first_windows: so many
    are only learned from where no held-out rows of the full version say what is usual. release_windows: so many that
    are in line again release what is held (0: somebody has to)."""

    enabled: bool = True
    auc_drop: float = 0.02
    calibration: float = 0.2
    loss_rise: float = 0.1
    sigmas: float = 6.0
    first_windows: int = 5
    release_windows: int = 2


def read_guard(raw: dict[str, Any]) -> GuardConfig:
    """[guard], checked; raises BadInput."""
    guard = parse_section(GuardConfig, raw, "guard")
    for key in ("auc_drop", "calibration", "loss_rise"):
        require_between(getattr(guard, key), 0.0, 100.0, f"guard.{key}")
    require_positive(guard.sigmas, "guard.sigmas")
    require_between(guard.first_windows, 2, 10_000, "guard.first_windows")
    require_between(guard.release_windows, 0, 10_000, "guard.release_windows")
    return guard
