"""A run's configuration, with all that the training file leaves out: as the checkpoint has it that the run goes on
from, as the version has it whose weights it begins with, or chosen by the data."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import xxhash

from freshet_serving.models.config.feature_sections import HASHED
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.source import Source
from freshet_serving.models.embedding.multi_hash import NO_HASH
from freshet_serving.models.training.checkpoint import RunState
from freshet_serving.models.training.defaults import BEFORE, chosen, filled, scheduled, told, transformed
from freshet_serving.models.training.fingerprint import changed, fingerprint, settings
from freshet_serving.models.training.hash_choice import decided, measured, of_version
from freshet_serving.models.training.spec import (
    HashSeeds,
    Scaling,
    draft,
    measure_scaling,
    measure_transforms,
    share_of_ones,
)
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest

SEED_BITS = 63
"""Of a table's hash_seed in a manifest."""


def resume_config(config: TrainConfig, saved: RunState, rows: int | None, folder: str) -> TrainConfig:
    """As a checkpoint has it, which lies in `folder` of the repository. rows: of the full version, None where they have
    no end. Raises BadInput where the file says something that cannot continue the checkpoint."""
    before = {f.name: saved.settings.get(f"features.{f.name}.transform", "none") for f in config.features}
    hashes = {name: saved.settings.get(f"tables.{name}.hash", NO_HASH) for name in config.tables}
    train = scheduled(filled(config.train, saved.train or BEFORE), rows)
    features, tables = transformed(config.features, before), decided(config, hashes)
    whole = replace(config, train=train, features=features, tables=tables)
    if saved.fingerprint != fingerprint(whole):
        raise BadInput(
            f"checkpoint: {changed(saved.settings, settings(whole))}, so what is in {folder} of the repository cannot"
            " be continued; --new-version --from-scratch trains a second version from new weights, another model.name"
            " another model"
        )
    return whole


def start_config(
    config: TrainConfig, source: Source, old: Manifest | None, rows: int | None, note: Callable[[str], None]
) -> TrainConfig:
    """As a version has it, else by the data; note() is told what was chosen."""
    hash_line = ""
    if old is not None:
        hashes = of_version(old)
        transforms = {f.name: "log1p" if f.log1p else "none" for f in old.features}
    else:
        transforms = measure_transforms(source, config.features)
        hashes, hash_line = measured(source, config)
    train = chosen(config.train, config.features, rows, share_of_ones(source))
    logarithms = [f.name for f in config.features if not f.transform and transforms.get(f.name) == "log1p"]
    log_line = f"defaults: log1p of {', '.join(logarithms)}" * bool(logarithms)
    for line in (told(config.train, train, rows), log_line, hash_line):
        if line:
            note(line)
    features, tables = transformed(config.features, transforms), decided(config, hashes)
    return replace(config, train=scheduled(train, rows), features=features, tables=tables)


def scaling_of(config: TrainConfig, source: Source, old: Manifest | None) -> Scaling:
    """Of float features: measured, or as in the version whose weights are there. Raises BadInput where these do not fit
    the configuration."""
    if old is None:
        return measure_scaling(source, config.features)
    scaling = {f.name: (f.mean, f.scale) for f in old.features if f.kind == "float"}
    drafted = draft(config, scaling, hash_seeds_of(config, old))
    shapes = [{t.name: t.dim for t in m.tables} for m in (old, drafted)]
    columns = [[(f.name, f.kind, f.table, f.width) for f in m.features] for m in (old, drafted)]
    inputs = [(m.inputs, m.transforms) for m in (old, drafted)]
    same = shapes[0] == shapes[1] and columns[0] == columns[1] and inputs[0] == inputs[1]
    if old.arch != drafted.arch or not same:
        raise BadInput(
            f"--new-version: version {old.version} has another architecture, other features or other tables"
            " than the training file, so its weights cannot go on; --from-scratch trains new ones"
        )
    return scaling


def hash_seeds_of(config: TrainConfig, old: Manifest | None) -> HashSeeds:
    """Return the seed of each table that strings are looked up in, for their hashes.

    Without its seed nobody can make a string whose hash is that of another one, and so have the other's row trained. A
    run whose training file gives train.seed is to be repeatable, so its seeds follow from that number.

    Args:
        config: of the run.
        old: the version whose weights are there, whose rows are keyed by the seeds that it has; None without one.
    """
    if old is not None:
        return {t.name: t.hash_seed for t in old.tables}
    tables, seed = {f.table: None for f in config.features if f.table and f.kind in HASHED}, config.train.seed
    if seed is None:
        return {name: secrets.randbits(SEED_BITS) for name in tables}
    return {name: xxhash.xxh3_64_intdigest(name.encode(), seed) >> (64 - SEED_BITS) for name in tables}
