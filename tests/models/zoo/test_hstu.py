"""HSTU: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from tests.models.zoo.sequence_models import (
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
)

pytestmark = pytest.mark.tensorflow

LENGTH, UNITS, LAYERS = 7, 8, 2


def biases(places, seconds, times):
    """What is added to the logit of event a for an earlier event b, [events, events]: by distance and by time."""
    apart = np.subtract.outer(np.arange(len(times)), np.arange(len(times)))
    between = np.abs(np.subtract.outer(np.asarray(times, np.float64), np.asarray(times, np.float64)))
    buckets = np.minimum(127, (np.log(np.maximum(1.0, between)) / 0.301).astype(int))
    return places[np.maximum(apart, 0)] + seconds[buckets]


def reference(rows, length=LENGTH):
    """HSTU one row at a time: the candidate is the event after the newest one, at its time."""
    w, found = rows.weights, []
    for row, t, events, times in zip(rows.x, rows.target, rows.events, rows.times):
        x = np.concatenate([dense(events, w, "history_event"), dense(t, w, "history_target")[None]])
        times = [*times, times[-1] if len(times) else 0.0]
        for i in range(LAYERS):
            places, seconds = w[f"history_bias_{i}/places"], w[f"history_bias_{i}/times"]
            every = silu(dense(norm(x, w, f"history_norm_{i}"), w, f"history_all_{i}"))
            u, v, q, k = (every[:, n * UNITS : (n + 1) * UNITS] for n in range(4))
            attended = silu(q @ k.T + biases(places, seconds, times)) * np.tri(len(x)) / (length + 1) @ v
            x = dense(u * norm(attended, w, f"history_inner_{i}"), w, f"history_out_{i}") + x
        found.append(end_of(w, [row, x[-1]]))
    return np.array(found)


@pytest.fixture(scope="module")
def trainer():
    return learned("hstu", LENGTH, timed=True, units=UNITS, layers=LAYERS)


def test_trained_scores_equal_numpy_reference(trainer):
    check_reference(trainer, LENGTH, reference, timed=True)


def test_served_scores_equal_trained_ones_divided_and_whole(trainer, tmp_path):
    check_served(trainer, tmp_path / "r", (0, 1, LENGTH - 1, LENGTH, LENGTH + 9), timed=True, floats=True)


def test_attention_adds_nothing_before_the_first_step():
    described = manifest("hstu", LENGTH, timed=True)
    layout = DenseInput.from_features(described.features, described.sequences)
    given = layout.examples(16)
    logits = build_arch("hstu", layout, {"units": UNITS, "layers": LAYERS}).logits
    np.testing.assert_array_equal(
        logits([given["x"], given["history"]]), logits([given["x"], given["history"][::-1].copy()])
    )


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = make_trainer("hstu", length, timed=True, units=UNITS, layers=LAYERS)
    trainer.learn(make_batch(64, (length, 50, 7, 1, 0), timed=True))
    columns = make_batch(6, (0, 1, 7, 50), seed=999, timed=True).columns
    np.testing.assert_allclose(trainer.score(columns), reference(Rows(trainer, columns), length), atol=1e-5)
    check_served(trainer, tmp_path / "r", (0, 1, 7, 50, length - 1, length), 12, timed=True)
