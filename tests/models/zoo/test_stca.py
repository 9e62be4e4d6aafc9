"""STCA: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from tests.models.zoo.sequence_models import (
    ACTION_DIM,
    DIM,
    Rows,
    check_reference,
    check_served,
    dense,
    end_of,
    learned,
    make_batch,
    make_trainer,
    manifest,
    norm,
    silu,
    softmax,
)

pytestmark = pytest.mark.tensorflow

LENGTH, UNITS, LAYERS = 7, 8, 2


def reference(rows):
    """STCA one row at a time, as its module's head writes it."""
    w, found = rows.weights, []
    for x, t, own in zip(rows.x, rows.target, rows.events):
        read, events = [], own
        for i in range(LAYERS):
            gate, up = (dense(events, w, f"history_{part}_{i}") for part in ("gate", "up"))
            events = norm(dense(silu(gate) * up, w, f"history_down_{i}"), w, f"history_norm_{i}")
            keys, values = dense(events, w, f"history_key_{i}"), dense(own, w, f"history_value_{i}")
            query = dense(np.concatenate([*read, t]), w, f"history_query_{i}")
            read.append(softmax(keys @ query / np.sqrt(UNITS)) @ values if len(events) else np.zeros(UNITS))
        found.append(end_of(w, [x, *read]))
    return np.array(found)


@pytest.fixture(scope="module")
def trainer():
    return learned("stca", LENGTH, units=UNITS, layers=LAYERS)


def test_trained_scores_equal_numpy_reference(trainer):
    check_reference(trainer, LENGTH, reference)


def test_served_scores_equal_trained_ones_divided_and_whole(trainer, tmp_path):
    check_served(trainer, tmp_path / "r", (0, 1, LENGTH - 1, LENGTH, LENGTH + 9), floats=True)


def test_events_of_short_rows_weigh_less():
    """What is normalised has one length, whatever has been learned of an item."""
    described = manifest("stca", LENGTH)
    layout = DenseInput.from_features(described.features, described.sequences)
    logits, given = build_arch("stca", layout, {}).logits, layout.examples(16)
    rows = (DIM + ACTION_DIM) * LENGTH

    def effect(scale):
        history = given["history"].copy()
        parts = [slice(0, DIM * LENGTH), slice((DIM + 1) * LENGTH, rows + LENGTH)]
        for part in parts:
            history[:, part] *= scale
        none = np.zeros_like(history)
        return np.abs(logits([given["x"], history]) - logits([given["x"], none])).mean()

    assert effect(0.1) < 0.3 * effect(1.0)


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = make_trainer("stca", length, units=UNITS, layers=LAYERS)
    trainer.learn(make_batch(64, (length, 50, 7, 1, 0)))
    columns = make_batch(12, (0, 1, 7, 50, length - 1, length), seed=999).columns
    np.testing.assert_allclose(trainer.score(columns), reference(Rows(trainer, columns)), atol=1e-5)
    check_served(trainer, tmp_path / "r", (0, 1, 7, 50, length - 1, length), 12)
