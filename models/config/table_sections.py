"""Read and validate [tables.<name>], the settings of a single table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import parse_section, require_between, require_one_of
from freshet_serving.models.config.train_section import TrainSettings, check_rows
from freshet_serving.models.embedding.multi_hash import MOST_CODES, NO_HASH
from freshet_serving.models.embedding.optimizer import RowOptions
from freshet_serving.processor.errors import BadInput, nearest, option_hint
from freshet_serving.processor.options import option, type_name
from freshet_serving.processor.package import HASHES, MAX_HASHED_ROWS

INITS = ("uniform", "normal", "zeros")
ADMISSIONS = ("counts", "bloom")
ROW_KEYS = ("optimizer", "learning_rate", *RowOptions.__dataclass_fields__)
"""Keys of [train] that a table may override."""


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The section [tables.<name>].

    It may also override keys of [train]: those of the row optimizer, for this table alone.

    Attributes:
        memory_mb: Budget of models.embedding.tiered_rows.
        hash: "" with hash_rows: chosen by the data (models.embedding.multi_hash, as the other keys of hashes).
        train: The overridden keys of [train], with their values.
    """

    admit_after: int = option(
        1, "give an id a row after this many occurrences; two in one batch count as two. 1: at once"
    )
    admit_by: str = option(
        "counts",
        "how ids are counted: `counts`, a counter for each waiting id, about 40 bytes each; `bloom`, shared"
        " counters of a fixed size, which forget nothing",
    )
    admit_ids: int = option(
        1_000_000,
        "number of different ids that `bloom` is sized for, 23 MB a million; it admits 1 in 100 too early, none "
        "too late",
    )
    evict_after_steps: int = option(
        0, "remove rows unused for more steps than this, with the next version or delta; 0: never"
    )
    evict_below_norm: float = option(0.0, "remove rows whose L2 norm is below this, likewise; 0: never")
    init: str = option(
        "uniform",
        "initial values of a row: `uniform` from `-init_scale` to `init_scale`, `normal` with that "
        "standard deviation, `zeros`. They depend only on `train.seed` and the id",
    )
    init_scale: float = option(0.01, "scale of the initial values")
    memory_mb: int = option(
        0,
        "MiB of memory for rows, slots and bookkeeping; rows that are read less often are on disk "
        "([training.md](../concepts/training.md#tables-larger-than-memory)); 0: all in memory. May "
        "change between two runs",
    )
    hash: str = option(
        "",
        "`none`: one row per id. `quotient_remainder`, `k_way`, `binary_code`: a fixed number of rows; "
        "each id is the sum of several",
        empty="left out",
    )
    hash_rows: int = option(
        0,
        "largest number of rows of a hashed table. Without `hash`, a table is hashed only if it has more ids",
        empty="none",
    )
    hash_codes: int = option(0, "number of rows per id", empty="2 for `k_way`, from `hash_rows` for `binary_code`")
    train: Mapping[str, Any] = field(default_factory=dict)


def read_tables(raw: dict[str, Any], features: Sequence[FeatureConfig], train: TrainSettings) -> dict[str, TableConfig]:
    """Read and validate [tables.*]; return the sections by table name. Raises BadInput."""
    names = sorted({f.table for f in features if f.table})
    tables = {}
    for name, section in raw.items():
        where = f"tables.{name}"
        if name not in names:
            raise BadInput(f"{where}: expected the table of a feature, one of {', '.join(names)}{nearest(name, names)}")
        if not isinstance(section, dict):
            raise BadInput(f"{where}: expected a section [{where}], got {type_name(section)}")
        keys = [*(key for key in TableConfig.__dataclass_fields__ if key != "train"), *ROW_KEYS]
        for key in section:
            if key not in keys:
                raise BadInput(
                    f"{where}.{key}: unknown key; expected one of {', '.join(keys)}{option_hint(key, keys, 'tables')}"
                )
        table_keys = {key: value for key, value in section.items() if key not in ROW_KEYS}
        row_keys = {key: value for key, value in section.items() if key in ROW_KEYS}
        settings = parse_section(TrainSettings, row_keys, where)
        overridden = {key: getattr(settings, key) for key in row_keys}
        table = parse_section(TableConfig, table_keys, where, train=overridden)
        _check_table(table, section, where)
        if "optimizer" not in row_keys:
            settings = dataclasses.replace(settings, optimizer=train.optimizer)
        check_rows(settings, row_keys, where)
        if settings.optimizer != "sgd" == train.optimizer and "learning_rate" not in row_keys:
            raise BadInput(f"{where}.learning_rate: required, because train.learning_rate is for sgd")
        tables[name] = table
    return tables


def _check_table(table: TableConfig, section: Collection[str], where: str) -> None:
    require_between(table.admit_after, 1, 65_535, f"{where}.admit_after")
    require_one_of(table.admit_by, ADMISSIONS, f"{where}.admit_by")
    require_between(table.admit_ids, 1, 1 << 32, f"{where}.admit_ids")
    require_between(table.evict_after_steps, 0, 2**53, f"{where}.evict_after_steps")
    require_between(table.evict_below_norm, 0, 1e6, f"{where}.evict_below_norm")
    require_one_of(table.init, INITS, f"{where}.init")
    require_between(table.init_scale, 0, 1e6, f"{where}.init_scale")
    require_between(table.memory_mb, 0, 1 << 30, f"{where}.memory_mb")
    _check_hash(table, section, where)
    for key, other, needed, holds in (
        ("admit_by", "admit_after", "2 or more", table.admit_after > 1),
        ("admit_ids", "admit_by", "'bloom'", table.admit_by == "bloom"),
        ("init_scale", "init", "'uniform' or 'normal'", table.init != "zeros"),
    ):
        if key in section and not holds:
            raise BadInput(f"{where}.{key}: only with {other} {needed}; this one is {getattr(table, other)!r}")


def _check_hash(table: TableConfig, section: Collection[str], where: str) -> None:
    if "hash" in section:
        require_one_of(table.hash, (NO_HASH, *HASHES), f"{where}.hash")
    if table.hash in ("", NO_HASH) and "hash_codes" in section:
        raise BadInput(f"{where}.hash_codes: only with hash 'k_way' or 'binary_code'")
    if table.hash == NO_HASH and "hash_rows" in section:
        raise BadInput(f"{where}.hash_rows: not with hash 'none', whose tables have one row per id")
    if table.hash in HASHES and "hash_rows" not in section:
        raise BadInput(f"{where}.hash_rows: required with hash {table.hash!r}: the largest number of rows")
    if "hash_codes" in section:
        if table.hash == "quotient_remainder":
            raise BadInput(f"{where}.hash_codes: not with hash 'quotient_remainder', which always has 2")
        require_between(table.hash_codes, 1, MOST_CODES, f"{where}.hash_codes")
    if "hash_rows" in section:
        require_between(table.hash_rows, 2 * max(2, table.hash_codes), MAX_HASHED_ROWS, f"{where}.hash_rows")
        for key in ("admit_after", "evict_after_steps", "evict_below_norm"):
            if key in section:
                raise BadInput(f"{where}.{key}: not with hash_rows: many ids share a row of a hashed table")
