import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.dcn import build
from tests.models.zoo.layouts import LAYOUTS, make_layout

pytestmark = pytest.mark.tensorflow


def by_hand(weights, x, structure, layers):
    """The logit by the paper's formulas."""
    crossed = x
    for i in range(layers):
        if f"cross_{i}_up/kernel" in weights:
            kernel, bias = (
                weights[f"cross_{i}_down/kernel"] @ weights[f"cross_{i}_up/kernel"],
                weights[f"cross_{i}_up/bias"],
            )
        else:
            kernel, bias = weights[f"cross_{i}/kernel"], weights[f"cross_{i}/bias"]
        crossed = x * (crossed @ kernel + bias) + crossed
    h = crossed if structure == "stacked" else x
    for i in range(2):
        h = np.maximum(h @ weights[f"mlp_{i}/kernel"] + weights[f"mlp_{i}/bias"], 0)
    top = h if structure == "stacked" else np.concatenate([crossed, h], axis=1)
    return top @ weights["out/kernel"] + weights["out/bias"]


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
@pytest.mark.parametrize("low_rank", [0, 3])
@pytest.mark.parametrize("layout", ["different dims", "one float"])
def test_logit_combines_the_cross_network_and_the_mlp(layout, low_rank, structure):
    layout = LAYOUTS[layout]
    arch = build(layout, (6, 5), cross_layers=2, low_rank=low_rank, structure=structure, seed=3)
    weights = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)
    wanted = by_hand(weights, x, structure, 2)

    np.testing.assert_allclose(arch.logits(x).numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(arch.scores(x)["score"].numpy(), 1 / (1 + np.exp(-wanted)), atol=1e-5)


def test_cross_network_stands_alone_without_hidden_layers():
    arch = build(make_layout(4, 0), (), cross_layers=1)
    assert {v.path for v in arch.logits.variables} == {"cross_0/kernel", "cross_0/bias", "out/kernel", "out/bias"}
