import itertools

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.deepfm import build
from tests.models.zoo.layouts import LAYOUTS, make_layout

pytestmark = pytest.mark.tensorflow


def by_hand(layout, weights, x, hidden):
    """The logit by its definition: every pair of embeddings on its own."""
    logit = x @ weights["linear/kernel"] + weights["linear/bias"]
    h = x
    for i in range(hidden):
        h = np.maximum(h @ weights[f"mlp_{i}/kernel"] + weights[f"mlp_{i}/bias"], 0)
    logit = logit + h @ weights["mlp_out/kernel"]
    vectors = []
    for span in layout.embeddings:
        v = x[:, span.offset : span.offset + span.width]
        vectors.append(v if span.width == layout.dim else v @ weights[f"project_{span.name}/kernel"])
    for a, b in itertools.combinations(vectors, 2):
        logit = logit + (a * b).sum(axis=1, keepdims=True)
    return logit


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_logit_is_linear_plus_pairs_plus_mlp(layout):
    arch = build(layout, (6, 5), seed=3)
    weights = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)
    wanted = by_hand(layout, weights, x, 2)

    np.testing.assert_allclose(arch.logits(x).numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(arch.scores(x)["score"].numpy(), 1 / (1 + np.exp(-wanted)), atol=1e-5)


def test_equal_seeds_give_equal_weights_and_others_different():
    one, same, other = (
        {v.path: v.numpy() for v in build(make_layout(4, 4, 0), (6,), seed=seed).logits.variables} for seed in (1, 1, 2)
    )

    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not any(np.array_equal(one[name], other[name]) for name in one if name.endswith("kernel"))
    assert not np.array_equal(one["mlp_0/kernel"][:6], one["mlp_out/kernel"])
