"""Share among the tests of networks of the next item: what they learn, and how their scores are checked."""

from dataclasses import replace

import numpy as np

from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.item_rows import ItemRows
from tests.models.zoo.sequence_models import DIM, dense, make_batch, manifest, norm, publish, scaled

LENGTH, LAYERS = 7, 2


ALONE = {"popularity": False}
"""The network without counts."""


def make_trainer(arch, length, floats=False, counting=ALONE):
    timed, width = arch == "hstu_next", ItemRows.around(DIM, counting).width
    whole = manifest(arch, length, timed, floats, width)
    item = replace(whole.features[1], offset=0)
    drafted = replace(
        whole, inputs=[i for i in whole.inputs if i.name not in ("user", "price")], features=[item], width=width
    )
    drafted = replace(drafted, tables=whole.tables[1:])
    settings = TrainSettings(
        optimizer="adam", learning_rate=0.02, dense_learning_rate=0.02, initial_accumulator=0.1, batch_rows=32, seed=3
    )
    return NextItemTrainer(drafted, settings, NetworkConfig({"layers": LAYERS, "dropout": 0.1, **counting}))


def learned(arch, length, steps=25, floats=False, counting=ALONE):
    """A trainer of some batches, as if after a thousand rows: popularity is a share, beside which successors count."""
    trainer = make_trainer(arch, length, floats, counting)
    for seed in range(steps):
        batch = make_batch(32, (length + 1, length // 2, 2, 1, 0), seed, timed=arch == "hstu_next", floats=floats)
        columns = {name: c for name, c in batch.columns.items() if name.startswith("history.")}
        counts = np.maximum(np.diff(columns["history.item"].row_splits) - 1, 0).astype(np.float32)
        trainer.learn(Batch(columns, counts, None, 1_000 + 40 * seed))
    return trainer


def table_rows(trainer, name, ids):
    table = trainer.own[name]
    refs = table.find(np.ascontiguousarray(ids, np.int64))
    return np.where(refs[:, None] >= 0, table.rows[np.maximum(refs, 0)], 0.0).astype(np.float64)


def counted(rows, target, weights):
    """What popularity and counts add to a score, from the rows of a user's items."""
    popularity = 32 * target[DIM]
    if not len(rows):
        return popularity
    w, a = 1 + 10 * weights[0], 10 * weights[1:]
    mixed = 0.0
    # An unknown item has the key of id 0, and has followed nothing.
    if len(target) > DIM + 1 and popularity > 0:
        count = (len(target) - DIM - 6) // 5
        for number, row in enumerate(rows[::-1][:2]):
            keys, times = row[DIM + 6 :][: 3 * count].reshape(3, count), row[DIM + 6 + 3 * count :].reshape(2, count)
            followed = times[number] @ (keys == target[DIM + 1 : DIM + 4, None]).all(0)
            mixed += np.exp(a[number]) * followed / (row[DIM + 4 + number] + 20)
    return w * popularity + np.log1p(mixed / np.exp(w * (popularity - 20)))


def reference(trainer, arch, columns, length, layers, successors=True):
    """Scores one row at a time, as the modules' heads write them, or without what followed the newest events."""
    w, found = {name: a.astype(np.float64) for name, a in trainer.dense.weights().items()}, []
    names = ["history.item", "history.action"] + ["history.time"] * (arch == "hstu_next")
    splits = columns["history.item"].row_splits
    for n, target in enumerate(table_rows(trainer, "item", columns["item"])):
        newest = slice(max(splits[n], splits[n + 1] - length), splits[n + 1])
        items, actions, *times = (columns[name].values[newest] for name in names)
        rows = table_rows(trainer, "item", items)
        own = target if successors else target[: DIM + 1]
        counts = counted(rows, own, w["mixture/weights"]) if len(target) > DIM else 0.0
        if not len(items):
            found.append(counts)
            continue
        x = rows[:, :DIM] * np.sqrt(DIM)
        others = table_rows(trainer, "action", actions)
        if "history.watched" in columns:
            others = np.concatenate([others, scaled(columns["history.watched"].values[newest])], axis=1)
        x = x + dense(others, w, "history_event")
        x = x + w["history_position/rows"][0, : len(x)]
        x = layers(x, w, times[0] if times else None, length)
        found.append(norm(x, w, "history_last")[-1] @ target[:DIM] + counts)
    return np.array(found)


def asked(arch, rows, lengths, floats=False):
    columns = make_batch(rows, lengths, seed=999, items=40, timed=arch == "hstu_next", floats=floats).columns
    return {name: c for name, c in columns.items() if name not in ("user", "price")}


def check_scores(trainer, arch, folder, length, lengths, rows, layers, floats=False):
    columns = asked(arch, rows, lengths, floats)
    wanted = reference(trainer, arch, columns, length, layers)
    assert np.ptp(wanted) > 0.1
    if trainer.rows.successors:
        lifts = wanted - reference(trainer, arch, columns, length, layers, False)
        assert lifts.max() > 1e-3
    np.testing.assert_allclose(trainer.score(columns), wanted, atol=1e-5)
    publish(trainer, folder)
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", columns)).outputs
        np.testing.assert_allclose(got["score"][:, 0], wanted, atol=1e-5)
        for n in range(len(lengths)):
            # All items for one user, whose history is computed once.
            of_one = {"item": columns["item"]}
            for name, c in columns.items():
                if isinstance(c, Ragged):
                    of_one[name] = Ragged.of([c.values[c.row_splits[n] : c.row_splits[n + 1]].tolist()])
            repeated = {
                name: c if name == "item" else Ragged.of([c.values.tolist()] * rows) for name, c in of_one.items()
            }
            got = processor.process(PredictRequest("m", of_one)).outputs["score"]
            np.testing.assert_allclose(got[:, 0], reference(trainer, arch, repeated, length, layers), atol=1e-5)
