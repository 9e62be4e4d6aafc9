import itertools

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.deepfm import build
from tests.models.zoo.layouts import LAYOUTS

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
