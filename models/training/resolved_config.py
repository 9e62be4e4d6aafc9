"""Fill in what a training file leaves out: from the checkpoint or version that the run continues, or from the data."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import xxhash

from freshet_serving.models.config.feature_sections import HASHED, MADE, FeatureConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.entity_table import EntitySource
from freshet_serving.models.data.next_item_rows import count_distinct
from freshet_serving.models.data.sequence_columns import FLOATS, SequenceSource
from freshet_serving.models.data.source import Source
from freshet_serving.models.data.tabular import unsigned_columns
from freshet_serving.models.embedding.multi_hash import NO_HASH
from freshet_serving.models.training.checkpoint import RunState
from freshet_serving.models.training.defaults import (
    BEFORE,
    ONE_EPOCH,
    chosen,
    filled,
    filled_line,
    scheduled,
    transformed,
)
from freshet_serving.models.training.fingerprint import changed, fingerprint, settings
from freshet_serving.models.training.hash_choice import decided, measured, of_version
from freshet_serving.models.training.odd_times import odd_time_lines
from freshet_serving.models.training.padded_lists import padding_lines
from freshet_serving.models.training.spec import (
    HashSeeds,
    Scaling,
    draft,
    measure_scaling,
    measure_transforms,
    share_of_ones,
    unsplit_texts,
)
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.package.item_rows import SUCCESSORS, ItemRows

SEED_BITS = 63
"""Bits of a table's hash_seed in a manifest."""


def resume_config(config: TrainConfig, saved: RunState, rows: int | None, folder: str) -> TrainConfig:
    """Fill in a configuration as a checkpoint has it; raise BadInput if the file cannot continue that.

    `rows` are the full version's; None for endless data. `folder` is the checkpoint's, for messages; "" to repeat it.
    """
    before = {f.name: saved.settings.get(f"features.{f.name}.transform", "none") for f in config.features}
    hashes = {name: saved.settings.get(f"tables.{name}.hash", NO_HASH) for name in config.tables}
    config = _counting(config, *(saved.settings.get(f"model.{key}", 0) for key in ("popularity", "successors")))
    train = scheduled(filled(config.train, {**ONE_EPOCH, **(saved.train or BEFORE)}), rows)
    features, tables = transformed(config.features, before), decided(config, hashes)
    resolved = replace(config, train=train, features=features, tables=tables)
    if saved.fingerprint != fingerprint(resolved) and not folder:
        raise BadInput(
            f"--repeat: {changed(saved.settings, settings(resolved))}; repeat a run with its own training file"
        )
    if saved.fingerprint != fingerprint(resolved):
        raise BadInput(
            f"checkpoint: {changed(saved.settings, settings(resolved))}, so the run in {folder} of the repository"
            " cannot be continued; --new-version --from-scratch trains another version from new weights, and another"
            " model.name trains another model"
        )
    return resolved


def with_unsigned_ids(config: TrainConfig) -> TrainConfig:
    """Return a configuration whose features of ids are unsigned if their columns are, or share a table with such."""
    columns = unsigned_columns(config.data).union(*(unsigned_columns(table.data) for table in config.joined))
    tables = {f.table for f in config.features if f.unsigned}

    def is_unsigned(f: FeatureConfig) -> bool:
        if f.kind not in ("id", "ids") or f.cross or f.transform in MADE:
            return False
        return f.unsigned or f.column in columns or (f.sequence is not None and f.table in tables)

    return replace(config, features=[replace(f, unsigned=is_unsigned(f)) for f in config.features])


def start_config(
    config: TrainConfig, source: Source, old: Manifest | None, rows: int | None, note: Callable[[str], None]
) -> TrainConfig:
    """Fill in a configuration as the version `old` has it, or by the data for new weights; note() gets choices."""
    hash_line = ""
    config = _counting_as(config, old)
    if old is not None:
        hashes = of_version(old)
        transforms = {f.name: "log1p" if f.log1p else "none" for f in old.lookups}
    else:
        transforms = measure_transforms(source, config.features)
        hashes, hash_line = measured(source, config)
    train = chosen(config.train, config.features, rows, share_of_ones(source), *_histories(config, source, rows))
    logarithms = [f.name for f in config.features if not f.transform and transforms.get(f.name) == "log1p"]
    counts = [f.name for f in config.features if f.counts]
    counts_line = f"{config.model.arch} reads counts of {', '.join(counts)}" * bool(counts)
    log_line = f"defaults: log1p of {', '.join(logarithms)}" * bool(logarithms)
    lists_line = "".join(
        f"features.{name}: most values have '|', and each is one value: kind = \"strings\" reads lists, which are text"
        " with '|' in CSV and a column of lists in other formats"
        for name in unsplit_texts(source, config.features)[:1]
    )
    log = source.events if isinstance(source, SequenceSource) else source
    unknown = log.unknown_lines() if isinstance(log, EntitySource) else []
    odd = [
        *unknown,
        *padding_lines(source, config.features),
        *odd_time_lines(log, config.features, config.data.time, time.time()),
    ]
    for line in (counts_line, filled_line(config.train, train, rows), log_line, hash_line, lists_line, *odd):
        if line:
            note(line)
    features, tables = transformed(config.features, transforms), decided(config, hashes)
    return replace(config, train=scheduled(train, rows), features=features, tables=tables)


def _counting(config: TrainConfig, popularity: bool, successors: int) -> TrainConfig:
    """Return a configuration that counts so unless its file says otherwise; BadInput for successors not in float32."""
    if config.model.arch not in NEXT_ITEM:
        return config
    options = {"popularity": bool(popularity), "successors": int(successors)} | dict(config.model.options)
    dtype = next(f.dtype or config.publish.table_dtype for f in config.features if f.side == "item")
    if options["popularity"] and options["successors"] and dtype != "float32":
        raise BadInput(
            f"publish.table_dtype: expected 'float32' for items with successors, got {dtype!r}; model.successors = 0"
            " remembers none, in a model of new weights"
        )
    return replace(config, model=replace(config.model, options=options))


def _counting_as(config: TrainConfig, old: Manifest | None) -> TrainConfig:
    """Return a configuration that counts what `old` does, or a new version; successors only in float32 rows."""
    items = [f for f in config.features if f.side == "item" and not f.sequence]
    if config.model.arch not in NEXT_ITEM or len(items) != 1:
        return config
    (item,) = items
    if old is None:
        exact = (item.dtype or config.publish.table_dtype) == "float32"
        return _counting(config, True, SUCCESSORS if exact else 0)
    width = next((t.dim for t in old.tables if t.name == item.table), item.dim)
    choices = [{"popularity": p, "successors": n} for p, n in ((False, 0), *((True, n) for n in range(65)))]
    counting = next((c for c in choices if ItemRows.around(item.dim, c).width == width), choices[0])
    return _counting(config, bool(counting["popularity"]), int(counting["successors"]))


def _histories(config: TrainConfig, source: Source, rows: int | None) -> tuple[int | None, int]:
    """Return histories and items of a full pass; (0, 0) if the file has epochs, (None, 0) for other networks."""
    if config.model.arch not in NEXT_ITEM:
        return None, 0
    if config.train.epochs:
        return 0, 0
    assert isinstance(source, SequenceSource)
    (sequence,) = config.sequences.values()
    item = next(f.column for f in config.features if f.side == "item" and not f.sequence)
    histories, items = count_distinct(source.events, (sequence.from_events, item), rows or 0)
    return histories, items


def scaling_of(config: TrainConfig, source: Source, old: Manifest | None) -> Scaling:
    """Return the scaling of float features: measured, or that of `old`. Raises BadInput if that does not fit."""
    if old is None:
        return measure_scaling(source, config.features)
    scaling = {f.name: (f.mean, f.scale) for f in old.lookups if f.kind in ("float", FLOATS)}
    drafted = draft(config, scaling, hash_seeds_of(config, old))
    # Only tables that are looked up.
    tables = [{f.table for f in m.lookups} for m in (old, drafted)]
    shapes = [{t.name: t.dim for t in m.embeddings if t.name in of} for m, of in zip((old, drafted), tables)]
    columns = [[(f.name, f.kind, f.table, f.width) for f in m.features] for m in (old, drafted)]
    # The declared type does not change weights.
    inputs_read = [[replace(i, declared="") for i in m.read_inputs] for m in (old, drafted)]
    inputs = [(declared, m.transforms, m.sequences) for declared, m in zip(inputs_read, (old, drafted))]
    same = shapes[0] == shapes[1] and columns[0] == columns[1] and inputs[0] == inputs[1]
    if old.arch != drafted.arch or not same:
        raise BadInput(
            f"--new-version: the architecture, features or tables of version {old.version} differ from those of"
            " the training file, so its weights cannot be used; --from-scratch trains new ones"
        )
    return scaling


def hash_seeds_of(config: TrainConfig, old: Manifest | None) -> HashSeeds:
    """Return the hash seeds of tables that strings look up: those of `old`, or new ones.

    Seeds are secret, so that an attacker cannot construct a string that collides with another and have its row trained.
    With train.seed in the training file the run must be repeatable: they derive from it.
    """
    if old is not None:
        return {t.name: t.hash_seed for t in old.tables}
    tables, seed = {f.table: None for f in config.features if f.table and f.kind in HASHED}, config.train.seed
    if seed is None:
        return {name: secrets.randbits(SEED_BITS) for name in tables}
    return {name: xxhash.xxh3_64_intdigest(name.encode(), seed) >> (64 - SEED_BITS) for name in tables}
