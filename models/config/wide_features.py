"""Features of linear weights: `wide = true`, a table of dim 1 whose rows are added to the logit.

With a `dim` of its own the feature stays as it is, and its linear weight is a second feature, `<name>.wide`, with a
table of that suffix; without one the feature is its linear weight alone. Wide features come last, so that a network
reads the columns before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.toml_sections import require
from freshet_serving.models.zoo.architectures import NEXT_ITEM

SEVERAL_OUTPUTS = ("mmoe", "esmm", "two_tower", *NEXT_ITEM)
"""Networks whose score is not the logit of one label alone."""


def with_wide_features(
    features: Sequence[FeatureConfig], raw: Mapping[str, Any], arch: str, labels: Sequence[str]
) -> list[FeatureConfig]:
    """Return the features, those of linear weights last.

    Args:
        features: The features, those of sequences not among them.
        raw: The sections [features.*].
        arch: The network.
        labels: The labels.

    Raises:
        BadInput: The network has more outputs than the score of one label, or a feature does not fit.
    """
    others: list[FeatureConfig] = []
    wide: list[FeatureConfig] = []
    for f in features:
        where = f"features.{f.name}.wide"
        if not f.wide:
            others.append(f)
            continue
        one = arch not in SEVERAL_OUTPUTS and len(labels) == 1
        require(one, where, "a network with one output, the score of one label", arch)
        require(f.combiner != "none", where, "a combiner that adds rows up", f.combiner)
        # Parts of a cross with decay have the section of the cross, which their table may be named after.
        alone = "dim" not in next((raw[n] for n in (f.name, f.name.rpartition(".")[0]) if n in raw), {})
        if alone:
            wide.append(dataclasses.replace(f, dim=1))
        else:
            others.append(dataclasses.replace(f, wide=False))
            wide.append(
                dataclasses.replace(
                    f,
                    name=f"{f.name}.wide",
                    from_=f.from_ or f.name if not f.cross else "",
                    table=f"{f.table}.wide",
                    dim=1,
                )
            )
    names = [f.name for f in (*others, *wide)]
    for f in wide:
        require(names.count(f.name) == 1, f"features.{f.name}", "a name that no linear weight has", f.name)
    dims = {f.table: f.dim for f in others}
    for f in wide:
        require(dims.get(f.table, 1) == 1, f"features.{f.name}.wide", "a dim, or a table of its own", f.table)
    return [*others, *wide]


def wide_tables(features: Sequence[FeatureConfig]) -> dict[str, TableConfig]:
    """Return the settings of tables of linear weights: they begin as 0, so that an unknown id changes nothing.

    Args:
        features: The features.
    """
    return {f.table: TableConfig(init="zeros") for f in features if f.wide}
