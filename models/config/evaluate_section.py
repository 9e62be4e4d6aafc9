"""Read and validate [evaluate], the metrics of held-out rows and of rows that `freshet evaluate` scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import parse_section, require, require_between
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option

GROUPED = ("id", "string")
TOP = 10


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    by: tuple[str, ...] = option((), "break metrics down by the values of these columns, features or not")
    group: str = option(
        "",
        "compute AUC, hit rate and NDCG within groups of this column",
        empty="the first `id` or `string` feature of side `user`",
    )
    top: int = option(TOP, "places of a group's ranking that count in hit rate and NDCG")


def read_evaluate(raw: dict[str, Any], features: Sequence[FeatureConfig]) -> EvaluateConfig:
    """Read [evaluate] and fill in its group. Raises BadInput."""
    config = parse_section(EvaluateConfig, raw, "evaluate")
    for i, name in enumerate(config.by):
        require(name != "", f"evaluate.by[{i}]", "a column", "")
        require(name not in config.by[:i], f"evaluate.by[{i}]", "each column once", name)
    require_between(config.top, 1, 10_000, "evaluate.top")
    kinds = {f.name: f.kind for f in features}
    if config.group and kinds.get(config.group, "id") in ("ids", "strings"):
        raise BadInput(f"evaluate.group: expected a column of one value a row, got {config.group!r} of lists")
    if "group" in raw:
        require(config.group != "", "evaluate.group", "a column", "")
    return replace(config, group=config.group or default_group(features))


def default_group(features: Sequence[FeatureConfig]) -> str:
    """Return the first feature of side "user" with one id or string a row; "" if there is none."""
    return next((f.name for f in features if f.side == "user" and f.kind in GROUPED), "")
