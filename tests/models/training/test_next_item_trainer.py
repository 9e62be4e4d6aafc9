"""A step on histories: its loss, its candidates, and what it moves."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.source import Batch
from freshet_serving.models.training import dense_step, next_item_step
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.extensions.online_features.section import groups_of
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from tests.models.training.next_item_logs import next_config

pytestmark = pytest.mark.tensorflow


def make_trainer(tmp_path, **sections):
    config = next_config(tmp_path, train={"optimizer": "adam"}, **sections)
    return NextItemTrainer(draft(config, {}), config.train, config.network, None, config.tables)


def histories(*lists, targets=None):
    counts = [len(one) - 1 for one in lists] if targets is None else targets
    column = Ragged.of([list(one) for one in lists])
    return Batch({"history.item": column}, np.array(counts, np.float32), None, 0)


def plain_loss(trainer, batch):
    """The mean loss of the targets, one by one, over all items that have a row."""
    states, _, _ = trainer.states(batch)
    column, export = batch.columns["history.item"], trainer.items.export()
    rows, losses = dict(zip(export.keys.tolist(), export.rows)), []
    for n, count in enumerate(batch.label.astype(int).tolist()):
        items = column.values[column.row_splits[n] : column.row_splits[n + 1]].tolist()
        for place in range(len(items) - count, len(items)):
            logits = export.rows @ states[n, place - 1]
            losses.append(np.log(np.exp(logits).sum()) - rows[items[place]] @ states[n, place - 1])
    return np.mean(losses)


ALONE = {"popularity": False, "negatives": 32}
"""The network without counts."""


def test_loss_is_the_softmax_over_all_items(tmp_path):
    trainer = make_trainer(tmp_path, model=ALONE)
    trainer.learn(histories(range(1, 10), range(5, 9), [20, 21]))
    batch = histories([3, 4, 5, 9], [20, 21, 1], [7], range(1, 9), targets=[3, 1, 0, 2])
    wanted = plain_loss(trainer, batch)
    assert trainer.learn(batch) == pytest.approx(wanted, rel=1e-5)


def test_histories_that_a_store_has_are_learned_alike(tmp_path):
    learned = []
    section = {
        "key": "user_id",
        "format": "hash",
        "features": ["items"],
        "names": {"items": "history.item"},
        "types": {"items": "int64_list"},
    }
    for group in ({}, {"user": section}):
        trainer = make_trainer(tmp_path, online_features=group)
        assert len(groups_of(trainer.manifest)) == len(group)
        learned.append([trainer.learn(histories([1, 2, 3], [4, 5])) for _ in range(2)])
    assert learned[0] == learned[1]


def test_candidates_count_as_no_reads(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(histories([1, 2, 3], [4, 5]))
    before = trainer.items.export()
    trainer.learn(histories([1, 2]))
    after = trainer.items.export()
    assert (after.counts - before.counts).tolist() == [1, 1, 0, 0, 0]
    assert (after.rows != before.rows).any(axis=1).all()


def test_expected_items_need_one_executable_while_the_catalogue_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(next_item_step, "FEWEST_CANDIDATES", 4)
    trainer, compiled, make = make_trainer(tmp_path), [], dense_step.XlaFunction

    def compile_once(function, *given):
        compiled.append(function.__name__)
        if compiled.count("learn") == 2:
            raise NotImplementedError
        return make(function, *given)

    monkeypatch.setattr(dense_step, "XlaFunction", compile_once)
    trainer.expected_items = 32
    for ranges in (1, 2, 4):
        trainer.learn(histories(*(range(8 * (n % ranges), 8 * (n % ranges) + 8) for n in range(6))))
    assert compiled.count("learn") == 1
    with pytest.raises(NotImplementedError):
        trainer.learn(histories(*(range(8 * n, 8 * n + 8) for n in range(6))))


def test_few_candidates_estimate_the_whole_loss(tmp_path):
    trainer = make_trainer(tmp_path, model=ALONE)
    items = [list(range(n, n + 5)) for n in range(0, 60, 5)]
    trainer.learn(histories(*items))
    batch = histories([1, 2, 3, 4])
    wanted = plain_loss(trainer, batch)
    assert trainer.learn(batch) == pytest.approx(wanted, abs=0.3)


def test_history_without_targets_changes_nothing(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(histories([1, 2, 3]))
    before = trainer.items.export().rows
    assert trainer.learn(histories([1], [2, 3], targets=[0, 0])) == 0.0
    assert np.array_equal(before, trainer.items.export().rows)
    assert trainer.steps == 1


@pytest.mark.parametrize("model", [{}, {"successors": 0}], ids=["counts", "popularity alone"])
def test_loss_with_counts_is_the_softmax_of_scores(model, tmp_path):
    trainer = make_trainer(tmp_path, model=model)
    for _ in range(3):
        trainer.learn(histories([1, 2, 3, 4, 2, 3], [5, 1, 2, 9, 3], [3, 1, 2]))
    batch = histories([5, 1, 2, 3, 4], [1, 2, 3], [9, 4], targets=[3, 2, 1])
    keys, column, losses = trainer.items.export().keys, batch.columns["history.item"], []
    for n, count in enumerate(batch.label.astype(int).tolist()):
        items = column.values[column.row_splits[n] : column.row_splits[n + 1]].tolist()
        for place in range(len(items) - count, len(items)):
            of_one = Ragged.of([items[:place]] * len(keys))
            logits = trainer.score({"item_id": keys, "history.item": of_one}).astype(np.float64)
            losses.append(np.log(np.exp(logits).sum()) - logits[keys.tolist().index(items[place])])
    assert trainer.learn(batch) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "ftrl", "adagrad_decay"])
def test_optimizers_move_no_counts(optimizer, tmp_path):
    config = next_config(tmp_path, train={"optimizer": optimizer})
    trainer = NextItemTrainer(draft(config, {}), config.train, config.network, None, config.tables)
    trainer.learn(histories([1, 2, 3], [4, 5]))
    before, trainer.counted_ahead = trainer.items.export(), True
    trainer.learn(histories([1, 2, 3], [4, 5]))
    after, dim = trainer.items.export(), trainer.rows.dim
    assert np.array_equal(before.rows[:, dim:], after.rows[:, dim:])
    assert (before.rows[:, :dim] != after.rows[:, :dim]).any(axis=1).all()


def test_scores_are_products_of_the_newest_state(tmp_path):
    trainer = make_trainer(tmp_path, model=ALONE)
    trainer.learn(histories([1, 2, 3, 4], [4, 5, 6]))
    states, _, _ = trainer.states(histories([1, 2, 3, 9]))
    rows = trainer.items.export().rows
    given = {"item_id": np.array([4]), "history.item": Ragged.of([[1, 2, 3]])}
    np.testing.assert_allclose(trainer.score(given), rows[3] @ states[0, 2], atol=1e-6)


@pytest.mark.parametrize("kind", ["id", "string"])
def test_version_ranks_items_whose_ids_replies_can_name(tmp_path, kind):
    item = {"kind": kind, "side": "item", "dim": 16}
    trainer = make_trainer(tmp_path, features={"item_id": item})
    ranking = ItemRanking.of(trainer.manifest)
    if kind == "string":
        # An entity has the texts.
        assert ranking is None
        return
    assert (ranking.item, ranking.output, ranking.history) == ("item_id", "user_vector", ("history.item",))
