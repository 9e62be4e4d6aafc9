"""Linear weights are added to the logit of a network that does not see them, over features and over histories."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.wide_weights import with_wide_weights
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.layouts import make_layout
from tests.models.zoo.sequence_models import manifest

pytestmark = pytest.mark.tensorflow


def with_two_weights(layout):
    """The layout with two features of width 1 behind it."""
    wide = make_layout(*[1] * (layout.width + 2)).embeddings[-2:]
    return DenseInput(layout.width + 2, (*layout.embeddings, *wide), layout.floats, layout.sequences), [
        span.name for span in wide
    ]


def history_layout():
    drafted = manifest("din", 3)
    return DenseInput.from_features(drafted.features, drafted.sequences)


@pytest.mark.parametrize(("arch", "make"), [("deepfm", lambda: make_layout(4, 0, 4)), ("din", history_layout)])
def test_logit_is_that_of_the_network_plus_the_weights(arch, make):
    layout, wide = with_two_weights(make())
    networks = []

    def build(own):
        networks.append(build_arch(arch, own, {"hidden": (4,)}, seed=3))
        return networks[0]

    whole = with_wide_weights(layout, wide, build)
    given = list(layout.examples(6).values())
    x, *histories = given
    base = networks[0].logits([x[:, :-2], *histories] if histories else x[:, :-2]).numpy()
    logits = whole.logits(given if histories else x).numpy()
    np.testing.assert_allclose(logits, base + x[:, -2:].sum(axis=1, keepdims=True), atol=1e-5)
    scores = whole.scores(given if histories else x)["score"].numpy()
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_network_without_weights_is_left_alone():
    layout = make_layout(4)
    assert with_wide_weights(layout, (), lambda own: own) is layout


def test_networks_of_other_outputs_and_without_features_are_refused():
    layout, wide = with_two_weights(make_layout(4, 4))
    several = partial(build_arch, "mmoe", options={"hidden": (4,)}, labels=("a", "b"))
    with pytest.raises(BadInput, match="wide = true is only for a network with one output"):
        with_wide_weights(layout, wide, lambda own: several(layout=own))
    alone = make_layout(1)
    with pytest.raises(BadInput, match="got only features of wide = true"):
        with_wide_weights(alone, ["f0"], several)
