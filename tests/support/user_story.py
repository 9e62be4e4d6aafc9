"""The served side of tests.programs.user_checker: the package of its model, and its deltas."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from freshet_serving.processor.package import Delta, TableDelta
from tests.programs.user_checker import DIMS, LAYERS, LENGTH, UNITS, shapes

MODEL, CANDIDATES = "m", 16


def write_users(folder, contents):
    """Publish contents as version 1 of the model in the folder. TensorFlow compiles it."""
    from freshet_serving.models.training.publication import publish_version
    from tests.models.zoo.sequence_models import make_trainer

    trainer = make_trainer(contents.network, LENGTH, True, units=UNITS[contents.network], layers=LAYERS)
    graph = trainer.dense.published()
    assert {name: tensor.shape for name, tensor in graph.weights.items()} == shapes(contents.network)
    tables = {name: (np.arange(len(rows)), rows) for name, rows in contents.tables.items()}
    folder.mkdir(parents=True, exist_ok=True)
    manifest = replace(trainer.manifest, model=MODEL, version=1)
    publish_version(folder, manifest, tables, replace(graph, weights=contents.dense), buckets=(1, CANDIDATES))


def user_delta(contents, change, step, parent):
    """The delta that a change of tests.programs.user_checker makes, whose contents are given."""
    tables = {}
    for name in DIMS:
        keys, removed = (np.array(sorted(of.get(name, [])), np.int64) for of in (change.rows, change.removed))
        if len(keys) + len(removed):
            tables[name] = TableDelta(keys, contents.tables[name][keys], removed)
    weights = {name: contents.dense[name] for name in change.dense}
    return Delta(MODEL, 1, step, parent, tables, weights, published_at=time.time())
