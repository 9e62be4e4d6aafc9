"""Read and validate [evaluate], the metrics of held-out rows and of rows that `freshet evaluate` scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import parse_section, require, require_between
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option

GROUPED = ("id", "string")
TOP = 10


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """The section [evaluate]."""

    by: tuple[str, ...] = field(
        default=(), metadata=option("break metrics down by the values of these columns, features or not")
    )
    group: str = field(
        default="",
        metadata=option(
            "compute AUC, hit rate and NDCG within groups of this column",
            empty="the first `id` or `string` feature of side `user`",
        ),
    )
    top: int = field(default=TOP, metadata=option("places of a group's ranking that count in hit rate and NDCG"))


def read_evaluate(raw: dict[str, Any], features: Sequence[FeatureConfig]) -> EvaluateConfig:
    """Read [evaluate] and fill in its group.

    Args:
        raw: The section.

    Raises:
        BadInput: The section is invalid.
    """
    given = parse_section(EvaluateConfig, raw, "evaluate")
    for i, name in enumerate(given.by):
        require(name != "", f"evaluate.by[{i}]", "a column", "")
        require(name not in given.by[:i], f"evaluate.by[{i}]", "each column once", name)
    require_between(given.top, 1, 10_000, "evaluate.top")
    kinds = {f.name: f.kind for f in features}
    if given.group and kinds.get(given.group, "id") in ("ids", "strings"):
        raise BadInput(f"evaluate.group: expected a column of one value a row, got {given.group!r} of lists")
    if "group" in raw:
        require(given.group != "", "evaluate.group", "a column", "")
    return EvaluateConfig(given.by, given.group or default_group(features), given.top)


def default_group(features: Sequence[FeatureConfig]) -> str:
    """Return the first feature of side "user" with one id or string a row; "" if there is none."""
    return next((f.name for f in features if f.side == "user" and f.kind in GROUPED), "")
