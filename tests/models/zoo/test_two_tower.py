import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.two_tower import build
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.layouts import LAYOUTS

pytestmark = pytest.mark.tensorflow


def sided(layout, *items):
    """The layout with these features on the item's side, the first of the others the context's, and all else the
    user's."""
    sides = iter(["context"] + ["user"] * 20)

    def side(span):
        return dataclasses.replace(span, side="item" if span.name in items else next(sides))

    return DenseInput(layout.width, tuple(map(side, layout.embeddings)), tuple(map(side, layout.floats)))


LAYOUT = sided(LAYOUTS["mixed order"], "f0", "f3", "f4")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_score_is_the_scaled_inner_product_of_two_vectors(similarity):
    arch = build(LAYOUT, (6,), vector_dim=3, similarity=similarity, seed=3)
    w = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, LAYOUT.width), np.float32)
    vectors = {}
    for side in ("user", "item"):
        spans = [s for s in LAYOUT.spans if (s.side == "item") == (side == "item")]
        h = np.concatenate([x[:, s.offset : s.offset + s.width] for s in spans], axis=1)
        h = np.maximum(h @ w[f"{side}_0/kernel"] + w[f"{side}_0/bias"], 0)
        vectors[side] = h @ w[f"{side}_out/kernel"] + w[f"{side}_out/bias"]
        if similarity == "cosine":
            vectors[side] /= np.linalg.norm(vectors[side], axis=1, keepdims=True)
    nearness = (vectors["user"] * vectors["item"]).sum(axis=1, keepdims=True)
    scores = {name: value.numpy() for name, value in arch.scores(x).items()}

    assert w["score_out/kernel"] == [[10.0 if similarity == "cosine" else 1.0]]
    np.testing.assert_allclose(scores["user_vector"], vectors["user"], atol=1e-5)
    np.testing.assert_allclose(scores["item_vector"], vectors["item"], atol=1e-5)
    np.testing.assert_allclose(arch.logits(x).numpy(), nearness * w["score_out/kernel"], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "temperature", "scale"),
    [
        ({}, 1.0, 1.0),
        ({"similarity": "cosine"}, 0.0, 10.0),
        ({"similarity": "cosine", "temperature": 0.05}, 0.05, 20.0),
    ],
)
def test_temperature_is_learned_for_cosines_unless_it_is_given(options, temperature, scale):
    arch = build(LAYOUT, (6,), negatives=5, **options)
    assert (arch.towers.negatives, arch.towers.temperature) == (5, temperature)
    assert {v.path: v.numpy() for v in arch.logits.variables}["score_out/kernel"] == pytest.approx(scale)
    assert {v.path for v in arch.towers.vectors.variables} < {v.path for v in arch.logits.variables}


def test_item_vector_does_not_depend_on_the_user():
    arch = build(LAYOUT, (6,))
    x = np.random.default_rng(0).standard_normal((2, LAYOUT.width), np.float32)
    for span in LAYOUT.spans:
        if span.side == "item":
            x[1, span.offset : span.offset + span.width] = x[0, span.offset : span.offset + span.width]
    scores = {name: value.numpy() for name, value in arch.scores(x).items()}
    np.testing.assert_array_equal(scores["item_vector"][0], scores["item_vector"][1])
    assert np.abs(scores["user_vector"][0] - scores["user_vector"][1]).max() > 1e-3


def test_features_of_both_sides_are_required():
    for layout, side in ((LAYOUTS["no floats"], "item"), (sided(LAYOUTS["one embedding"], "f0"), "user")):
        with pytest.raises(BadInput, match=rf"features: expected one of side '{side}' for two_tower, got none"):
            build(layout)
