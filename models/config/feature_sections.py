"""[features.<column>]: the columns that a model takes, and their tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from models.config.toml_sections import section_of, type_name, want, want_between, want_one_of
from models.data.formats import DataConfig, label_names
from models.data.open_data import default_features
from processor.errors import BadInput
from processor.package.manifest import COMBINERS, KINDS, NAME, SIDES
from processor.package.rowtypes import ROW_TYPES

TRANSFORMS = ("none", "log1p")
HASHED = ("string", "strings")
RAGGED = ("ids", "strings")

_DEFAULT_DIM = 16


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """[features.<name>]. name: the column; kind, side, combiner, max_length: as in a manifest's Feature.

    table, dim: its embedding table (default: one of its own name) and the row's floats; "" and 0 for kind
    float. dtype: what its table is published as ("": publish.table_dtype).
    transform: 'none' | 'log1p', of kind float; "": left out, for models.training.defaults.
    """

    name: str
    kind: str
    table: str = ""
    dim: int = 0
    side: str = "context"
    combiner: str = "sum"
    max_length: int = 0
    transform: str = ""
    dtype: str = ""


def read_features(raw: dict[str, Any], data: DataConfig) -> list[FeatureConfig]:
    """[features.*] in their order, or those of a format whose columns are known; raises BadInput."""
    sections = raw or default_features(data.format, data.path)
    if not sections:
        raise BadInput("features: at least one section [features.<column>] wanted, got none")
    features = []
    for name, section in sections.items():
        where = f"features.{name}"
        if not isinstance(section, dict):
            raise BadInput(f"{where}: a section [{where}] wanted, got {type_name(section)}")
        if "name" in section:
            raise BadInput(f"{where}.name: not a key; the section is named as the column")
        feature = section_of(FeatureConfig, section, where, name=name)
        _check_feature(feature, section, where)
        if feature.kind != "float":
            dim, table = section.get("dim", _DEFAULT_DIM), feature.table or name
            feature = dataclasses.replace(feature, table=table, dim=dim)
        features.append(feature)
    _check_tables(features)
    for f in features:
        for role, names in (("label", label_names(data)), ("time", (data.time,))):
            want(f.name not in names, f"features.{f.name}", f"a column other than data.{role}", f.name)
    return features


def _check_feature(feature: FeatureConfig, section: dict[str, Any], where: str) -> None:
    want(
        NAME.fullmatch(feature.name) is not None,
        where,
        "a column named by letters, digits, '_', '.', '-'",
        feature.name,
    )
    want_one_of(feature.kind, KINDS, f"{where}.kind")
    want_one_of(feature.side, SIDES, f"{where}.side")
    want_one_of(feature.combiner, COMBINERS, f"{where}.combiner")
    if "transform" in section:
        want_one_of(feature.transform, TRANSFORMS, f"{where}.transform")
    want_between(feature.max_length, 0, 1 << 20, f"{where}.max_length")
    if "dim" in section:
        want_between(feature.dim, 1, 4096, f"{where}.dim")
    if "dtype" in section:
        want_one_of(feature.dtype, ROW_TYPES, f"{where}.dtype")
    if "table" in section:
        named = NAME.fullmatch(feature.table) is not None
        want(named, f"{where}.table", "letters, digits, '_', '.', '-'", feature.table)
    embedded = tuple(k for k in KINDS if k != "float")
    meant_for = {
        "table": embedded,
        "dim": embedded,
        "dtype": embedded,
        "combiner": RAGGED,
        "max_length": RAGGED,
        "transform": ("float",),
    }
    if feature.combiner == "none" and feature.kind in RAGGED:
        want(feature.max_length > 0, f"{where}.max_length", "1 or more for combiner none", feature.max_length)
    for key, kinds in meant_for.items():
        if key in section and feature.kind not in kinds:
            raise BadInput(f"{where}.{key}: only for kind {', '.join(kinds)}; this one is {feature.kind!r}")


def _check_tables(features: list[FeatureConfig]) -> None:
    """Features that share a table share its rows: one width, and one meaning of the key."""
    first: dict[str, FeatureConfig] = {}
    for f in features:
        if f.kind == "float":
            continue
        other = first.setdefault(f.table, f)
        if f.dim != other.dim:
            raise BadInput(
                f"features.{f.name}.dim: {other.dim} wanted, as features.{other.name} has in table"
                f" {f.table!r}, got {f.dim}"
            )
        if f.dtype != other.dtype:
            raise BadInput(
                f"features.{f.name}.dtype: {other.dtype or 'none'} wanted, as features.{other.name} has for table"
                f" {f.table!r}, got {f.dtype or 'none'}"
            )
        if (f.kind in HASHED) != (other.kind in HASHED):
            kinds = "string or strings" if other.kind in HASHED else "id or ids"
            raise BadInput(
                f"features.{f.name}.kind: {kinds} wanted, as features.{other.name} shares table"
                f" {f.table!r}, got {f.kind!r}"
            )
