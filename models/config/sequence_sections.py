"""Read and validate [sequences.<name>], the histories that a model reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from freshet_serving.models.config.feature_sections import HASHED, LABEL_KIND, FeatureConfig, check_marker
from freshet_serving.models.config.toml_sections import (
    named_sections,
    parse_section,
    require,
    require_between,
    require_one_of,
)
from freshet_serving.models.data.formats import TABLES, DataConfig, label_names
from freshet_serving.models.data.open_data import columns_of
from freshet_serving.models.data.sequence_columns import FLOATS, TIES, TIMES, SequenceConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import KEEPS, MAX_EVENTS, NAME, TIME_UNITS

TAKEN = ("time", "row_splits", "lengths")
"""Names that no column may have, because a request sends them beside the columns."""


def read_sequences(
    raw: dict[str, Any], features: Sequence[FeatureConfig], data: DataConfig
) -> tuple[dict[str, SequenceConfig], list[FeatureConfig]]:
    """Read [sequences.*]; return the sections, and their columns as features `<sequence>.<column>`. Raises BadInput."""
    configs: dict[str, SequenceConfig] = {}
    columns: list[FeatureConfig] = []
    # Columns of strings, as features that are made of them have it.
    texts = {f.column for f in features if f.window and not f.cross and f.kind in HASHED}
    texts |= {f"{f.column.partition('.')[0]}.{key}" for f in features for key, v in f.where.items() if type(v) is str}
    for name, where, section in named_sections(raw, "sequences"):
        plain = NAME.fullmatch(name) is not None and "." not in name and name != "x"
        require(plain, where, "a name of letters, digits, '_', '-' other than x", name)
        config = parse_section(SequenceConfig, section, where, name=name)
        kinds = _event_kinds(config, features, data, where) if config.from_events else {}
        _check(config, kinds, features, data, where)
        configs[name] = config
        columns += _columns(config, [*features, *columns], kinds, texts, data, where)
    return configs, columns


def with_item_sides(
    features: Sequence[FeatureConfig], columns: Sequence[FeatureConfig], raw: Mapping[str, Any]
) -> list[FeatureConfig]:
    """Return the features, with side `item` where a sequence implies it.

    Events are compared with candidates by a table that both have, so the one feature that shares a sequence's table is
    the candidates', unless its section (in `raw`) says otherwise.
    """
    shared = {f.table for f in columns if f.table}
    readers = {table: [f for f in features if f.table == table] for table in shared}
    implied = {
        f.name
        for (f, *others) in filter(None, readers.values())
        if not others and f.kind in ("id", "string") and "side" not in raw.get(f.name, {})
    }
    return [dataclasses.replace(f, side="item") if f.name in implied else f for f in features]


def _event_kinds(
    config: SequenceConfig, features: Sequence[FeatureConfig], data: DataConfig, where: str
) -> dict[str, str]:
    """Return the kinds of a log's columns: those of features, and of others as the data suggest.

    What is known of an event only afterwards, such as its action, enters histories without being a feature.
    """
    kinds = {f.column: f.kind for f in features}
    others = [column for column in config.columns.values() if isinstance(column, str) and column not in kinds]
    if not others or data.format not in TABLES:
        return kinds
    taken = (*label_names(data), data.clock, data.weight)
    for column in others:
        require(column not in taken, f"{where}.columns", "columns other than data.label, time and weight", column)
    return kinds | {f.name: f.kind for f in columns_of(data, others)}


def _check(
    config: SequenceConfig, kinds: Mapping[str, str], features: Sequence[FeatureConfig], data: DataConfig, where: str
) -> None:
    require(bool(config.columns), f"{where}.columns", "at least one column", "none")
    for key in (*config.columns, *config.floats):
        plain = NAME.fullmatch(key) is not None and key not in TAKEN
        require(plain, f"{where}.columns", f"names of letters, digits, '_' other than {', '.join(TAKEN)}", key)
    for key, column in config.floats.items():
        require(key not in config.columns, f"{where}.floats", "names that columns does not have", key)
        named = NAME.fullmatch(column) is not None and column not in (data.clock, data.weight)
        require(named, f"{where}.floats", "columns of numbers other than data.time and data.weight", column)
    for key in config.tables:
        require_one_of(key, config.columns, f"{where}.tables")
    require_between(config.max_length, 1, MAX_EVENTS, f"{where}.max_length")
    require_between(config.dim, 1, 4096, f"{where}.dim")
    require_one_of(config.keep, KEEPS, f"{where}.keep")
    require_one_of(config.time_unit, TIME_UNITS, f"{where}.time_unit")
    require_one_of(config.ties, TIES, f"{where}.ties")
    require_between(config.memory_mb, 1, 1 << 30, f"{where}.memory_mb")
    require(config.ttl_s >= 0, f"{where}.ttl_s", "0 or more seconds", str(config.ttl_s))
    require(not config.ttl_s or config.keep == "newest", f"{where}.ttl_s", "keep = 'newest' with it", config.keep)
    if config.padding is not None and config.from_events:
        raise BadInput(f"{where}.padding: only for list columns, but this history is made of events (from_events)")
    if not config.from_events:
        for key in ("where", "ties", "guest", "ttl_s", "memory_mb", "store"):
            default = SequenceConfig.__dataclass_fields__[key].default
            if getattr(config, key) != default:
                raise BadInput(f"{where}.{key}: only with from_events")
        return
    read = {f.column: f.kind for f in features if f.kind in ("id", "string")}
    require_one_of(
        config.from_events, sorted(read), f"{where}.from_events", ", columns of features of kind id or string"
    )
    for column in config.columns.values():
        kind = kinds.get(column, "")
        if kind not in ("id", "string"):
            require(not kind, f"{where}.columns", f"a column of ids or strings ({where}.floats takes numbers)", column)
            require_one_of(column, sorted(read), f"{where}.columns", ", columns of features of kind id or string")
    check_marker(config.guest, read[config.from_events] == "string", f"{where}.guest")
    if config.time:
        require(config.time == data.clock, f"{where}.time", f"data.time, {data.clock!r}", config.time)
        require(config.time_unit == "s", f"{where}.time_unit", "'s' with from_events", config.time_unit)
    if config.where and config.where not in label_names(data):
        floats = [f.column for f in features if f.kind == "float"]
        require_one_of(config.where, [*label_names(data), *floats], f"{where}.where", ", a label or a float feature")


def _columns(
    config: SequenceConfig,
    others: Sequence[FeatureConfig],
    kinds: Mapping[str, str],
    texts: Collection[str],
    data: DataConfig,
    where: str,
) -> list[FeatureConfig]:
    """Return a sequence's columns as features.

    Args:
        others: Features whose tables it may share.
        kinds: Kinds of an event log's columns; {} for list columns.
        texts: List columns that hold strings, as far as features tell.
    """
    tables = {f.table: f for f in others if f.table}
    columns: list[FeatureConfig] = []
    for key, column in config.columns.items():
        table = config.tables.get(key, f"{config.name}.{key}")
        shared = tables.get(table)
        hashed = shared.kind in HASHED if shared else kinds.get(column) == "string"
        hashed |= not kinds and f"{config.name}.{key}" in texts and not shared
        if kinds and shared and (kinds[column] == "string") != hashed:
            raise BadInput(
                f"{where}.tables: expected a table for {kinds[column]!r}, got {table!r}, which is for another kind"
            )
        if not columns:
            check_marker(config.padding, hashed, f"{where}.padding")
        feature = FeatureConfig(
            f"{config.name}.{key}",
            "strings" if hashed else "ids",
            table,
            shared.dim if shared else config.dim,
            "user",
            "none",
            config.max_length,
            dtype=shared.dtype if shared else "",
            from_=column,
            sequence=config,
        )
        columns.append(feature)
        tables.setdefault(table, feature)
    for key, column in config.floats.items():
        name, kind = f"{config.name}.{key}", LABEL_KIND if config.from_events and column in label_names(data) else ""
        feature = FeatureConfig(
            name, FLOATS, side="user", max_length=config.max_length, from_=column, column_kind=kind, sequence=config
        )
        expected = feature.reads.kind if feature.reads is not None else ""
        for read in (f.reads for f in (*others, *columns)):
            if expected and read is not None and read.name == column:
                require(read.kind == expected, f"{where}.floats", f"a column of kind {expected!r}", column)
        columns.append(feature)
    if config.time:
        columns.append(FeatureConfig(f"{config.name}.time", TIMES, side="user", from_=config.time, sequence=config))
    # The data choose how floats are transformed, as those of features.
    return [f if f.kind == FLOATS else dataclasses.replace(f, transform="none") for f in columns]
