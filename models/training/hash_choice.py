"""Choose how tables are hashed if the training file sets a number of rows but no hashing.

The choice depends on the ids of the first rows, and is made once, like those of models.training.defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.source import Source
from freshet_serving.models.embedding.multi_hash import NO_HASH, choice, key_transform
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.features.key_codes import CODES
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import HASHES, Manifest

COUNTED_ROWS, COUNTED_AT_ONCE = 200_000, 8192


def undecided(config: TrainConfig) -> list[str]:
    return sorted(name for name, table in config.tables.items() if table.hash_rows and not table.hash)


def decided(config: TrainConfig, hashes: Mapping[str, str]) -> dict[str, TableConfig]:
    """Return the tables with a hashing each: 'none' if neither the file nor `hashes` has one."""
    filled = {name: replace(config.tables[name], hash=hashes.get(name, NO_HASH)) for name in undecided(config)}
    return {**config.tables, **filled}


def rows_an_id(table: TableConfig) -> int:
    """Return how many rows are summed for an id."""
    if table.hash in ("", NO_HASH):
        return 1
    transform = key_transform("", "", 0, table.hash, table.hash_rows, table.hash_codes)
    return len(CODES[transform.op](np.zeros(1, np.int64), *transform.integers[1:])[0])


def of_version(manifest: Manifest) -> dict[str, str]:
    ops = {t.name: t.op for t in manifest.transforms if t.op in HASHES}
    return {f.table: ops.get(f.input, NO_HASH) for f in manifest.lookups if f.table}


def measured(source: Source, config: TrainConfig) -> tuple[dict[str, str], str]:
    """Choose the hashing of tables that leave it out; return it by table, and one line about it, or ""."""
    tables, hashes, lines = undecided(config), {}, []
    for name, ids in estimated_ids(source, config, tables).items():
        rows = config.tables[name].hash_rows
        hashes[name] = choice(ids, rows)
        shown = "unlimited" if math.isinf(ids) else f"{ids:,.0f}"
        lines.append(f"{name} {hashes[name]} ({shown} ids, {rows:,} rows)")
    return hashes, f"defaults: hash of {'; '.join(lines)}" if lines else ""


def estimated_ids(source: Source, config: TrainConfig, tables: list[str]) -> dict[str, float]:
    """Estimate the number of distinct ids of each table in all of the data; inf if new ids of endless data keep coming.

    Beyond the counted rows, Heaps' law extrapolates: n rows have n**b distinct ids, with b from the second half of the
    counted rows.
    """
    if not tables:
        return {}
    total = source.count_rows()
    until = COUNTED_ROWS if total is None else min(total, COUNTED_ROWS)
    met: dict[str, NDArray[np.int64]] = {name: np.empty(0, np.int64) for name in tables}
    half: dict[str, int] = {}
    rows = 0
    for batch in source.batches(COUNTED_AT_ONCE):
        for feature in config.features:
            column = batch.columns.get(feature.name if feature.sequence else feature.column)
            if feature.table in met and column is not None:
                met[feature.table] = np.union1d(met[feature.table], _ids(column))
        rows += len(batch)
        if not half and 2 * rows >= until:
            half, half_rows = {name: len(ids) for name, ids in met.items()}, rows
        if rows >= until:
            break
    estimates: dict[str, float] = {}
    for name, ids in met.items():
        grows = len(ids) > half.get(name, 0)
        if total == rows or not grows:
            estimates[name] = len(ids)
        elif total is None:
            estimates[name] = math.inf
        else:
            power = min(1.0, math.log(len(ids) / max(1, half[name])) / math.log(max(2.0, rows / half_rows)))
            estimates[name] = len(ids) * (total / rows) ** power
    for feature in config.features:
        if feature.cross and feature.table in estimates:
            # A cross's ids are not in the data: each bucket may be one.
            estimates[feature.table] = max(estimates[feature.table], feature.buckets)
    return estimates


def _ids(column: Column) -> NDArray[np.int64]:
    values: Any = column.values if isinstance(column, Ragged) else column
    return hash_strings(values, 0) if isinstance(values, Strings) else np.asarray(values).reshape(-1)
