"""A network over a user's history with random weights, published: what user state is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.processor.package import Feature, Input, Manifest, Output, SequenceEntry, TableEntry
from freshet_serving.processor.package.sequences import SequenceColumn

CANDIDATES, DIM, LAYERS, USERS, ITEMS = 256, 64, 2, 100, 10_000


def manifest(network: str, length: int) -> Manifest:
    """A user, an item, and a history of items."""
    timed = network == "hstu"
    wide = (DIM + 1) * length
    history = SequenceEntry(
        "history",
        [SequenceColumn("history.item", "ids", "history.item", "item", 0, wide)],
        length,
        wide + length * timed,
        ["history.item"] + ["history.time"] * timed,
        time="history.time" if timed else "",
    )
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=16),
        Feature("item", "id", "item", side="item", table="item", offset=16, width=DIM),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64")]
    inputs += [Input(name, "int64", ragged=True) for name in history.inputs]
    tables = [TableEntry("user", 16, 0), TableEntry("item", DIM, 0)]
    arch = f"freshet_serving.models.zoo.{network}:build"
    return Manifest(
        network, 1, arch, 0.0, inputs, features, tables, [Output("score")], 16 + DIM, {}, {}, sequences=[history]
    )


def published(folder: Path, network: str, length: int, buckets: Sequence[int] = (1, CANDIDATES)) -> None:
    """Publish a network. Needs the train extra.

    Args:
        folder: The repository.
        network: "hstu", "sasrec" or "stca".
        length: Events of the history.
        buckets: Rows that it is compiled for.
    """
    from freshet_serving.models.config.model_section import NetworkConfig
    from freshet_serving.models.config.train_section import TrainSettings
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.training.trainer import Trainer

    settings = TrainSettings(
        optimizer="adagrad", learning_rate=0.1, dense_learning_rate=0.01, initial_accumulator=0.1, batch_rows=8, seed=1
    )
    network_config = NetworkConfig({"hidden": (64,), "units": DIM, "layers": LAYERS})
    trainer, random = Trainer(manifest(network, length), settings, network_config), np.random.default_rng(length)
    tables = {
        "user": (np.arange(USERS), random.normal(size=(USERS, 16)).astype(np.float32)),
        "item": (np.arange(ITEMS), random.normal(size=(ITEMS, DIM)).astype(np.float32) * 0.3),
    }
    version = replace(trainer.manifest, version=1)
    publish_version(folder, version, tables, trainer.dense.published(), buckets=tuple(buckets))
