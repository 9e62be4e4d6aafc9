"""Share among the tests of networks over histories: a manifest with a sequence, its batches, a numpy view of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.explaining.explanation import Explainer, GenerationRef
from freshet_serving.processor.package import Feature, Input, Manifest, Output, SequenceEntry, TableEntry
from freshet_serving.processor.package.sequences import SequenceColumn
from freshet_serving.processor.repository.version import VersionReader

DIM, ACTION_DIM = 8, 4
MEAN, SCALE = np.float32(3.5), np.float32(0.4)
"""Scaling of the floats of events, after log1p."""


def manifest(arch, length, timed=False, floats=False, item_dim=DIM):
    """A user, an item, its price, and the history of items and actions that share the item's table."""
    columns, at = [], 0
    for name, table, dim in (("history.item", "item", item_dim), ("history.action", "action", ACTION_DIM)):
        columns.append(SequenceColumn(name, "ids", name, table, at, (dim + 1) * length))
        at += (dim + 1) * length
    if floats:
        scaling = True, float(MEAN), float(SCALE)
        columns.append(SequenceColumn("history.watched", "floats", "history.watched", "", at, length, *scaling))
        at += length
    names = [c.name for c in columns] + ["history.time"] * timed
    history = SequenceEntry(
        "history", columns, length, at + length * timed, names, time="history.time" if timed else ""
    )
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=4),
        Feature("item", "id", "item", side="item", table="item", offset=4, width=item_dim),
        Feature("price", "float", "price", side="item", offset=4 + item_dim, width=1),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64"), Input("price", "float32")]
    inputs += [Input(name, "float32" if "watched" in name else "int64", ragged=True) for name in names]
    tables = [TableEntry("user", 4, 0), TableEntry("item", item_dim, 0), TableEntry("action", ACTION_DIM, 0)]
    return Manifest(
        "m", 1, arch, 0.0, inputs, features, tables, [Output("score")], 5 + item_dim, {}, {}, sequences=[history]
    )


def make_batch(rows, lengths, seed=0, items=30, timed=False, floats=False):
    """Rows with histories of these lengths in turn; an even item is liked by who has met many even ones."""
    random = np.random.default_rng(seed)
    counts = np.resize(lengths, rows)
    met = [random.integers(0, items, n) for n in counts]
    item = random.integers(0, items, rows)
    columns = {
        "user": random.integers(0, 20, rows),
        "item": item,
        "price": random.normal(size=rows).astype(np.float32),
        "history.item": Ragged.of([m.tolist() for m in met]),
        "history.action": Ragged.of([random.integers(0, 3, n).tolist() for n in counts]),
    }
    if timed:
        times = [1_700_000_000 + np.sort(random.integers(0, 10**6, n)) for n in counts]
        columns["history.time"] = Ragged.of([t.tolist() for t in times])
    if floats:
        values = np.exp(random.normal(3, 1, counts.sum())).astype(np.float32)
        values[::5] = np.nan
        columns["history.watched"] = Ragged(values, columns["history.item"].row_splits)
    even = np.array([np.mean(m % 2 == 0) if len(m) else 0.5 for m in met])
    label = ((even > 0.5) == (item % 2 == 0)).astype(np.float32)
    return Batch(columns, label, None, 0)


def make_trainer(arch, length, timed=False, floats=False, **options):
    settings = TrainSettings(
        optimizer="adagrad", learning_rate=0.1, dense_learning_rate=0.01, initial_accumulator=0.1, batch_rows=64, seed=3
    )
    options = {"hidden": (16,)} | options
    made = manifest(f"freshet_serving.models.zoo.{arch}:build", length, timed, floats)
    return Trainer(made, settings, NetworkConfig(options))


def move_weights(trainer, random):
    """Move all weights at random: some networks begin with layers of zeros, so that a history changes no score."""
    weights = trainer.dense.weights()
    trainer.dense.begin_with({name: w + random.normal(0, 0.1, w.shape).astype("f4") for name, w in weights.items()})


def learned(arch, length, timed=False, steps=120, **options):
    """A trainer that has learned from histories of several lengths, whose events have a float."""
    trainer = make_trainer(arch, length, timed, True, **options)
    lengths = (length, length // 2, length - 1, 1, 0)
    losses = [trainer.learn(make_batch(64, lengths, seed, timed=timed, floats=True)) for seed in range(steps)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.03
    return trainer


def check_reference(trainer, length, reference, timed=False):
    """Trained and reference scores are equal, and depend on the floats of events where there are events."""
    lengths = 0, 1, length - 1, length
    columns = make_batch(40, lengths, seed=999, items=40, timed=timed, floats=True).columns
    trained, watched = trainer.score(columns), columns["history.watched"]
    np.testing.assert_allclose(trained, reference(Rows(trainer, columns)), atol=1e-5)
    other = trainer.score(columns | {"history.watched": Ragged(watched.values * 9, watched.row_splits)})
    assert not np.allclose(other, trained, atol=1e-4)
    np.testing.assert_array_equal(other[::4], trained[::4])


def check_served(trainer, folder, lengths, rows=40, timed=False, floats=False):
    """Served scores equal trained ones: each row its own user, and all rows one user's, computed once."""
    publish(trainer, folder)
    graphs = VersionReader(folder / "m" / "1").manifest.graphs
    assert {i.name: i.dims[0] for i in graphs["user"].inputs}["history"] == "requests"
    assert "history" not in [i.name for i in graphs["score"].inputs]
    columns = make_batch(rows, lengths, seed=999, items=40, timed=timed, floats=floats).columns
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", columns)).outputs["score"]
        np.testing.assert_allclose(got[:, 0], trainer.score(columns), atol=1e-5)
        for request in range(len(lengths)):
            asked = of_request(columns, rows, request)
            whole = processor.process(PredictRequest("m", asked)).outputs["score"]
            np.testing.assert_allclose(whole[:, 0], trainer.score(asked), atol=1e-5)
            # A full bucket: at one shape of the graph the other rows change no bit.
            some = {n: c[:8] if len(c) == rows else c for n, c in asked.items()}
            got = processor.process(PredictRequest("m", some)).outputs["score"]
            np.testing.assert_allclose(got, whole[:8], atol=1e-6)
        check_explained(processor, of_request(columns, 3, int(np.argmax(np.resize(lengths, rows) > 1))))


def check_explained(processor, asked, row=1):
    """What an explanation says of an event is the change of the score by a request without it."""
    version = processor.host.catalogue["m"].pick()
    (side,) = Explainer("a test").explain(asked, row, GenerationRef(version))["sides"]
    told, items = side["histories"]["history"], asked["history.item"].values
    assert told["events"] == len(items) == told["left_out"] + len(told["newest"])
    for event in {*range(0, len(told["newest"]), 7), len(told["newest"]) - 1}:
        entry = told["newest"][event]
        assert entry["ids"]["history.item"][0]["id"] == str(items[entry["place"]])
        without = {
            name: Ragged.of([np.delete(column.values, entry["place"]).tolist()])
            if name.startswith("history")
            else column
            for name, column in asked.items()
        }
        fallen = processor.process(PredictRequest("m", without)).outputs["score"][row]
        np.testing.assert_allclose(side["outputs"]["score"] - fallen, entry["outputs"]["score"], atol=1e-6)
    assert ("seconds_before_newest" in told["newest"][0]) == ("history.time" in asked)
    for entry in told["newest"] if "history.watched" in asked else ():
        np.testing.assert_equal(entry["floats"]["history.watched"], asked["history.watched"].values[entry["place"]])


def publish(trainer, folder, buckets=(1, 8, 64), model="m"):
    """Publish the trainer's state as version 1 of the model in the folder."""
    exported = {name: table.export() for name, table in trainer.tables.items()}
    tables = {name: (found.keys, found.rows) for name, found in exported.items()}
    folder.mkdir(exist_ok=True)
    manifest = replace(trainer.manifest, model=model, version=1)
    publish_version(folder, manifest, tables, trainer.dense.published(), buckets=buckets)


def publish_untrained(arch, folder, length, timed=False, buckets=(1, 8), **options):
    """Publish version 1 of model "m" in the folder, with random rows for the ids of make_batch()."""
    trainer = make_trainer(arch, length, timed, **options)
    random, tables = np.random.default_rng(3), {}
    move_weights(trainer, random)
    for entry, rows in zip(trainer.manifest.tables, (20, 30, 3)):
        tables[entry.name] = np.arange(rows), random.normal(0, 0.1, (rows, entry.dim)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    manifest = replace(trainer.manifest, model="m", version=1)
    publish_version(folder, manifest, tables, trainer.dense.published(), buckets=buckets)


def of_request(columns, rows, request=0):
    """A request: the items of `rows` rows for the user of one."""
    take = {name: columns[name] for name in columns}
    lists = {n: c for n, c in take.items() if isinstance(c, Ragged)}
    found = {n: c[:rows] for n, c in take.items() if n not in lists}
    found["user"] = found["user"][request : request + 1]
    for name, c in lists.items():
        start, stop = c.row_splits[request : request + 2]
        found[name] = Ragged(c.values[start:stop], np.array([0, stop - start], np.int64))
    return found


def scaled(values):
    """Floats of events as a network gets them, [events, 1]."""
    return np.where(np.isnan(values), 0.0, (np.log1p(values) - MEAN) * SCALE).astype(np.float64)[:, None]


class Rows:
    """Rows of a batch as plain arrays: x, and for each row its events, actions and times."""

    def __init__(self, trainer, columns):
        self.x = trainer.dense_inputs(columns)["x"]
        self.weights = {name: w.astype(np.float64) for name, w in trainer.dense.weights().items()}
        self.target = self.x[:, 4 : 4 + DIM].astype(np.float64)
        found = {}
        for name, dim, table in (("history.item", DIM, "item"), ("history.action", ACTION_DIM, "action")):
            own = trainer.own[table]
            values, splits = columns[name].values, columns[name].row_splits
            refs = own.find(np.ascontiguousarray(values))
            rows = np.where(refs[:, None] >= 0, own.rows[np.maximum(refs, 0)], 0.0).reshape(-1, dim).astype(np.float64)
            found[name] = [rows[a:b] for a, b in zip(splits, splits[1:])]
        self.items = found["history.item"]
        if "history.watched" in columns:
            values, splits = columns["history.watched"].values, columns["history.watched"].row_splits
            found["history.watched"] = [scaled(values[a:b]) for a, b in zip(splits, splits[1:])]
        self.events = [np.concatenate(pair, axis=1) for pair in zip(*found.values())]
        if "history.time" in columns:
            values, splits = columns["history.time"].values, columns["history.time"].row_splits
            self.times = [values[a:b].astype(np.float64) for a, b in zip(splits, splits[1:])]


def dense(x, weights, name, activation=None):
    y = x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)
    return np.maximum(y, 0.0) if activation == "relu" else y


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(scores):
    some = np.exp(scores - scores.max())
    return some / some.sum()


def norm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred / scale * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def end_of(weights, parts):
    """The last layers, of one row: mlp_0 and mlp_out."""
    top = dense(np.concatenate(parts), weights, "mlp_0", "relu")
    return sigmoid(dense(top, weights, "mlp_out"))[0]
