"""Read and validate [user_table.<name>]: a table of users whose columns are joined to the rows of a log.

Its columns become features of the user. Unlike those of [entities] they are no part of the package: a request sends
them, or with `serve = "online"` an online store has them, by the section [online_features] of the same name, which
then need not name them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from freshet_serving.models.config.entity_sections import EntityConfig
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import named_sections, parse_section, require, require_one_of
from freshet_serving.models.data.formats import TABLES, DataConfig, format_of
from freshet_serving.models.data.open_data import columns_of, default_features, table_columns
from freshet_serving.models.data.source import Field, wanted_fields
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option, required
from freshet_serving.processor.package import NAME

NO_FIELD = Field("", "id")
REQUESTS, ONLINE = "requests", "online"
STORED_TYPES = {"id": "int64", "ids": "int64_list", "string": "string", "strings": "string_list", "float": "float"}
"""Types of online features by the kind of the column that they fill."""

Sections = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserTableConfig:
    """The section [user_table.<name>]; `fields` are the columns that are joined."""

    name: str
    key: str = field(metadata=required("column of the user, in the table and in the data: ids or strings"))
    path: str = field(metadata=required("file, folder or glob of the table, relative to the working folder"))
    columns: tuple[str, ...] = option((), "columns to join", empty="all but those of `key` and `time`")
    time: str = option(
        "",
        "column of the table that its rows are sorted by: training reads a user's last row at or before the event",
        empty="the table has one row a user",
    )
    format: str = option("", "`parquet`, `csv`, `tfrecord`", empty="determined by the suffix")
    serve: str = option(
        REQUESTS,
        "where the columns are at serving: `requests` send them, or `online`: the store of the section"
        " `[online_features.NAME]` of the same name has them",
    )
    fields: tuple[Field, ...] = ()
    key_field: Field = NO_FIELD

    @property
    def section(self) -> str:
        return f"user_table.{self.name}"

    @property
    def further(self) -> tuple[Field, ...]:
        return ()

    @property
    def once(self) -> bool:
        return not self.time

    @property
    def data(self) -> DataConfig:
        return DataConfig(self.path, self.format or format_of(self.path), (), self.time)


def read_user_tables(raw: Mapping[str, Any], data: DataConfig) -> list[UserTableConfig]:
    """Read all [user_table.*] sections, their columns with the kinds that the first files suggest. Raises BadInput."""
    tables: list[UserTableConfig] = []
    for name, where, section in named_sections(raw, "user_table"):
        require(NAME.fullmatch(name) is not None, where, "a name of letters, digits, '_', '.', '-'", name)
        table = parse_section(UserTableConfig, section, where, name=name, fields=(), key_field=NO_FIELD)
        require_one_of(table.serve, (REQUESTS, ONLINE), f"{where}.serve")
        require(table.data.format in TABLES, f"{where}.path", f"a table ({', '.join(TABLES)})", table.data.format)
        require(not table.time or bool(data.clock), f"{where}.time", "data.time as well, the events' time", table.time)
        table = _with_fields(table, where)
        for other in tables:
            both = [f.name for f in table.fields if f.name in {o.name for o in other.fields} | {other.key}]
            require(not both, f"{where}.columns", f"other columns than {other.section} has", ", ".join(both))
            require(table.key not in {o.name for o in other.fields}, f"{where}.key", "a column of the data", table.key)
        tables.append(table)
    return tables


def with_user_columns(raw: Sections, tables: Sequence[UserTableConfig], data: DataConfig) -> Sections:
    """Return the sections of a file with those that user tables imply; they are not yet validated. Raises BadInput.

    A joined column without a feature becomes one; features of joined columns have side `user` unless they say
    otherwise; with `serve = "online"`, the online section names all columns.
    """
    if not tables:
        return raw
    sections = raw.get("features") or default_features(data.format, data.path)
    features = {key: dict(f) if isinstance(f, dict) else f for key, f in sections.items()}
    online = {key: dict(g) if isinstance(g, dict) else g for key, g in raw.get("online_features", {}).items()}
    for table in tables:
        read: set[str] = set()
        for name, section in features.items():
            if isinstance(section, dict) and "cross" not in section:
                column = section.get("from", name)
                if column in {f.name for f in table.fields}:
                    section.setdefault("side", "user")
                    read.add(column)
        for f in table.fields:
            if f.name not in read:
                if f.kind not in STORED_TYPES:
                    raise BadInput(
                        f"{table.section}.columns: expected columns that can be features, got {f.name!r}, which has"
                        f" {'times: name it in time' if f.kind == 'seconds' else 'lists of numbers'}, or name the"
                        " columns to join"
                    )
                features[f.name] = {"kind": f.kind, "side": "user"}
        if table.serve == ONLINE:
            online = online | {table.name: _served(table, online.get(table.name), features)}
    return raw | {"features": features} | ({"online_features": online} if online else {})


def bound_user_tables(
    tables: Sequence[UserTableConfig],
    features: Sequence[FeatureConfig],
    online: Mapping[str, Any],
    entities: Sequence[EntityConfig],
) -> list[UserTableConfig]:
    """Return user tables with the columns as the features, without those of sequences, read them. Raises BadInput."""
    bound = []
    for table in tables:
        names = {f.name for f in table.fields}
        fields = tuple(f for f in wanted_fields(features) if f.name in names)
        keys = [f for f in wanted_fields(features) if f.name == table.key] or [table.key_field]
        require(keys[0].kind in ("id", "string"), f"{table.section}.key", "a column of ids or strings", table.key)
        for entity in entities:
            both = ", ".join(f.name for f in fields if f in entity.fields or f == entity.key_field)
            require(not both, f"{table.section}.columns", f"other columns than {entity.section} has", both)
        if table.serve == ONLINE:
            filled = {feature.input for feature in online[table.name].features}
            if left := ", ".join(f.name for f in fields if f.name not in filled):
                raise BadInput(
                    f"online_features.{table.name}.features: expected all columns of {table.section}, which is served"
                    f" online, but it has no {left[:80]}"
                )
        bound.append(replace(table, fields=fields, key_field=keys[0]))
    return bound


def _with_fields(table: UserTableConfig, where: str) -> UserTableConfig:
    try:
        names = table.columns or tuple(n for n in table_columns(table.data) if n not in (table.key, table.time))
        require(table.key not in names, f"{where}.columns", "other columns than the key", table.key)
        require(bool(names), f"{where}.path", "a table with other columns than the key", "none")
        key, *fields = columns_of(table.data, [table.key, *names])
    except BadInput as error:
        message = str(error)
        if message.startswith("data."):
            # The keys of [data] that a user table has too.
            raise BadInput(f"{where}.{message.removeprefix('data.')}") from None
        raise BadInput(message if message.startswith(where) else f"{where}: {message}") from None
    return replace(table, fields=tuple(fields), key_field=replace(key, where=f"{where}.key"))


def _served(table: UserTableConfig, section: Any, features: Sections) -> Any:
    where = f"online_features.{table.name}"
    if section is None:
        raise BadInput(
            f"{table.section}.serve: expected a section [{where}], which says where the columns are, got none"
        )
    if not isinstance(section, dict):
        return section
    section = {"key": table.key} | section
    if table.key_field.kind == "string":
        section.setdefault("key_types", {table.key: "string"})
    listed, types = section.get("features", []), section.get("types", {})
    if section.get("format") != "hash" or not isinstance(listed, list) or not isinstance(types, dict):
        # Feast's names have a view, which only the section can say.
        return section
    names = section.get("names", {})
    filled = {names.get(name, name) if isinstance(names, dict) else name for name in listed if isinstance(name, str)}
    more = {f.name: _stored_type(f, features) for f in table.fields if f.name not in filled}
    return section | {"features": [*listed, *more], "types": more | types}


def _stored_type(column: Field, features: Sections) -> str:
    readers = [s for name, s in features.items() if isinstance(s, dict) and s.get("from", name) == column.name]
    kinds = [str(s["kind"]) for s in readers if "kind" in s and not s.get("transform")]
    return STORED_TYPES.get(kinds[0] if kinds else column.kind, "float")
