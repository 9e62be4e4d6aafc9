"""Check a training file whose network of two towers learns to retrieve, and find what tells users and items apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freshet_serving.models.config.entity_sections import EntityConfig
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.model_section import LOG_LOSS, ModelConfig
from freshet_serving.models.config.next_item_rules import check_judges
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.toml_sections import require, require_between
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.zoo.architectures import RETRIEVAL

OF_ONE = ("id", "string")
MOST_BATCH_ROWS = 8192
"""A step compares each row with each other one: this many take half a gigabyte."""


def learns_to_retrieve(model: ModelConfig) -> bool:
    """Return whether a model learns which item goes with a user, in place of labels of rows."""
    return model.arch == RETRIEVAL and not model.loss


def tower_keys(features: Sequence[FeatureConfig], entities: Sequence[EntityConfig]) -> tuple[str, str]:
    """Return the features that tell users and items apart; "" without one.

    It is the key of the first entity of that side, or else the first feature of that side with one id or string a row.
    """
    keys = [entity.key for entity in entities]

    def key(side: str) -> str:
        readers = [f for f in features if f.side == side and (read := f.reads) is not None and read.kind in OF_ONE]
        named = [f.name for f in readers if f.sequence is None and f.kind in OF_ONE]
        return next((name for name in keys if name in named), named[0] if named else "")

    return key("user"), key("item")


def check_retrieval(
    model: ModelConfig,
    features: Sequence[FeatureConfig],
    entities: Sequence[EntityConfig],
    train: TrainSettings,
    tables: Mapping[str, TableConfig],
    named: Mapping[str, Any],
) -> None:
    """Raise BadInput unless the network can learn to retrieve from the file, whose sections are `named`."""
    of = f"for {model.arch}, which learns to retrieve unless model.loss is {LOG_LOSS!r}"
    item = tower_keys(features, entities)[1]
    require(bool(item), "features", f"an id or string of side 'item' that tells items apart {of}", "none")
    table = next(f.table for f in features if f.name == item)
    for key in ("hash", "hash_rows"):
        value = getattr(tables.get(table, TableConfig()), key)
        require(value in ("", "none", 0), f"tables.{table}.{key}", f"none {of}: each item has a row of its own", value)
    of_item = {f.name for f in features if f.side == "item"}
    for f in features:
        alone = f.side != "item" or (of_item.issuperset(f.cross) and not f.window)
        where = f"features.{f.name}.{'cross' if f.cross else 'from'}"
        require(alone, where, f"features of side 'item' alone in one of that side {of}", ", ".join(f.cross) or f.from_)
        budget = tables.get(f.table, TableConfig()).memory_mb if f.side == "item" else 0
        where = f"tables.{f.table}.memory_mb"
        require(not budget, where, f"0 {of}: recent items are read again in each step", budget)
    if train.batch_rows:
        require_between(train.batch_rows, 2, MOST_BATCH_ROWS, "train.batch_rows")
    require("stop_by" not in named.get("train", {}), "train.stop_by", f"nothing {of}: epochs are judged by NDCG", "one")
    check_judges(named, of)


def check_one_process(model: ModelConfig, processes: int) -> None:
    """Raise BadInput if several processes are to train a network that learns to retrieve."""
    allowed = processes == 1 or not learns_to_retrieve(model)
    expected = f"1 for {model.arch}, which compares all rows of a step, unless model.loss is {LOG_LOSS!r}"
    require(allowed, "--processes", expected, processes)
