"""SASRec: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from tests.models.zoo.sequence_models import (
    Rows,
    check_reference,
    check_served,
    dense,
    end_of,
    learned,
    make_batch,
    make_trainer,
    norm,
    softmax,
)

pytestmark = pytest.mark.tensorflow

LENGTH, UNITS, LAYERS = 7, 8, 2


def reference(rows):
    """SASRec one row at a time, as its module's head writes it."""
    w, found = rows.weights, []
    for row, t, events in zip(rows.x, rows.target, rows.events):
        x = dense(events, w, "history_event") * np.sqrt(UNITS) + w["history_position/rows"][0, : len(events)]
        for i in range(LAYERS):
            q = norm(x, w, f"history_norm_{i}_0")
            query, keys, values = (
                dense(rows, w, f"history_{part}_{i}") for part, rows in (("query", q), ("key", x), ("value", x))
            )
            attended = [softmax(keys[: n + 1] @ query[n] / np.sqrt(UNITS)) @ values[: n + 1] for n in range(len(x))]
            attended = dense(np.reshape(attended, (-1, UNITS)), w, f"history_out_{i}")
            y = norm(q + attended, w, f"history_norm_{i}_1")
            x = y + dense(dense(y, w, f"history_first_{i}", "relu"), w, f"history_second_{i}")
        user = norm(x, w, "history_last")[-1] if len(x) else np.zeros(UNITS)
        item = dense(t, w, "history_target")
        found.append(end_of(w, [row, user, item, user * item]))
    return np.array(found)


@pytest.fixture(scope="module")
def trainer():
    return learned("sasrec", LENGTH, units=UNITS, layers=LAYERS)


def test_trained_scores_equal_numpy_reference(trainer):
    check_reference(trainer, LENGTH, reference)


def test_served_scores_equal_trained_ones_divided_and_whole(trainer, tmp_path):
    check_served(trainer, tmp_path / "r", (0, 1, LENGTH - 1, LENGTH, LENGTH + 9), floats=True)


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = make_trainer("sasrec", length, units=UNITS, layers=LAYERS)
    trainer.learn(make_batch(64, (length, 50, 7, 1, 0)))
    columns = make_batch(12, (0, 1, 7, 50, length - 1, length), seed=999).columns
    np.testing.assert_allclose(trainer.score(columns), reference(Rows(trainer, columns)), atol=1e-5)
    check_served(trainer, tmp_path / "r", (0, 1, 7, 50, length - 1, length), 12)
