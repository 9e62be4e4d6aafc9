import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.training.losses import mean_shares, row_loss
from freshet_serving.processor.errors import BadInput

pytestmark = pytest.mark.tensorflow

FOCAL = """
import tensorflow as tf

def focal(label, logits):
    p = tf.sigmoid(logits)
    return tf.nn.sigmoid_cross_entropy_with_logits(label, logits) * tf.abs(label - p) ** 2.0

def mean(label, logits):
    return tf.reduce_mean(logits - label)

def one_minus(label, logits):
    return 1.0 / logits

def column(label, logits):
    return (label - logits)[:, None]

def broken(label, logits):
    raise KeyError("nothing")

def wide(label, logits):
    return tf.cast(label, tf.float64)
"""


@pytest.fixture
def losses(tmp_path, monkeypatch):
    (tmp_path / "their_losses.py").write_text(FOCAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "their_losses"
    sys.modules.pop("their_losses", None)


def test_log_loss_has_a_name():
    label, logits = tf.constant([0.0, 1.0]), tf.constant([0.5, 3.0])
    np.testing.assert_array_equal(
        row_loss(NetworkConfig(loss="log_loss"))(label, logits), row_loss(NetworkConfig())(label, logits)
    )


def test_log_loss_of_several_labels_is_their_weighted_sum():
    label = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    logits = np.array([[0.5, -2], [3, 0], [-1, 50]], np.float32)
    each = np.logaddexp(0, logits.astype(np.float64)) - label * logits
    two = NetworkConfig(labels=("a", "b"))
    np.testing.assert_allclose(row_loss(two)(label, logits), each.sum(1), rtol=1e-6)
    weighted = NetworkConfig(labels=("a", "b"), label_weights=(1.0, 0.25))
    np.testing.assert_allclose(row_loss(weighted)(label, logits), each @ [1, 0.25], rtol=1e-6)
    np.testing.assert_allclose(row_loss(NetworkConfig())(label[:, 0], logits[:, 0]), each[:, 0], rtol=1e-6)


WEIGHTS = st.just(0.0) | st.floats(2**-10, 8, width=32)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5, width=32), WEIGHTS), min_size=1, max_size=9), st.floats(0.25, 4, width=32))
def test_row_weights_act_as_counts_and_their_scale_cancels(rows, scale):
    losses, weights = (np.array(part, np.float32) for part in zip(*rows))
    wanted = float(losses @ weights.astype(np.float64) / weights.sum()) if weights.any() else 0.0
    for scaled in (weights, weights * np.float32(scale)):
        assert losses @ mean_shares(len(losses), scaled) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_missing_weights_count_equally_and_zero_weights_give_zero():
    np.testing.assert_array_equal(mean_shares(4, None), mean_shares(4, np.full(4, 3, np.float32)))
    np.testing.assert_array_equal(mean_shares(2, np.zeros(2, np.float32)), [0, 0])


def test_custom_loss_is_a_function_of_labels_and_logits(losses):
    loss = row_loss(NetworkConfig(loss=f"{losses}:focal"))
    np.testing.assert_allclose(loss(tf.constant([1.0]), tf.constant([0.0])), [np.log(2) / 4], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", r"expected one finite float32 per row \[n\] for label and logits \[n\], got float32 \[\] of 2 rows"),
        ("column", r"expected .*, got float32 \[2, 1\] of 2 rows"),
        ("one_minus", r"one finite float32 per row"),
        ("wide", r"expected one finite float32 per row \[n\] for .*, got float64 \[2\] of 2 rows"),
        ("broken", r"raised KeyError for label and logits \[n\]: 'nothing'"),
        ("missing", r"'their_losses:missing' is not a function of that module"),
    ],
)
def test_invalid_loss_is_refused_before_the_first_row(losses, name, message):
    with pytest.raises(BadInput, match=f"model.loss: .*{message}"):
        row_loss(NetworkConfig(loss=f"{losses}:{name}"))
