"""A step on rows that were chosen: its loss, its candidates, and what it moves."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.retrieval_trainer import RetrievalTrainer
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Strings
from tests.models.training.retrieval_logs import pairs_config

pytestmark = pytest.mark.tensorflow


def make_trainer(tmp_path, **sections):
    config = pairs_config(tmp_path, **sections)
    return RetrievalTrainer(draft(config, {}), config.train, config.network, None, config.tables)


def pairs(*rows, labels=None, weight=None):
    """A batch of (user, item) rows."""
    items = np.array([item for _, item in rows], np.int64)
    columns = {
        "user_id": Strings.of([f"u{user}" for user, _ in rows]),
        "item_id": items,
        "kind": Strings.of([f"k{item % 3}" for item in items.tolist()]),
    }
    label = np.ones(len(rows), np.float32) if labels is None else np.array(labels, np.float32)
    return Batch(columns, label, None, 0, None if weight is None else np.array(weight, np.float32))


def vectors(trainer, rows):
    work = trainer.transform(pairs(*rows))
    users = trainer.user_vectors(work, np.arange(len(rows)))
    return users, dict(zip(trainer.recent.keys.tolist(), trainer.item_vectors(np.arange(len(trainer.recent)))))


def test_loss_is_the_softmax_over_the_rows_items_and_the_recent_ones(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs(*((n % 4, 100 + n) for n in range(9))))
    rows = [(0, 100), (1, 101), (0, 105), (2, 100), (3, 107), (1, 101)]
    chose = {(0, 100), (0, 105), (1, 101), (2, 100), (3, 107)}
    users, items = vectors(trainer, rows)
    counts = {100 + n: 1 for n in range(9)}
    for _, item in rows:
        counts[item] += 1
    total, recent = 15 * (1 - 0), sorted(items)
    candidates = [item for _, item in rows] + recent
    loss = 0.0
    for n, (user, item) in enumerate(rows):
        logits = []
        for c, other in enumerate(candidates):
            expected = len(rows) * counts[other] / total + 1.0
            if c == n or (user, other) not in chose:
                logits.append(users[n] @ items[other] - np.log(expected))
        own = users[n] @ items[item] - np.log(len(rows) * counts[item] / total + 1.0)
        loss += (np.log(np.exp(logits).sum()) - own) / len(rows)
    assert trainer.learn(pairs(*rows)) == pytest.approx(loss, rel=1e-4)


def test_rows_of_label_0_teach_nothing(tmp_path):
    both, alone = make_trainer(tmp_path), make_trainer(tmp_path)
    losses = [
        [both.learn(pairs((1, 100), (2, 101), (3, 102), labels=[1, 0, 1])) for _ in range(3)],
        [alone.learn(pairs((1, 100), (3, 102))) for _ in range(3)],
    ]
    assert losses[0] == losses[1]
    assert both.learn(pairs((1, 100), labels=[0])) == 0.0
    assert both.steps == 3


def test_weight_0_takes_a_row_out_of_the_loss(tmp_path):
    trainer = make_trainer(tmp_path, model={"negatives": 0})
    trainer.learn(pairs((1, 100), (2, 101), weight=[1, 0]))
    before = trainer.own["user_id"].export().rows.copy()
    trainer.learn(pairs((1, 100), (2, 101), weight=[0, 1]))
    moved = (trainer.own["user_id"].export().rows != before).any(axis=1)
    assert moved.sum() == 1


def test_further_items_learn_and_count_as_no_reads(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs((1, 100), (2, 101), (3, 102)))
    before = trainer.own["item_id"].export()
    users = trainer.own["user_id"].export()
    trainer.learn(pairs((1, 100), (2, 101)))
    after = trainer.own["item_id"].export()
    assert (after.counts - before.counts).tolist() == [1, 1, 0]
    assert (after.rows != before.rows).any(axis=1).all()
    # Their users say nothing, and none of these gets a row.
    assert len(trainer.own["user_id"].export().keys) == len(users.keys) == 3


def test_more_recent_items_than_negatives_are_drawn_by_step(tmp_path):
    trainer, other = make_trainer(tmp_path, model={"negatives": 4}), make_trainer(tmp_path, model={"negatives": 4})
    for one in (trainer, other):
        one.learn(pairs(*((n, 100 + n) for n in range(20))))
    first = trainer._drawn()
    assert len(first) == 4
    assert np.array_equal(first, other._drawn())
    trainer.learn(pairs((1, 100)))
    assert not np.array_equal(first, trainer._drawn())


@pytest.mark.parametrize("options", [{"similarity": "cosine"}, {"similarity": "cosine", "temperature": 0.05}, {}])
def test_order_of_scores_is_that_of_products(options, tmp_path):
    trainer = make_trainer(tmp_path, model=options)
    rows = [(n % 5, 100 + n % 7) for n in range(40)]
    for _ in range(20):
        trainer.learn(pairs(*rows))
    users, items = vectors(trainer, rows[:7])
    for n, (user, _) in enumerate(rows[:7]):
        scores = trainer.score(pairs(*((user, item) for item in items)).columns)
        products = np.array([users[n] @ items[item] for item in items])
        assert np.array_equal(np.argsort(scores, kind="stable"), np.argsort(products, kind="stable"))
        assert 0.0 < scores.min() <= scores.max() < 1.0


@pytest.mark.parametrize(("temperature", "moves"), [(0.0, True), (0.05, False)])
def test_temperature_of_the_file_stays(temperature, moves, tmp_path):
    trainer = make_trainer(tmp_path, model={"similarity": "cosine", "temperature": temperature})
    first = float(trainer.dense.state.named()["score_out/kernel"][0, 0])
    assert first == pytest.approx(1 / (temperature or 0.1))
    for _ in range(3):
        trainer.learn(pairs((1, 100), (2, 101), (3, 102)))
    assert (float(trainer.dense.state.named()["score_out/kernel"][0, 0]) != first) == moves


def test_saved_items_continue_in_another_trainer(tmp_path):
    one, other = make_trainer(tmp_path), make_trainer(tmp_path)
    one.learn(pairs((1, 100), (2, 101)))
    other.restore_saved(one.saved(whole=True))
    assert other.recent.keys.tolist() == [100, 101]
    other.restore_saved({})
    other.clear()
    assert len(other.recent) == 0
