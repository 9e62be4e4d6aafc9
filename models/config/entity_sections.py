"""Read and validate [entities.<name>]: features by key that become part of the package and of its deltas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import named_sections, parse_section, require, require_one_of
from freshet_serving.models.data.formats import STREAMS, TABLES, DataConfig, format_of
from freshet_serving.models.data.open_data import columns_of
from freshet_serving.models.data.source import Field, wanted_fields
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option, required
from freshet_serving.processor.package import DEFAULT, KINDS, NAME, UNKNOWN

NO_FIELD = Field("", "id")


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """The section [entities.<name>]: a table with a row a key, which requests need not send the columns of.

    `fields` are the columns that `columns` derive from, `further` those of `filters` that are not among them.
    """

    name: str
    key: str = field(metadata=required("feature with the key, of kind id or string; also the key's column in `path`"))
    path: str = field(
        repr=False,
        metadata=required(
            "file, folder or glob of the table, relative to the working folder; beside followed data a file, a folder"
            " of Parquet files, `redis://...` or `kafka://...`"
        ),
    )
    columns: tuple[str, ...] = option(
        (),
        "features that come from the table where a request leaves them out, and in training always",
        empty="none, with `filters`",
    )
    filters: tuple[str, ...] = option(
        (),
        "further columns of the table, which no feature reads: requests for the best items can filter on them, and"
        " on those of `columns`",
        empty="no filters",
    )
    kinds: Mapping[str, str] = option(
        {},
        "kinds of columns of `filters` by name: `id`, `string`, `float`, `ids`, `strings`",
        empty="as the table's first file suggests; a stream suggests none",
    )
    time: str = option(
        "", "column of the table that its rows are sorted by: training reads a key's last row at or before the event"
    )
    format: str = option(
        "", "`parquet`, `csv`, `tfrecord`, `redis`, `kafka`", empty="determined by the suffix or the URL"
    )
    unknown: str = option(
        DEFAULT,
        "what a row of a request gets whose key the table does not have: `default`, a score with missing values; "
        "`mark`, that, and a reply that names the row; `drop`, no score, and a reply that names the row",
    )
    fields: tuple[Field, ...] = ()
    further: tuple[Field, ...] = ()
    key_field: Field = NO_FIELD

    @property
    def section(self) -> str:
        return f"entities.{self.name}"

    @property
    def once(self) -> bool:
        return False

    @property
    def data(self) -> DataConfig:
        return DataConfig(self.path, self.format or format_of(self.path), (), self.time)


def read_entities(raw: dict[str, Any], features: Sequence[FeatureConfig], data: DataConfig) -> list[EntityConfig]:
    by_name = {f.name: f for f in features if not f.window}
    entities: list[EntityConfig] = []
    for name, where, section in named_sections(raw, "entities"):
        require(NAME.fullmatch(name) is not None, where, "a name of letters, digits, '_', '.', '-'", name)
        reads = bool(section.get("columns") or section.get("filters"))
        require(reads, f"{where}.columns", "features of the file", section.get("columns", ""))
        entity = parse_section(EntityConfig, section, where, name=name, fields=(), further=(), key_field=NO_FIELD)
        for column in (entity.key, *entity.columns):
            require_one_of(column, by_name, where, " of the features")
        key = by_name[entity.key].reads
        if key is None or key.kind not in ("id", "string"):
            raise BadInput(f"{where}.key: expected a feature of kind id or string, got {entity.key!r}")
        fields = wanted_fields([by_name[column] for column in entity.columns])
        require(key not in fields, f"{where}.columns", "features of other columns than the key", entity.key)
        for other in entities:
            both = [f.name for f in fields if f in other.fields or f == other.key_field]
            require(not both, f"{where}.columns", f"other columns than entity {other.name!r} has", ", ".join(both))
            require(key not in other.fields, f"{where}.key", "a column that no entity has", entity.key)
        require(entity.unknown in UNKNOWN, f"{where}.unknown", f"one of {', '.join(UNKNOWN)}", entity.unknown)
        entity = replace(entity, fields=fields, key_field=key)
        require(
            bool(fields) or entity.unknown == DEFAULT, f"{where}.unknown", f"{DEFAULT} without columns", entity.unknown
        )
        form, forms = entity.data.format, (*TABLES, *STREAMS)
        require(form in forms, f"{where}.path", f"a table ({', '.join(TABLES)}) or a stream", form)
        require(not entity.time or bool(data.time), f"{where}.time", "data.time as well, the events' time", entity.time)
        entities.append(replace(entity, further=_further(entity, where)))
    return entities


def _further(entity: EntityConfig, where: str) -> tuple[Field, ...]:
    columns = {f.name for f in entity.fields}
    names = [name for name in dict.fromkeys(entity.filters) if name not in columns]
    for name in names:
        others = name not in (entity.key_field.name, entity.time)
        require(others, f"{where}.filters", "other columns than the key and the time", name)
    for name, kind in entity.kinds.items():
        require_one_of(name, names, f"{where}.kinds", " of its filters")
        require_one_of(kind, KINDS, f"{where}.kinds.{name}")
    unsaid = [name for name in names if name not in entity.kinds]
    if unsaid and entity.data.format not in TABLES:
        raise BadInput(f"{where}.kinds: expected the kind of {unsaid[0]!r}, because a stream suggests none, got none")
    try:
        suggested = {f.name: f.kind for f in columns_of(entity.data, unsaid)} if unsaid else {}
    except BadInput as error:
        raise BadInput(f"{where}.filters: {error}") from None
    for name, kind in suggested.items():
        require(kind in KINDS, f"{where}.filters", "columns of numbers, strings, or lists of ids or strings", name)
    kinds = {**suggested, **entity.kinds}
    return tuple(Field(name, kinds[name], f"{where}.filters") for name in names)
