"""Read and validate [online_features.NAME]: inputs that a request may leave out, and where a server looks them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.processor.errors import BadInput, first_of, nearest
from freshet_serving.processor.options import type_name
from freshet_serving.processor.ports import ENGINE, missing

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.online_features.section import FeatureGroup


def read_online_features(
    raw: dict[str, Any], features: Sequence[FeatureConfig], folder: Path = Path(), events: Sequence[FeatureConfig] = ()
) -> dict[str, FeatureGroup]:
    """Read [online_features.*].

    A feature that is called as the list column that a sequence's column is read from in training fills that column.

    Args:
        raw: The sections by name.
        features: The features of the model.
        folder: The folder that a relative path of a registry starts from.
        events: The columns of sequences.

    Raises:
        BadInput: A section is invalid, or fills what the model does not read.
    """
    columns = {feature.column for feature in features if not feature.cross}
    lists = {c.column: c.name for c in events if c.sequence and not c.sequence.from_events and c.column not in columns}
    columns |= {c.name for c in events}
    groups: dict[str, FeatureGroup] = {}
    if not raw:
        return groups
    group_of = ENGINE.get("training_sections", "online_features")
    if group_of is None:
        raise missing(f"[online_features.{first_of(raw)[:64]}]", "online_features")
    for name, section in raw.items():
        where = f"online_features.{name[:64]}"
        if not isinstance(section, dict):
            raise BadInput(f"{where}: expected a section [{where}], got {type_name(section)}")
        group: FeatureGroup = group_of(name, section, folder)
        named = tuple(replace(f, input=lists.get(f.input, f.input)) for f in group.features)
        groups[name] = group = replace(group, features=named)
        for feature in group.features:
            if feature.input not in columns:
                raise BadInput(
                    f"{where}.features: no feature of the model reads {feature.input[:64]!r}"
                    f"{nearest(feature.input, columns)}; rename it in names, or leave it out"
                )
    return groups
