"""Read and validate [features.<column>], the columns that a model reads, and their tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from freshet_serving.models.config.toml_sections import (
    CHOSEN,
    named_sections,
    parse_section,
    require,
    require_between,
    require_one_of,
)
from freshet_serving.models.data.formats import OUTCOMES, DataConfig
from freshet_serving.models.data.open_data import default_features
from freshet_serving.models.data.sequence_columns import FLOATS, TIMES, SequenceConfig
from freshet_serving.models.data.source import ONE_OF, Field
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option, required
from freshet_serving.processor.package import COMBINERS, KINDS, NAME, ROW_TYPES, SIDES

FLOAT_TRANSFORMS = ("none", "log1p")
CLOCK_TRANSFORMS = ("hour", "weekday")
MADE = (*CLOCK_TRANSFORMS, "bucketize")
"""Transforms that produce ids."""
TRANSFORMS = (*FLOAT_TRANSFORMS, *MADE)
HASHED = ("string", "strings")
RAGGED = ("ids", "strings")
LISTED = {TIMES: "ids"}
"""Kind of a list column of times."""
LABEL_KIND = "label"
"""Kind of a column that is not read as one, but as a label."""
MAX_BOUNDARIES = 65_536
MAX_CROSSED_FEATURES = 16
EQUALS = 18
"""Ids of a cross with `equal`: 0, 1, 2 or 3, 4 to 7, up to a history's most events."""
MAX_NAME = 120
MAX_MARKER = 256

_DEFAULT_DIM, _DEFAULT_BUCKETS = 16, 1_000_000


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """The section [features.<name>]. kind, side, combiner and max_length are those of a manifest's Feature.

    Attributes:
        table: "" for kind float, which has no table.
        dim: 0 for kind float, and for a column of a history that no network reads, whose table has no rows of it.
        transform: "" if left out; models.training.defaults chooses. `hour` is 0 to 23 and `weekday` 0 for Monday, in
            UTC; `bucketize` is the number of `boundaries` that a value is not below.
        column_kind: The kind that the column is read as, in the terms of models.data.source.Field; "" for `kind`.
        window: Of a feature that is made of a history's events: how many of the newest it skips, and how many it takes;
            of a `cross`, the events of its history that it takes, or by `decay = "age"` their least age in seconds and
            the first that is too old. () for any other feature.
        sequence: The sequence that it is a column of, called `<sequence>.<column>`; None for a feature of x.
    """

    name: str
    kind: str = field(
        metadata=required("type of its values: `id`, `string`, `float`, `ids` (a list of ids), `strings`")
    )
    table: str = option(
        "", "its embedding table; features with the same table share its rows", empty="the feature's name"
    )
    dim: int = option(0, "floats per row of the table", empty="`16`")
    side: str = option(
        "context", "`user`, `item` or `context`; what depends only on the user is computed once per request"
    )
    combiner: str = option(
        "sum", "how the rows of a list are combined: `sum`, `mean`, `sqrtn`; `none`: side by side, with a mask"
    )
    max_length: int = option(0, "use only this many first values of a list; 0: all")
    transform: str = option(
        "", "for a float: `none` or `log1p`; `hour`, `weekday` and `bucketize` turn it into ids", empty=CHOSEN
    )
    dtype: str = option(
        "",
        "row type in which its table is published: `float32`, `float16`, `bfloat16`, `int8`",
        empty="`publish.table_dtype`",
    )
    from_: str = option(
        "", "the source column; or a column of a history, `history.item`: see `take`", empty="the feature's name"
    )
    take: int = option(
        0, "of a history's events, the newest: `-1` the last one, `-3` the last three", empty="all of its events"
    )
    where: Mapping[str, int | str] = option(
        {},
        'of a history\'s events, only those with these values in others of its columns: `{ action = "buy" }`',
        empty="all of its events",
    )
    boundaries: tuple[float, ...] = option((), "boundaries of `bucketize`, ascending")
    cross: tuple[str, ...] = option(
        (), "cross 2 to 16 features or columns of a history: each combination of their values becomes an id"
    )
    decay: str = option(
        "",
        "of a `cross` with a column of a history: `position` keeps events of different distances from the newest"
        " apart, so that the network learns how much each counts; `age` those of an hour, day, week, month",
        empty="all events count alike",
    )
    equal: bool = option(
        False,
        "of a `cross` of a history's column and a feature: how many events have the row's value (0, 1, 2 or 3, 4 to"
        " 7, ...), whatever it is; beside the values of further features",
        empty="every pair has an id",
    )
    wide: bool = option(
        False,
        "each id has a linear weight, which is added to the logit: beside its row if `dim` is set, or alone",
        empty="false",
    )
    counts: bool = option(
        False,
        "the network reads how often each id was seen, and how often with a positive label: beside its row if `dim`"
        " is set, or alone",
        empty="false",
    )
    buckets: int = option(0, "number of ids of a `cross`", empty="`1000000`")
    padding: int | str | None = option(
        None, "value that fills lists up to one length: left out of them, in requests too", empty="no value is left out"
    )
    unsigned: bool = option(
        False,
        "ids are uint64: requests take them from 0 to 2**64 - 1",
        empty="as the first rows of Parquet and CSV have it",
    )
    column_kind: str = ""
    window: tuple[int, ...] = ()
    sequence: SequenceConfig | None = None

    @property
    def column(self) -> str:
        return self.from_ or self.name

    @property
    def reads(self) -> Field | None:
        """The source column as a reader sees it; None for what is made of other columns, the label or the time."""
        if self.cross or self.window or self.column_kind == LABEL_KIND:
            return None
        if self.sequence is not None and self.sequence.from_events and self.kind == TIMES:
            return None
        if self.sequence is not None:
            kind = ONE_OF[self.kind] if self.sequence.from_events else LISTED.get(self.kind, self.kind)
            return Field(self.column, kind, self._section)
        return Field(self.column, self.column_kind or self.kind, self._section)

    @property
    def _section(self) -> str:
        if self.sequence is None:
            return f"features.{self.name}"
        role = "time" if self.kind == TIMES else "floats" if self.kind == FLOATS else "columns"
        return f"sequences.{self.sequence.name}.{role}"


def read_features(raw: dict[str, Any], data: DataConfig, histories: Collection[str] = ()) -> list[FeatureConfig]:
    """Read [features.*] in order, or use the features of a format whose columns are known. Raises BadInput.

    Args:
        histories: Columns of histories, `<sequence>.<column>`, which features may be made of (history_features).
    """
    sections = raw or default_features(data.format, data.path)
    if not sections:
        raise BadInput("features: expected at least one section [features.<column>], got none")
    for _, where, section in named_sections(sections, "features"):
        if "name" in section:
            raise BadInput(f"{where}.name: not a key; the section is named as the column")
    of_history = {name for name, section in sections.items() if section.get("from") in histories}
    kinds = {name: _kind(section, sections, {*histories, *of_history}) for name, section in sections.items()}
    features = []
    for name, section in sections.items():
        where = f"features.{name}"
        implied = {"kind": kinds[name]} if kinds[name] else {}
        feature = parse_section(
            FeatureConfig, implied | section, where, name=name, column_kind="", window=(), sequence=None
        )
        _check_feature(feature, section, where)
        if feature.kind != "float":
            dim, table = section.get("dim", _DEFAULT_DIM), feature.table or name
            feature = dataclasses.replace(feature, table=table, dim=dim)
        if "cross" in section:
            _check_cross(feature, kinds[name], sections, kinds, histories, where)
            feature = dataclasses.replace(feature, buckets=section.get("buckets", _DEFAULT_BUCKETS))
        if feature.equal:
            require("cross" in section, f"{where}.equal", "a cross of a column of a history and a feature", "none")
            if len(feature.cross) == 2:
                require("buckets" not in section, f"{where}.buckets", "none beside equal", feature.buckets)
                feature = dataclasses.replace(feature, buckets=EQUALS)
        if feature.transform in CLOCK_TRANSFORMS and not feature.from_:
            require(data.clock != "", f"{where}.from", "the time column, because data.time is not set", "")
            feature = dataclasses.replace(feature, from_=data.clock)
        features.append(feature)
    _check_tables(features)
    features = _with_columns(features, data, histories)
    for f in features:
        labels = (*data.labels, OUTCOMES.get(data.format, ""))
        for role, columns in (("label", labels), ("weight", (data.weight,)), ("time", (data.time,))):
            if not f.cross and (role != "time" or f.transform not in CLOCK_TRANSFORMS):
                require(f.column not in columns, f"features.{f.name}", f"a column other than data.{role}", f.column)
    return features


def _kind(section: dict[str, Any], sections: dict[str, Any], lists: Collection[str]) -> str:
    """Return the kind that a section's transform or cross implies; "" if the section must state it."""
    if isinstance(crossed := section.get("cross"), list):
        if section.get("equal") is True:
            return "id"
        kinds = [str(other.get("kind", "")) for name in crossed if (other := _section(sections, name))]
        return "ids" if set(kinds) & set(RAGGED) or any(name in lists for name in crossed) else "id"
    return "id" if section.get("transform") in MADE else ""


def _section(sections: dict[str, Any], name: Any) -> dict[str, Any]:
    section = sections.get(name) if isinstance(name, str) else None
    return section if isinstance(section, dict) else {}


def _check_cross(
    feature: FeatureConfig,
    kind: str,
    sections: dict[str, Any],
    kinds: dict[str, str],
    histories: Collection[str],
    where: str,
) -> None:
    require(feature.kind == kind, f"{where}.kind", f"{kind!r}, which this cross makes", feature.kind)
    require(
        2 <= len(feature.cross) <= MAX_CROSSED_FEATURES,
        f"{where}.cross",
        f"2 to {MAX_CROSSED_FEATURES} features",
        ", ".join(feature.cross),
    )
    require(
        len(set(feature.cross)) == len(feature.cross), f"{where}.cross", "each feature once", ", ".join(feature.cross)
    )
    require(not feature.from_, f"{where}.from", "no column beside cross", feature.from_)
    require(not feature.transform, f"{where}.transform", "no transform beside cross", feature.transform)
    others = [other for other in sections if other != feature.name and "cross" not in sections[other]]
    for name in feature.cross:
        require_one_of(name, [*others, *histories], f"{where}.cross")
        kind = "ids" if name in histories and name not in others else kinds[name] or sections[name].get("kind")
        if kind == "float":
            raise BadInput(
                f"{where}.cross: expected ids or strings, but {name!r} is a float; bucketize it and cross the result"
            )


def _with_columns(features: list[FeatureConfig], data: DataConfig, histories: Collection[str]) -> list[FeatureConfig]:
    """Fill in the kind that each column is read as: one kind a column, whatever is derived from it."""
    read: dict[str, tuple[str, str]] = {}
    plain = [f for f in features if not f.cross and f.transform not in MADE and f.from_ not in histories]
    for f in plain:
        kind, other = read.setdefault(f.column, (f.kind, f.name))
        require(
            f.kind == kind,
            f"features.{f.name}.kind",
            f"{kind!r}, as features.{other} reads column {f.column!r}",
            f.kind,
        )
    if all(f in plain or f.transform not in MADE for f in features):
        return features
    fixed = {name: section["kind"] for name, section in default_features(data.format, data.path).items()}
    clocks = {f.column for f in features if f.transform in CLOCK_TRANSFORMS}
    filled = []
    for f in features:
        if f.transform in MADE:
            otherwise = fixed.get(f.column, "seconds" if f.column in clocks else "float")
            kind, other = read.get(f.column, (otherwise, ""))
            fits = ("id", "seconds") if f.transform in CLOCK_TRANSFORMS else ("id", "seconds", "float")
            if kind not in fits:
                expected = "the time in seconds" if f.transform in CLOCK_TRANSFORMS else "numbers"
                reader = f"features.{other} reads" if other else f"format {data.format} has"
                raise BadInput(
                    f"features.{f.name}.from: expected a column of {expected} for {f.transform}, got {f.column!r},"
                    f" which {reader} as {kind}"
                )
            f = dataclasses.replace(f, column_kind=kind)
        filled.append(f)
    return filled


def _check_feature(feature: FeatureConfig, section: dict[str, Any], where: str) -> None:
    require(
        NAME.fullmatch(feature.name) is not None,
        where,
        "a column named by letters, digits, '_', '.', '-'",
        feature.name,
    )
    if "from" in section:
        named = NAME.fullmatch(feature.from_) is not None
        require(named, f"{where}.from", "a column named by letters, digits, '_', '.', '-'", feature.from_)
    require_one_of(feature.kind, KINDS, f"{where}.kind")
    require_one_of(feature.side, SIDES, f"{where}.side")
    require_one_of(feature.combiner, COMBINERS, f"{where}.combiner")
    if "transform" in section:
        require_one_of(feature.transform, TRANSFORMS, f"{where}.transform")
        fits = FLOAT_TRANSFORMS if feature.kind == "float" else MADE
        if feature.transform not in fits:
            others = "float" if feature.transform in FLOAT_TRANSFORMS else "id"
            raise BadInput(f"{where}.transform: only for kind {others}; this one is {feature.kind!r}")
    if feature.transform in MADE:
        require(feature.kind == "id", f"{where}.kind", f"'id', which {feature.transform} makes", feature.kind)
    _check_boundaries(feature, section, where)
    if "buckets" in section:
        require("cross" in section, f"{where}.buckets", "no buckets without cross", feature.buckets)
        require_between(feature.buckets, 1, 2**63 - 1, f"{where}.buckets")
    if len(feature.name) > MAX_NAME and (feature.cross or feature.transform in MADE):
        raise BadInput(f"{where}: expected a name of at most {MAX_NAME} characters for a derived feature")
    require_between(feature.max_length, 0, 1 << 20, f"{where}.max_length")
    if "dim" in section:
        require_between(feature.dim, 1, 4096, f"{where}.dim")
    if "dtype" in section:
        require_one_of(feature.dtype, ROW_TYPES, f"{where}.dtype")
    if "table" in section:
        named = NAME.fullmatch(feature.table) is not None
        require(named, f"{where}.table", "letters, digits, '_', '.', '-'", feature.table)
    embedded = tuple(k for k in KINDS if k != "float")
    meant_for = {
        "table": embedded,
        "dim": embedded,
        "dtype": embedded,
        "combiner": RAGGED,
        "max_length": RAGGED,
        "unsigned": ("id", "ids"),
        "wide": embedded,
        "counts": embedded,
        "padding": RAGGED,
    }
    check_marker(feature.padding, feature.kind in HASHED, f"{where}.padding")
    if feature.unsigned:
        derived = feature.transform in MADE or bool(feature.cross)
        require(not derived, f"{where}.unsigned", "a feature whose ids are those of its column", feature.name)
    if feature.combiner == "none" and feature.kind in RAGGED:
        require(feature.max_length > 0, f"{where}.max_length", "1 or more for combiner none", feature.max_length)
    for key, kinds in meant_for.items():
        if key in section and feature.kind not in kinds:
            raise BadInput(f"{where}.{key}: only for kind {', '.join(kinds)}; this one is {feature.kind!r}")


def check_marker(value: int | str | None, of_strings: bool, where: str) -> None:
    """Raise BadInput unless a value (None for none) can be one of a column, of strings or of ids."""
    if of_strings and value is not None:
        fits = isinstance(value, str) and len(value) <= MAX_MARKER
        require(fits, where, f"a string of at most {MAX_MARKER} characters, as the column has", value)
    elif value is not None:
        require(isinstance(value, int) and -(2**63) <= value < 2**63, where, "an integer, as the column has", value)


def _check_boundaries(feature: FeatureConfig, section: dict[str, Any], where: str) -> None:
    if feature.transform != "bucketize":
        require(
            "boundaries" not in section, f"{where}.boundaries", "transform bucketize with boundaries", feature.transform
        )
        return
    edges = feature.boundaries
    count = f"1 to {MAX_BOUNDARIES} numbers in ascending order"
    require(1 <= len(edges) <= MAX_BOUNDARIES, f"{where}.boundaries", count, list(edges))
    require(all(abs(edge) < 3.4e38 for edge in edges), f"{where}.boundaries", "numbers within float32", list(edges))
    require(all(a < b for a, b in pairwise(edges)), f"{where}.boundaries", "numbers in ascending order", list(edges))


def _check_tables(features: list[FeatureConfig]) -> None:
    """Check that features that share a table agree on width, row type and meaning of the key."""
    first: dict[str, FeatureConfig] = {}
    for f in features:
        if f.kind == "float":
            continue
        other = first.setdefault(f.table, f)
        if f.dim != other.dim:
            raise BadInput(
                f"features.{f.name}.dim: expected {other.dim}, as features.{other.name} has in table"
                f" {f.table!r}, got {f.dim}"
            )
        if f.dtype != other.dtype:
            raise BadInput(
                f"features.{f.name}.dtype: expected {other.dtype or 'none'}, as features.{other.name} has for table"
                f" {f.table!r}, got {f.dtype or 'none'}"
            )
        if (f.kind in HASHED) != (other.kind in HASHED):
            kinds = "string or strings" if other.kind in HASHED else "id or ids"
            raise BadInput(
                f"features.{f.name}.kind: expected {kinds}, as features.{other.name} shares table"
                f" {f.table!r}, got {f.kind!r}"
            )
