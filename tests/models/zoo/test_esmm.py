import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.zoo.esmm import build
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.layouts import LAYOUTS, make_layout

pytestmark = pytest.mark.tensorflow


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def test_conversion_probability_is_click_times_conversion_given_click():
    layout = LAYOUTS["mixed order"]
    arch = build(layout, (6, 5), seed=3)
    w = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)
    rates = {}
    for name in ("ctr", "cvr"):
        h = x
        for i in range(2):
            h = np.maximum(h @ w[f"{name}_{i}/kernel"] + w[f"{name}_{i}/bias"], 0)
        rates[name] = sigmoid(h @ w[f"{name}_out/kernel"] + w[f"{name}_out/bias"])
    scores = {name: value.numpy() for name, value in arch.scores(x).items()}

    np.testing.assert_allclose(scores["ctr"], rates["ctr"], atol=1e-6)
    np.testing.assert_allclose(scores["cvr"], rates["cvr"], atol=1e-6)
    np.testing.assert_allclose(scores["ctcvr"], rates["ctr"] * rates["cvr"], atol=1e-6)
    np.testing.assert_allclose(sigmoid(arch.logits(x).numpy()), np.hstack([scores["ctr"], scores["ctcvr"]]), atol=1e-6)
    assert arch.outputs == ("ctr", "ctcvr")


@pytest.mark.parametrize(("ctr", "cvr"), [(0, 0), (-60, -60), (60, 60), (-80, 80), (80, -80), (12, 30)])
def test_loss_and_gradient_are_exact_for_saturated_probabilities(ctr, cvr):
    arch = build(make_layout(0), ())
    for name, logit in (("ctr_out", ctr), ("cvr_out", cvr)):
        arch.logits.get_layer(name).kernel.assign([[0.0]])
        arch.logits.get_layer(name).bias.assign([float(logit)])
    biases = [arch.logits.get_layer(name).bias.value for name in ("ctr_out", "cvr_out")]
    with tf.GradientTape() as tape:
        logit = arch.logits(np.zeros((1, 1), np.float32))[0, 1]
        losses = tf.nn.sigmoid_cross_entropy_with_logits([0.0, 1.0], tf.stack([logit, logit]))
        tape.watch(biases)
    # log p and log(1 - p) of p = sigmoid(ctr) * sigmoid(cvr), in double precision without cancellation.
    a, b = np.logaddexp(0, -float(ctr)), np.logaddexp(0, -float(cvr))
    miss = np.logaddexp(np.logaddexp(-ctr, -cvr), -ctr - cvr)
    np.testing.assert_allclose(losses.numpy(), [a + b - miss, a + b], rtol=1e-5, atol=1e-6)
    assert np.isfinite(losses.numpy()).all()


def test_model_starts_at_the_observed_click_and_conversion_rates():
    arch = build(make_layout(4, 0), (6,))
    x = np.zeros((1, 5), np.float32)
    arch.set_initial_bias([np.log(0.2 / 0.8), np.log(0.01 / 0.99)])
    scores = {name: float(value[0, 0]) for name, value in arch.scores(x).items()}
    assert scores == {"ctr": pytest.approx(0.2), "cvr": pytest.approx(0.05), "ctcvr": pytest.approx(0.01)}
    arch.set_initial_bias([-3.0, -3.0])
    assert 0.999 < float(arch.scores(x)["cvr"][0, 0]) < 1
    with pytest.raises(BadInput, match=r"data\.label: esmm requires 'conversion' to be 1 only where 'click' is 1"):
        arch.set_initial_bias([-3.0, -2.9])


def test_two_labels_are_required():
    with pytest.raises(BadInput, match=r"data\.label: expected two columns for esmm, clicked and converted, got 3"):
        build(make_layout(4), labels=("a", "b", "c"))
