"""Make a model's manifest from its training configuration: inputs, features, tables, layout of the dense input."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.feature_sections import RAGGED, FeatureConfig
from freshet_serving.models.config.history_features import AGE, age_times
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.sequence_columns import FLOATS, TIMES, SequenceConfig
from freshet_serving.models.data.source import Batch, Source, join_batches, wanted_fields
from freshet_serving.models.embedding.multi_hash import key_transform
from freshet_serving.models.training.event_transforms import event_steps, events_read, window_step
from freshet_serving.models.zoo.architectures import NEXT_ITEM, UNTIMED
from freshet_serving.processor.columns import Column, Ragged, Strings, nbytes_of
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package import (
    HASHES,
    Feature,
    Input,
    Manifest,
    Output,
    SequenceColumn,
    SequenceEntry,
    TableEntry,
    Transform,
    feature_width,
    validate,
)
from freshet_serving.processor.package.item_rows import ItemRows

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.online_features.section import FeatureGroup

FIRST_ROWS, PART_ROWS, FIRST_NBYTES = 20_000, 500, 256 << 20
"""Rows that settings are chosen by, rows read at once, and the memory that they may take: a list may be in each."""
HEAVY_TAILS = 15.0

INPUT_DTYPES = {"id": "int64", "ids": "int64", "string": "string", "strings": "string", "float": "float32"}
INPUT_DTYPES |= {"seconds": "int64", TIMES: "int64", FLOATS: "float32"}
DAY_S, HOUR_S = 86_400, 3_600
THURSDAY = 3
"""Weekday of 1970-01-01, the start of Unix time."""
CROSS_KEY = 0xDECAFCAFFE
"""TensorFlow's default key of crosses."""

Scaling = dict[str, tuple[float, float]]
HashSeeds = dict[str, int]
"""Seeds of string hashes by table; 0 for a table that is not listed."""


def measure_scaling(source: Source, features: Sequence[FeatureConfig]) -> Scaling:
    """Return (mean, 1 / standard deviation) of every float feature after its transform, over the stream's first rows.

    Floats of a sequence count once for each row whose history has them.
    """
    floats = [f for f in features if f.kind in ("float", FLOATS)]
    if not floats:
        return {}
    batch = first_rows(source)
    if batch is None:
        raise BadInput("data: expected at least one row, got none")
    scaling: Scaling = {}
    for feature in floats:
        values = _finite(batch, feature)
        if feature.transform == "log1p":
            values = _log1p(values)
        mean = float(np.float32(values.mean())) if len(values) else 0.0
        spread = float(values.std()) if len(values) else 0.0
        scaling[feature.name] = (mean, float(np.float32(1 / spread)) if spread > 1e-9 else 1.0)
    return scaling


def measure_transforms(source: Source, features: Sequence[FeatureConfig]) -> dict[str, str]:
    """Choose 'log1p' or 'none' for every float feature without a transform, over the stream's first rows.

    'log1p' is chosen if a few values are so extreme that scaling would map the others to nearly one number, and the
    logarithm helps. The criterion is the kurtosis: 3 for a normal distribution, 9 for an exponential one.
    """
    floats = [f for f in features if f.kind in ("float", FLOATS) and not f.transform]
    batch = first_rows(source) if floats else None
    if batch is None:
        return {}
    chosen = {}
    for feature in floats:
        values = _finite(batch, feature)
        plain, logarithm = _tails(values), _tails(_log1p(values))
        chosen[feature.name] = "log1p" if plain > HEAVY_TAILS and logarithm < plain / 2 else "none"
    return chosen


def unsplit_texts(source: Source, features: Sequence[FeatureConfig]) -> list[str]:
    """Return the string features whose values look like lists: '|' is in half of the stream's first rows."""
    texts = {f.column for f in features if f.kind == "string" and not f.sequence}
    batch = first_rows(source) if texts else None
    return sorted(name for name in texts if batch is not None and _separated(batch.columns[name]) > len(batch) // 2)


def _separated(texts: Column) -> int:
    assert isinstance(texts, Strings)
    first, last = texts.offsets[[0, -1]].tolist()
    places = first + np.flatnonzero(texts.data[first:last] == ord("|"))
    return len(np.unique(np.searchsorted(texts.offsets, places, side="right")))


def first_rows(source: Source) -> Batch | None:
    """Return the first FIRST_ROWS rows of the stream, or as many as take FIRST_NBYTES; None without a row."""
    parts: list[Batch] = []
    nbytes = 0
    for batch in source.batches(PART_ROWS):
        parts.append(batch)
        nbytes += nbytes_of(batch.columns)
        if batch.end >= FIRST_ROWS or nbytes >= FIRST_NBYTES:
            break
    return join_batches(parts) if parts else None


def _finite(batch: Batch, feature: FeatureConfig) -> NDArray[np.float64]:
    """Return the numbers of a float feature, or of a sequence's floats, without those that are missing."""
    column = batch.columns[feature.column if feature.sequence is None else feature.name]
    values = np.asarray(column.values if isinstance(column, Ragged) else column, np.float64)
    return values[np.isfinite(values)]


def _log1p(values: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithms: NDArray[np.float64] = np.sign(values) * np.log1p(np.abs(values))
    return logarithms


def _tails(values: NDArray[np.float64]) -> float:
    """Return the kurtosis; 0 if all values are equal."""
    spread = float(values.std()) if len(values) else 0.0
    return float(np.mean(((values - values.mean()) / spread) ** 4)) if spread > 0 else 0.0


def measure_log_odds(source: Source) -> list[float]:
    """Return the weighted log-odds of each label over the first rows: finite if all are equal, [] without a row."""
    batch = first_rows(source)
    if batch is None:
        return []
    weight = np.ones(len(batch)) if batch.weight is None else batch.weight.astype(np.float64)
    ones = np.atleast_1d(weight @ batch.label.astype(np.float64))
    return [math.log((count + 0.5) / (weight.sum() - count + 0.5)) for count in ones.tolist()]


def share_of_ones(source: Source) -> float | None:
    """Return the weighted share of ones of the first label over the stream's first rows; None without a row."""
    log_odds = measure_log_odds(source)
    return 1 / (1 + math.exp(-log_odds[0])) if log_odds else None


def _transforms(
    features: Sequence[FeatureConfig], inputs: set[str], histories: Mapping[str, int]
) -> tuple[dict[str, str], list[Transform]]:
    """Return what each feature reads, by name, and the transforms in order; `histories` are columns by time units."""
    taken = inputs | {f.name for f in features}
    sources = {name: name for name in inputs} | {f.name: f.column for f in features if not f.cross}
    transforms: list[Transform] = []
    equals: dict[tuple[str, ...], str] = {}

    def free(name: str, feature: str) -> str:
        while name in taken and name != feature:
            name += "_"
        taken.add(name)
        return name

    for f in sorted(features, key=lambda f: bool(f.cross)):
        steps = _steps(f)
        # The events first, which `equal` compares with the other.
        crossed = sorted(f.cross, key=lambda name: name not in histories) if f.equal else f.cross
        reads = [sources[name] for name in crossed] or events_read(f)
        if f.cross and f.window:
            at = first_of(n for n, name in enumerate(crossed) if name in histories)
            name = free(f"{f.name}.events", "")
            op, taken_from, integers = window_step(f, reads[at], histories, histories[crossed[at]])
            transforms.append(Transform(name, op, taken_from, integers))
            reads[at] = name
        if f.equal:
            if (pair := tuple(reads[:2])) not in equals:
                equals[pair] = free(f"{f.name}.equal" if steps else f.name, f.name)
                transforms.append(Transform(equals[pair], "equal", reads[:2]))
            reads = [equals[pair], *reads[2:]]
        for i, (op, integers, floats, texts) in enumerate(steps):
            name = free(f.name if i == len(steps) - 1 and f.name not in inputs else f"{f.name}.{i}", f.name)
            transforms.append(Transform(name, op, reads, integers, floats, texts))
            reads = [name]
        if steps or f.equal:
            sources[f.name] = reads[0]
    return sources, transforms


def _steps(f: FeatureConfig) -> list[tuple[str, list[int], list[float], list[str]]]:
    """Return the steps (op, integers, floats, texts) that derive a feature's ids; [] for the column's ids."""
    if f.window and not f.cross:
        return event_steps(f)
    if f.equal and len(f.cross) == 2:
        return []
    if f.cross:
        return [("cross", [f.buckets, CROSS_KEY], [], [])]
    if f.transform == "hour":
        return [("floor_divide", [HOUR_S], [], []), ("floor_modulo", [24], [], [])]
    if f.transform == "weekday":
        return [("floor_divide", [DAY_S], [], []), ("add", [THURSDAY], [], []), ("floor_modulo", [7], [], [])]
    if f.transform == "bucketize":
        whole = f.column_kind in ("id", "seconds")
        return [("float32", [], [], [])] * whole + [("bucketize", [], list(f.boundaries), [])]
    if f.padding is not None:
        return [("drop", [], [], [f.padding]) if isinstance(f.padding, str) else ("drop", [f.padding], [], [])]
    return []


def _reading(group: FeatureGroup, unread: Collection[str]) -> FeatureGroup:
    return replace(group, features=tuple(f for f in group.features if f.input not in unread))


def _unread_keys(groups: Sequence[FeatureGroup], read: Collection[str]) -> list[Input]:
    keys = {key.input: key for group in groups for feature in group.features for key in feature.keys}
    return [Input(name, key.dtype) for name, key in keys.items() if name not in read]


def _with_counts(f: FeatureConfig, config: TrainConfig) -> FeatureConfig:
    """Return a feature of items whose rows also have counts."""
    return replace(f, dim=ItemRows.around(f.dim, config.model.options).width)


def draft(config: TrainConfig, scaling: Scaling, hash_seeds: HashSeeds | None = None) -> Manifest:
    """Make the manifest that all versions share, from a configuration that is filled in; version and files follow."""
    seeds = hash_seeds or {}
    plain, events = [f for f in config.features if not f.sequence], [f for f in config.features if f.sequence]
    if config.model.arch in NEXT_ITEM:
        items = {f.table for f in plain if f.side == "item"}
        plain, events = ([_with_counts(f, config) if f.table in items else f for f in fs] for fs in (plain, events))
        # The others are columns of the log that say whose event a row is.
        plain = [f for f in plain if f.side == "item"]
    unsigned = {f.column for f in plain if f.unsigned}
    inputs = [
        Input(f.name, INPUT_DTYPES[f.kind], ragged=f.kind in RAGGED, declared="uint64" if f.name in unsigned else "")
        for f in wanted_fields(plain)
    ]
    inputs += [Input(f.name, INPUT_DTYPES[f.kind], ragged=True, declared="uint64" * f.unsigned) for f in events]
    # The sequences that the network reads; of the others only features are made.
    dense = {f.sequence.name for f in events if f.sequence and f.dim}
    untimed = config.model.arch in UNTIMED
    unread = {f.name for f in events if f.kind == TIMES and (untimed or (f.sequence and f.sequence.name not in dense))}
    aged = {age_times(f, {e.name for e in events}) for f in plain if f.decay == AGE}
    groups = [_reading(group, unread - aged) for group in config.online_features.values()]
    groups = [group for group in groups if group.features]
    inputs += _unread_keys(groups, {i.name for i in inputs})
    units = {f.name: 1000 if f.sequence and f.sequence.time_unit == "ms" else 1 for f in events}
    sources, transforms = _transforms(plain, {i.name for i in inputs}, units)
    sources |= {f.name: f.name for f in events}
    names = {f.name for f in config.features} | {i.name for i in inputs} | {t.name for t in transforms}
    features = []
    tables: dict[str, TableEntry] = {}
    columns: dict[str, list[SequenceColumn]] = {name: [] for name in config.sequences}
    offset = 0
    for f in [*plain, *events]:
        if f.kind == TIMES or (f.sequence and f.sequence.name not in dense):
            continue
        if f.table:
            dtype = f.dtype or config.publish.table_dtype
            tables.setdefault(f.table, TableEntry(f.table, f.dim, 0, dtype, hash_seed=seeds.get(f.table, 0)))
        mean, scale = scaling.get(f.name, (0.0, 1.0))
        width = feature_width(f.combiner, f.dim, f.max_length) if f.table else f.max_length or 1
        read, kind, table = sources[f.name], f.kind, config.tables.get(f.table, TableConfig())
        if table.hash in HASHES:
            read, kind = f"{f.name[:100]}.keys", "ids"
            while read in names:
                read += "_"
            names.add(read)
            scheme = (table.hash, table.hash_rows, table.hash_codes)
            transforms.append(key_transform(read, sources[f.name], tables[f.table].hash_seed, *scheme))
        if f.sequence:
            sequence_columns = columns[f.sequence.name]
            at = sum(column.width for column in sequence_columns)
            log1p = f.transform == "log1p"
            sequence_columns.append(SequenceColumn(f.name, kind, read, f.table, at, width, log1p, mean, scale))
            continue
        features.append(
            Feature(
                name=f.name,
                kind=kind,
                input=read,
                side=f.side,
                table=f.table,
                combiner=f.combiner,
                max_length=f.max_length,
                log1p=f.transform == "log1p",
                mean=mean,
                scale=scale,
                offset=offset,
                width=width,
            )
        )
        offset += width
    manifest = Manifest(
        model=config.model.name,
        version=1,
        arch=config.model.arch,
        created_at=0.0,
        inputs=inputs,
        features=features,
        tables=list(tables.values()),
        outputs=[Output("score")],
        width=offset,
        dense={},
        files={},
        transforms=transforms,
        sections={"online_features": groups} if groups else {},
        sequences=[_sequence(s, columns[name], unread) for name, s in config.sequences.items()],
        notes={"fusion": dict(config.fusion)} if config.fusion else {},
    )
    validate(manifest)
    return manifest


def _sequence(config: SequenceConfig, columns: list[SequenceColumn], unread: Collection[str]) -> SequenceEntry:
    times = [f"{config.name}.time"] if config.time else []
    inputs = [f"{config.name}.{key}" for key in (*config.columns, *config.floats)] + times
    # Times that the network does not read stay an input that a request may have.
    time = next((name for name in times if name not in unread), "")
    width = sum(column.width for column in columns) + (config.max_length if time else 0)
    return SequenceEntry(
        config.name, columns, config.max_length, width, inputs, config.keep, time, config.time_unit, config.padding
    )
