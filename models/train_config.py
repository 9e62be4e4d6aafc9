"""`freshet train --config FILE.toml`: what to read, what to learn from it, and what to publish.

Sections [model], [data], [features.<column>], [train], [publish] and [fusion]; docs/data.md shows them all. Whatever is
wrong is told in one line that names section.key, what was wanted and what came, with the nearest valid key
for a typing error.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from compiler.dense.expression import parse as parse_expression
from models.data.formats import FORMATS, DataConfig, format_of
from models.data.open_data import default_features
from models.data.source import nearest
from models.embedding.optimizer import OPTIMIZERS, RowOptions
from models.zoo.architectures import ARCHITECTURES
from processor.errors import BadInput
from processor.package.manifest import COMBINERS, KINDS, NAME, SIDES
from processor.package.rowtypes import ROW_TYPES

TRANSFORMS = ("none", "log1p")
HASHED = ("string", "strings")
RAGGED = ("ids", "strings")

INITS = ("uniform", "normal", "zeros")
ADMISSIONS = ("counts", "bloom")
ROW_KEYS = ("optimizer", "learning_rate", *RowOptions.__dataclass_fields__)
"""Of [train], what a table may have for itself."""

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MAX_CONFIG_NBYTES = 4 << 20
_DEFAULT_DIM = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """[model]. name: its folder in the repository; arch: 'deepfm', 'dlrm' or 'package.module:function';
    hidden: units of each hidden layer, () for the architecture's own."""

    name: str
    arch: str = "deepfm"
    hidden: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class TrainSettings(RowOptions):
    """[train]. learning_rate: of the embeddings; dense_learning_rate: of the network; holdout: the share of rows, the
    last in order, that is kept from training to measure on; the others: see RowOptions. "" and 0 of optimizer, rates,
    accumulator and batch_rows: left out, for models.training.defaults."""

    batch_rows: int = 0
    epochs: int = 1
    optimizer: str = ""
    learning_rate: float = 0.0
    dense_learning_rate: float = 0.0
    holdout: float = 0.1
    initial_accumulator: float = field(default=0.0, kw_only=True)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TableConfig:
    """[tables.<name>], which may have keys of [train] as well: those of the row optimizer, for this table alone.

    admit_after: an id has a row once it came so often. admit_by: 'counts', a counter an id, or 'bloom', counters of a
    fixed size for admit_ids different ids, of which admit_error may be admitted too early. evict_after_steps,
    evict_below_norm: see Eviction; 0: never. init: of first values, 'uniform' in [-init_scale, init_scale), 'normal' of
    that standard deviation, or 'zeros'. train: the keys of [train], with their values.
    """

    admit_after: int = 1
    admit_by: str = "counts"
    admit_ids: int = 1_000_000
    admit_error: float = 0.01
    evict_after_steps: int = 0
    evict_below_norm: float = 0.0
    init: str = "uniform"
    init_scale: float = 0.01
    train: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """[publish]. repository: a folder; table_dtype: what tables are published as, where their features do not say;
    full_rows: these many rows, in order, make the full version (0: all);
    delta_rows: then one delta every so many rows (0: none); delta_seconds: and at the latest so many seconds
    after the last one (0: rows alone decide). snapshot_after: after so many deltas the chain is folded into a
    snapshot (0: never)."""

    repository: str = "repository"
    full_rows: int = 0
    delta_rows: int = 0
    delta_seconds: float = 0.0
    table_dtype: str = "float32"
    snapshot_after: int = 1000


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The whole file. tables: [tables.<name>] of those that have one. fusion: [fusion], outputs as expressions over the
    network's outputs and float features, in order (compiler.dense.fusion)."""

    model: ModelConfig
    data: DataConfig
    features: list[FeatureConfig]
    train: TrainSettings = TrainSettings()
    publish: PublishConfig = PublishConfig()
    fusion: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a run of the file begins, by options of the command. replay: rows of undone deltas are learned again, not
    skipped. new_version: the weights that are there are published as a second version first; from_scratch, only with
    it: new weights are trained for it, as the first one's were. Raises BadInput."""

    replay: bool = False
    new_version: bool = False
    from_scratch: bool = False

    def __post_init__(self) -> None:
        if self.from_scratch and not self.new_version:
            raise BadInput("--from-scratch: wanted only together with --new-version")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Reads and checks a configuration file; raises BadInput in one line.

    overrides: "section.key=value", each as if the file said so; the value as TOML has it. Looks at the data only
    where format or [features] are left out and the path or the first line has to tell them.
    """
    name = Path(path).name
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_CONFIG_NBYTES + 1)
        if len(raw) > _MAX_CONFIG_NBYTES:
            raise BadInput(f"{name}: at most {_MAX_CONFIG_NBYTES} bytes wanted")
        text = tomllib.loads(raw.decode())
    except OSError as error:
        raise BadInput(f"{name}: a TOML file wanted, could not read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{name}: a TOML file wanted, got bytes that are not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{name}: a TOML file wanted: {error}") from None
    for override in overrides:
        _override(text, override)
    return parse_config(text)


def _override(raw: dict[str, Any], override: str) -> None:
    """Puts "section.key=value" into a parsed file; keys that no section has are parse_config's to refuse."""
    path, equals, text = override.partition("=")
    section, *names, key = path.strip().split(".") if "." in path else ("", "")
    if not (equals and section and key):
        raise BadInput(f"--set: section.key=value wanted, got {override[:80]!r}")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    if list(parsed) != ["value"]:
        raise BadInput(
            f"--set {path.strip()}: a value as TOML has it wanted, a string in quotes"
            f" ('{path.strip()}={json.dumps(text.strip()[:40])}'), got {text.strip()[:80]!r}"
        )
    at = raw.setdefault(section, {})
    if section == "features":
        # The name of a column may hold dots.
        names = [".".join(names)]
        if not isinstance(at, dict) or names[0] not in at:
            columns = ", ".join(at) or "none, as the file has no [features]"
            raise BadInput(f"--set {path.strip()}: a feature of the file wanted: {columns}")
        at = at[names[0]]
    elif section == "tables" and names and isinstance(at, dict):
        at = at.setdefault(".".join(names), {})
    elif names:
        raise BadInput(f"--set: section.key=value wanted, got {override[:80]!r}")
    if isinstance(at, dict):
        at[key] = parsed["value"]


def parse_config(raw: dict[str, Any]) -> TrainConfig:
    """Checks the sections of a parsed file, as load_config does."""
    sections = [f.name for f in dataclasses.fields(TrainConfig)]
    for section, value in raw.items():
        if section not in sections:
            raise BadInput(f"{section}: a section out of {', '.join(sections)} wanted{nearest(section, sections)}")
        if not isinstance(value, dict):
            raise BadInput(f"{section}: a section [{section}] wanted, got {_type_name(value)}")
    for section in ("model", "data"):
        if section not in raw:
            raise BadInput(f"{section}: a section [{section}] wanted, got none")
    model = _section(ModelConfig, raw["model"], "model")
    data = _section(DataConfig, raw["data"], "data")
    train = _section(TrainSettings, given := raw.get("train", {}), "train")
    publish = _section(PublishConfig, raw.get("publish", {}), "publish")
    _check_model(model)
    _check_train(train, given)
    _check_publish(publish)
    data = _check_data(data)
    features = _features(raw.get("features", {}), data)
    tables = _tables(raw.get("tables", {}), features, train)
    return TrainConfig(model, data, features, train, publish, _fusion(raw.get("fusion", {})), tables)


def _tables(raw: dict[str, Any], features: Sequence[FeatureConfig], train: TrainSettings) -> dict[str, TableConfig]:
    names = sorted({f.table for f in features if f.table})
    tables = {}
    for name, section in raw.items():
        where = f"tables.{name}"
        if name not in names:
            raise BadInput(f"{where}: a table of a feature wanted: {', '.join(names)}{nearest(name, names)}")
        if not isinstance(section, dict):
            raise BadInput(f"{where}: a section [{where}] wanted, got {_type_name(section)}")
        own = {key: value for key, value in section.items() if key not in ROW_KEYS}
        table = _section(TableConfig, own, where)
        of_train = {key: value for key, value in section.items() if key in ROW_KEYS}
        settings = _section(TrainSettings, of_train, where)
        _check_rows(
            settings if "optimizer" in of_train else dataclasses.replace(settings, optimizer=train.optimizer),
            of_train,
            where,
        )
        _check_table(table, where)
        tables[name] = dataclasses.replace(table, train={key: getattr(settings, key) for key in of_train})
    return tables


def _check_table(table: TableConfig, where: str) -> None:
    _want_between(table.admit_after, 1, 65_535, f"{where}.admit_after")
    _want_one_of(table.admit_by, ADMISSIONS, f"{where}.admit_by")
    _want_between(table.admit_ids, 1, 1 << 32, f"{where}.admit_ids")
    _want_between(table.admit_error, 1e-9, 0.5, f"{where}.admit_error")
    _want_between(table.evict_after_steps, 0, 2**53, f"{where}.evict_after_steps")
    _want_between(table.evict_below_norm, 0, 1e6, f"{where}.evict_below_norm")
    _want_one_of(table.init, INITS, f"{where}.init")
    _want_between(table.init_scale, 0, 1e6, f"{where}.init_scale")


def _fusion(raw: dict[str, Any]) -> dict[str, str]:
    for output, text in raw.items():
        if not isinstance(text, str):
            raise BadInput(f"fusion.{output}: an expression in quotes wanted, got {_type_name(text)}")
        parse_expression(text, f"fusion.{output}")
    return raw


def _features(raw: dict[str, Any], data: DataConfig) -> list[FeatureConfig]:
    sections = raw or default_features(data.format, data.path)
    if not sections:
        raise BadInput("features: at least one section [features.<column>] wanted, got none")
    features = []
    for name, section in sections.items():
        where = f"features.{name}"
        if not isinstance(section, dict):
            raise BadInput(f"{where}: a section [{where}] wanted, got {_type_name(section)}")
        if "name" in section:
            raise BadInput(f"{where}.name: not a key; the section is named as the column")
        feature = _section(FeatureConfig, {"name": name, **section}, where)
        _check_feature(feature, section, where)
        if feature.kind != "float":
            dim, table = section.get("dim", _DEFAULT_DIM), feature.table or name
            feature = dataclasses.replace(feature, table=table, dim=dim)
        features.append(feature)
    _check_tables(features)
    for f in features:
        for role in ("label", "time"):
            _want(
                f.name != getattr(data, role),
                f"features.{f.name}",
                f"a column other than data.{role}",
                f.name,
            )
    return features


def _section(kind: type[T], raw: dict[str, Any], where: str) -> T:
    """Builds a dataclass out of a section's keys, by its annotations."""
    hints = typing.get_type_hints(kind)
    keys = [k for k in hints if k != MADE.get(kind)]
    values = {}
    for key, value in raw.items():
        if key not in hints or (key == "train" and kind is TableConfig):
            raise BadInput(f"{where}.{key}: unknown; one of {', '.join(keys)} wanted{nearest(key, keys)}")
        values[key] = _value(hints[key], value, f"{where}.{key}")
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.name not in values:
            raise BadInput(f"{where}.{f.name}: {_TYPE_NAMES[hints[f.name]]} wanted, got nothing")
    return kind(**values)


MADE: Mapping[type, str] = {FeatureConfig: "name", TableConfig: "train"}
"""Fields that no key of the section gives."""

_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a section",
}


def _type_name(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), "a date or time")


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.GenericAlias):
        if not isinstance(value, list):
            raise BadInput(f"{where}: a list of integers wanted, got {_type_name(value)}")
        return tuple(_value(int, v, f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise BadInput(f"{where}: {_TYPE_NAMES[hint]} wanted, got {_type_name(value)}")
    return value


def _want(condition: bool, where: str, wanted: str, got: Any) -> None:
    if not condition:
        raise BadInput(f"{where}: {wanted} wanted, got {str(got)[:80]!r}")


def _want_one_of(value: str, choices: Collection[str], where: str, more: str = "") -> None:
    if value not in choices:
        raise BadInput(
            f"{where}: one of {', '.join(choices)}{more} wanted, got {value[:80]!r}{nearest(value, list(choices))}"
        )


def _want_between(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        raise BadInput(f"{where}: {low} to {high} wanted, got {value}")


def _want_above_0(value: float, where: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise BadInput(f"{where}: a number above 0 wanted, got {value}")


def _check_model(model: ModelConfig) -> None:
    _want(NAME.fullmatch(model.name) is not None, "model.name", "letters, digits, '_', '.', '-'", model.name)
    if not _FUNCTION.fullmatch(model.arch):
        _want_one_of(model.arch, ARCHITECTURES, "model.arch", " or 'package.module:function'")
    for i, units in enumerate(model.hidden):
        _want_between(units, 1, 65536, f"model.hidden[{i}]")


def _check_data(data: DataConfig) -> DataConfig:
    """The same with its format filled in."""
    _want(data.path != "", "data.path", "a file, folder or glob", "")
    if data.format:
        _want_one_of(data.format, FORMATS, "data.format")
    else:
        data = dataclasses.replace(data, format=format_of(data.path))
    table = data.format in ("parquet", "csv")
    if table and not data.label:
        raise BadInput("data.label: the name of the column with the labels wanted, got nothing")
    for role in ("label", "time"):
        if not table and getattr(data, role):
            raise BadInput(f"data.{role}: wanted only for parquet and csv; format {data.format} has its own")
    _want(not data.time or data.time != data.label, "data.time", "a column other than data.label", data.time)
    return data


def _check_feature(feature: FeatureConfig, section: dict[str, Any], where: str) -> None:
    _want(
        NAME.fullmatch(feature.name) is not None,
        where,
        "a column named by letters, digits, '_', '.', '-'",
        feature.name,
    )
    _want_one_of(feature.kind, KINDS, f"{where}.kind")
    _want_one_of(feature.side, SIDES, f"{where}.side")
    _want_one_of(feature.combiner, COMBINERS, f"{where}.combiner")
    if "transform" in section:
        _want_one_of(feature.transform, TRANSFORMS, f"{where}.transform")
    _want_between(feature.max_length, 0, 1 << 20, f"{where}.max_length")
    if "dim" in section:
        _want_between(feature.dim, 1, 4096, f"{where}.dim")
    if "dtype" in section:
        _want_one_of(feature.dtype, ROW_TYPES, f"{where}.dtype")
    if "table" in section:
        named = NAME.fullmatch(feature.table) is not None
        _want(named, f"{where}.table", "letters, digits, '_', '.', '-'", feature.table)
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
        _want(feature.max_length > 0, f"{where}.max_length", "1 or more for combiner none", feature.max_length)
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


def _check_train(train: TrainSettings, section: Collection[str]) -> None:
    """section: the keys that the file has."""
    if "batch_rows" in section:
        _want_between(train.batch_rows, 1, 1 << 20, "train.batch_rows")
    _want_between(train.epochs, 1, 10_000, "train.epochs")
    if "dense_learning_rate" in section:
        _want_above_0(train.dense_learning_rate, "train.dense_learning_rate")
    _check_rows(train, section, "train")
    _want_between(train.holdout, 0, 0.9, "train.holdout")
    _want_between(train.seed, 0, 2**32 - 1, "train.seed")


def _check_rows(train: TrainSettings, section: Collection[str], where: str) -> None:
    """ROW_KEYS of [train], or of a table that has others."""
    if "optimizer" in section:
        _want_one_of(train.optimizer, OPTIMIZERS, f"{where}.optimizer")
    for key in ("learning_rate", "initial_accumulator"):
        if key in section:
            _want_above_0(getattr(train, key), f"{where}.{key}")
    if "optimizer" in section and train.optimizer == "sgd" and "learning_rate" not in section:
        raise BadInput(f"{where}.learning_rate: wanted with sgd, which has none that suits every table")
    for key in ("l1", "l2", "beta", "weight_decay"):
        _want_between(getattr(train, key), 0, 1e6, f"{where}.{key}")
    _want_between(train.accumulator_decay, 0, 1, f"{where}.accumulator_decay")
    _want_between(train.decay_steps, 1, 2**53, f"{where}.decay_steps")
    for key in RowOptions.__dataclass_fields__.keys() & set(section) if train.optimizer else ():
        if key not in OPTIMIZERS[train.optimizer].reads:
            of = ", ".join(o.name for o in OPTIMIZERS.values() if key in o.reads)
            raise BadInput(f"{where}.{key}: only for {of}; the optimizer is {train.optimizer!r}")


def _check_publish(publish: PublishConfig) -> None:
    _want(publish.repository != "", "publish.repository", "a folder", "")
    _want_one_of(publish.table_dtype, ROW_TYPES, "publish.table_dtype")
    _want_between(publish.full_rows, 0, 2**63 - 1, "publish.full_rows")
    _want_between(publish.delta_rows, 0, 2**63 - 1, "publish.delta_rows")
    _want_between(publish.snapshot_after, 0, 2**63 - 1, "publish.snapshot_after")
    if not (publish.delta_seconds >= 0 and math.isfinite(publish.delta_seconds)):
        raise BadInput(f"publish.delta_seconds: 0 or more wanted, got {publish.delta_seconds}")
    if publish.full_rows == 0 and (publish.delta_rows or publish.delta_seconds):
        key = "delta_rows" if publish.delta_rows else "delta_seconds"
        raise BadInput(f"publish.{key}: 0 wanted while publish.full_rows is 0 (all rows), got {getattr(publish, key)}")
