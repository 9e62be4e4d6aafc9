"""SASRec of the next item: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.columns import Ragged
from tests.models.zoo.next_item_models import LAYERS, LENGTH, check_scores, learned, reference
from tests.models.zoo.sequence_models import DIM, dense, norm, softmax

pytestmark = pytest.mark.tensorflow


def layers(x, w, times, length):
    for i in range(LAYERS):
        q = norm(x, w, f"history_norm_{i}_0")
        query, keys, values = (
            dense(rows, w, f"history_{part}_{i}") for part, rows in (("query", q), ("key", x), ("value", x))
        )
        attended = [softmax(keys[: n + 1] @ query[n] / np.sqrt(DIM)) @ values[: n + 1] for n in range(len(x))]
        y = norm(q + dense(np.array(attended), w, f"history_out_{i}"), w, f"history_norm_{i}_1")
        x = y + dense(dense(y, w, f"history_first_{i}", "relu"), w, f"history_second_{i}")
    return x


@pytest.fixture(scope="module")
def trainer():
    """A trainer of a network that reads floats of events and counts; a test may go on with it."""
    return learned("sasrec_next", LENGTH, floats=True, counting={"successors": 4})


def test_trained_and_served_scores_equal_numpy_reference(trainer, tmp_path):
    lengths = (0, 1, LENGTH - 1, LENGTH, LENGTH + 4)
    check_scores(trainer, "sasrec_next", tmp_path / "r", LENGTH, lengths, 20, layers, floats=True)


def test_unknown_item_is_not_lifted_where_item_0_follows(trainer):
    alternating = {name: Ragged.of([[1, 0, 1, 0]] * 8) for name in ("history.item", "history.action")}
    alternating["history.watched"] = Ragged.of([[20.0] * 4] * 8)
    for _ in range(40):
        trainer.learn(Batch(alternating, np.full(8, 3, np.float32), None, 2_000))
    request = {name: Ragged.of([[1]] * 2) for name in ("history.item", "history.action")}
    request |= {"history.watched": Ragged.of([[20.0]] * 2), "item": np.array([0, 999])}
    lifted, unlifted = (reference(trainer, "sasrec_next", request, LENGTH, layers, s) for s in (True, False))
    assert lifted[0] > unlifted[0] + 0.1
    assert lifted[1] == unlifted[1]
    np.testing.assert_allclose(trainer.score(request), lifted, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = learned("sasrec_next", length, 2, counting={"successors": 4})
    check_scores(trainer, "sasrec_next", tmp_path / "r", length, (0, 1, 7, 50, length - 1, length), 16, layers)
