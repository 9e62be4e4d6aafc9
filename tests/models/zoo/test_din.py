"""DIN: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput, SequenceSpan
from freshet_serving.models.zoo.din import build
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.sequence_models import check_reference, check_served, dense, end_of, learned, make_batch

pytestmark = pytest.mark.tensorflow

LENGTH = 7


def reference(rows, layers=1):
    """DIN as Zhou et al. write it, one row and one event at a time."""
    w, found = rows.weights, []
    for x, t, items, events in zip(rows.x, rows.target, rows.items, rows.events):
        pooled = np.zeros(events.shape[1])
        for h, event in zip(items, events):
            unit = dense(np.concatenate([t, h, t - h, t * h]), w, "history_pair", "relu")
            for i in range(1, layers):
                unit = dense(unit, w, f"history_attention_{i}", "relu")
            pooled += dense(unit, w, "history_attention_out")[0] * event
        found.append(end_of(w, [x, pooled]))
    return np.array(found)


@pytest.fixture(scope="module")
def trainer():
    return learned("din", LENGTH, attention=(8, 4))


def test_trained_scores_equal_numpy_reference(trainer):
    check_reference(trainer, LENGTH, lambda rows: reference(rows, 2))


def test_served_scores_equal_trained_ones_divided_and_whole(trainer, tmp_path):
    check_served(trainer, tmp_path / "r", (0, 1, 6, 7, 9), floats=True)


def test_longer_histories_keep_their_newest_events(trainer):
    columns = make_batch(8, (20,), seed=5, floats=True).columns
    newest = {n: c for n, c in columns.items() if not n.startswith("history.")}
    for name in ("history.item", "history.action", "history.watched"):
        lists = columns[name].values.reshape(8, 20)[:, -LENGTH:]
        newest[name] = type(columns[name]).of(lists.tolist())
    np.testing.assert_array_equal(trainer.score(columns), trainer.score(newest))


@pytest.mark.parametrize(
    ("side", "shared", "remedy"),
    [
        ("context", "item", r'set side = "item" in \[features.item\], which has side \'context\''),
        ("item", "other", "name its table in sequences.history.tables"),
    ],
)
def test_history_without_a_candidate_says_what_makes_one(side, shared, remedy):
    span = SequenceSpan("history", 9 * 4, 4, (ColumnSpan("history.item", 0, 9 * 4, 4, "user", shared),))
    layout = DenseInput(8, (ColumnSpan("item", 0, 8, 0, side, "item"),), (), (span,))
    with pytest.raises(BadInput, match=remedy):
        build(layout)
