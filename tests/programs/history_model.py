"""HSTU over a user's timed history with random weights, published: what user state is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.processor.package import Feature, Input, Manifest, Output, SequenceEntry, TableEntry
from freshet_serving.processor.package.sequences import SequenceColumn

HSTU = "hstu"
CANDIDATES, DIM, LAYERS, USERS, ITEMS = 256, 64, 2, 100, 10_000


def manifest(length: int) -> Manifest:
    """A user, an item, and a history of items."""
    wide = (DIM + 1) * length
    column = SequenceColumn("history.item", "ids", "history.item", "item", 0, wide)
    names = ["history.item", "history.time"]
    history = SequenceEntry("history", [column], length, wide + length, names, time="history.time")
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=16),
        Feature("item", "id", "item", side="item", table="item", offset=16, width=DIM),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64")]
    inputs += [Input(name, "int64", ragged=True) for name in names]
    tables, outputs = [TableEntry("user", 16, 0), TableEntry("item", DIM, 0)], [Output("score")]
    arch = f"freshet_serving.models.zoo.{HSTU}:build"
    return Manifest(HSTU, 1, arch, 0.0, inputs, features, tables, outputs, 16 + DIM, {}, {}, sequences=[history])


def published(folder: Path, length: int, buckets: Sequence[int]) -> None:
    """Publish the network, with a history of so many events, compiled for batches of these sizes."""
    from freshet_serving.models.config.model_section import NetworkConfig
    from freshet_serving.models.config.train_section import TrainSettings
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.training.trainer import Trainer

    settings = TrainSettings(
        optimizer="adagrad", learning_rate=0.1, dense_learning_rate=0.01, initial_accumulator=0.1, batch_rows=8, seed=1
    )
    network = NetworkConfig({"hidden": (64,), "units": DIM, "layers": LAYERS})
    trainer, random = Trainer(manifest(length), settings, network), np.random.default_rng(length)
    tables = {
        "user": (np.arange(USERS), random.normal(size=(USERS, 16)).astype(np.float32)),
        "item": (np.arange(ITEMS), random.normal(size=(ITEMS, DIM)).astype(np.float32) * 0.3),
    }
    version = replace(trainer.manifest, version=1)
    publish_version(folder, version, tables, trainer.dense.published(), buckets=tuple(buckets))
