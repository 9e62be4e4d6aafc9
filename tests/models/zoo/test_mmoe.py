import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.mmoe import build
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.layouts import LAYOUTS, make_layout

pytestmark = pytest.mark.tensorflow


def test_each_label_has_its_own_mixture_of_shared_experts():
    layout = LAYOUTS["different dims"]
    arch = build(layout, (6, 5), experts=3, tower=(4,), labels=("like", "share.more"), seed=3)
    w = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)

    def layer(x, name):
        return np.maximum(x @ w[f"{name}/kernel"] + w[f"{name}/bias"], 0)

    experts = [layer(layer(x, f"expert_{e}_0"), f"expert_{e}_1") for e in range(3)]
    for k, label in enumerate(arch.outputs):
        gate = np.exp(x @ w[f"gate_{label}/kernel"] + w[f"gate_{label}/bias"])
        gate /= gate.sum(axis=1, keepdims=True)
        mixture = sum(gate[:, e : e + 1] * experts[e] for e in range(3))
        logit = layer(mixture, f"tower_{label}_0") @ w[f"tower_{label}_out/kernel"] + w[f"tower_{label}_out/bias"]
        np.testing.assert_allclose(arch.logits(x).numpy()[:, k : k + 1], logit, atol=1e-5)
        np.testing.assert_allclose(arch.scores(x)[label].numpy(), 1 / (1 + np.exp(-logit)), atol=1e-5)
    assert arch.outputs == ("like", "share.more")


def test_labels_start_at_their_own_log_odds():
    arch = build(make_layout(4, 0), (6,), experts=2, labels=("a", "b", "c"))
    x = np.random.default_rng(1).standard_normal((5, 5)).astype(np.float32)
    before = arch.logits(x).numpy()
    arch.set_initial_bias([-1.0, -4.0, 0.5])
    np.testing.assert_allclose(arch.logits(x).numpy() - before, np.tile([[-1.0, -4.0, 0.5]], (5, 1)), atol=1e-5)


def test_single_label_is_named_score_and_invalid_names_are_refused():
    assert build(make_layout(4), (6,), labels=("clicked",)).outputs == ("score",)
    with pytest.raises(BadInput, match=r"data\.label: expected a name of letters.*, got 'a b'"):
        build(make_layout(4), (6,), labels=("a b", "c"))
    with pytest.raises(BadInput, match=r"data\.label: expected a name of letters.* other than 'x', got 'x'"):
        build(make_layout(4), (6,), labels=("x", "c"))
