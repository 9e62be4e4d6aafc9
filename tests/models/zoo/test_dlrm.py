import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.dlrm import build
from tests.models.zoo.layouts import LAYOUTS

pytestmark = pytest.mark.tensorflow


def tower(x, weights, name, n):
    for i in range(n):
        x = np.maximum(x @ weights[f"{name}_{i}/kernel"] + weights[f"{name}_{i}/bias"], 0)
    return x


def by_hand(layout, weights, x):
    """The logit by its definition, pair by pair, for one bottom and two top layers."""
    vectors, beside = [], []
    if layout.floats:
        floats = np.concatenate([x[:, s.offset : s.offset + 1] for s in layout.floats], axis=1)
        beside = [tower(floats, weights, "bottom", 1)]
        if layout.embeddings:
            out = np.maximum(beside[0] @ weights["bottom_out/kernel"] + weights["bottom_out/bias"], 0)
            vectors, beside = [out], [out]
    for span in layout.embeddings:
        v = x[:, span.offset : span.offset + span.width]
        vectors.append(v if span.width == layout.dim else v @ weights[f"project_{span.name}/kernel"])
    if not layout.floats:
        beside = vectors
    pairs = [
        (vectors[i] * vectors[j]).sum(axis=1, keepdims=True)
        for i in range(len(vectors))
        for j in range(i + 1, len(vectors))
    ]
    top = tower(np.concatenate([*beside, *pairs], axis=1), weights, "top", 2)
    return top @ weights["top_out/kernel"] + weights["top_out/bias"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_logit_is_the_top_mlp_over_bottom_and_pairs(layout):
    arch = build(layout, (6, 5), seed=3, bottom=(7,))
    weights = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)
    wanted = by_hand(layout, weights, x)

    np.testing.assert_allclose(arch.logits(x).numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(arch.scores(x)["score"].numpy(), 1 / (1 + np.exp(-wanted)), atol=1e-5)
