"""Read and validate [online_features.NAME]: inputs that a request may leave out, and where a server looks them up.

Histories that the run writes (`store` of [sequences.NAME]) are read by the group that has their columns or, without
one, from plain hashes under MODEL:SEQUENCE:USER, with a field for each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import require
from freshet_serving.models.data.sequence_columns import FLOATS, TIMES, SequenceConfig
from freshet_serving.processor.errors import BadInput, first_of, nearest
from freshet_serving.processor.options import type_name
from freshet_serving.processor.ports import ENGINE, missing

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.online_features.section import FeatureGroup

HASH = "hash"
LIST_TYPES: dict[str, tuple[str, ...]] = {
    "ids": ("int64_list",),
    "strings": ("string_list", "bytes_list"),
    FLOATS: ("float_list", "double_list"),
    TIMES: ("int64_list", "unix_timestamp_list"),
}
"""Types of online features that have every value of a history's column, by its kind; the first is the usual one."""


def read_online_features(
    raw: dict[str, Any], features: Sequence[FeatureConfig], folder: Path = Path(), events: Sequence[FeatureConfig] = ()
) -> dict[str, FeatureGroup]:
    """Read [online_features.*]; relative paths of registries start in `folder`. Raises BadInput.

    A feature that is called as the list column that a sequence's column is read from in training fills that column.
    """
    columns = {feature.column for feature in features if not feature.cross}
    lists = {c.column: c.name for c in events if c.sequence and not c.sequence.from_events and c.column not in columns}
    columns |= {c.name for c in events}
    groups: dict[str, FeatureGroup] = {}
    if not raw:
        return groups
    group_of = _group_reader(f"[online_features.{first_of(raw)[:64]}]")
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


def with_stored_histories(
    groups: dict[str, FeatureGroup],
    sequences: Mapping[str, SequenceConfig],
    columns: Sequence[FeatureConfig],
    features: Sequence[FeatureConfig],
    model: str,
) -> dict[str, FeatureGroup]:
    """Add the groups of histories that the run writes to a store; raise BadInput if others read them otherwise."""
    kinds = {f.column: f.kind for f in features}
    groups = dict(groups)
    for config in sequences.values():
        if not config.store:
            continue
        lists = {c.name: c.kind for c in columns if c.sequence is not None and c.sequence.name == config.name}
        readers = [group for group in groups.values() if any(f.input in lists for f in group.features)]
        text = kinds.get(config.from_events) == "string"
        if readers:
            _check_reading(config, lists, text, readers)
            continue
        name = f"sequences.{config.name}"
        short = {column: column.partition(".")[2] for column in lists}
        section = {
            "key": config.from_events,
            "store": config.store,
            "format": HASH,
            "key_template": f"{model}:{config.name}:{{{config.from_events}}}",
            "features": list(short.values()),
            "types": {short[column]: LIST_TYPES[kind][0] for column, kind in lists.items()},
            "names": {key: column for column, key in short.items()},
            "key_types": {config.from_events: "string" if text else "int64"},
        }
        groups[name] = _group_reader(f"sequences.{config.name}.store")(name, section, Path())
    return groups


def _check_reading(
    config: SequenceConfig, lists: Mapping[str, str], text: bool, readers: Sequence[FeatureGroup]
) -> None:
    """Check that groups read a history's columns, kinds by name, as they are written; `text`: users are strings."""
    where = f"online_features.{readers[0].name}"
    group, user = readers[0], config.from_events
    together = f"all columns of [sequences.{config.name}], which are written to one store, in one group"
    filled = {f.input: f for f in group.features if f.input in lists}
    absent = [name for name in lists if name not in filled]
    require(len(readers) == 1, f"{where}.features", together, f"some of them in {readers[-1].name!r}")
    require(not absent, f"{where}.features", together, f"none for {', '.join(absent)[:64]}")
    require(
        group.store == config.store, f"{where}.store", f"sequences.{config.name}.store, {config.store!r}", group.store
    )
    for name, feature in filled.items():
        keys = [(key.input, key.dtype) for key in feature.keys]
        require(keys == [(user, "string" if text else "int64")], f"{where}.key", f"{user!r}, of its type", str(keys))
        types = LIST_TYPES[lists[name]]
        require(feature.type in types, f"{where}.types: {feature.feature!r}", " or ".join(types), feature.type)
    alone = group.format != HASH or len(filled) == len(group.features)
    others = f"only columns of [sequences.{config.name}], whose ttl_s is the keys' expiry"
    require(alone or not config.ttl_s, f"{where}.features", others, "others beside them")


def _group_reader(subject: str) -> Any:
    """Return the extension's reader of a section of a group; raise its error if the extension is not there."""
    reader = ENGINE.get("training_sections", "online_features")
    if reader is None:
        raise missing(subject, "online_features")
    return reader
