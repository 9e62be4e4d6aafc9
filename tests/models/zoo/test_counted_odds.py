"""Counts are read as log-odds beside how much they know, by networks that see neither number of rows nor of ones."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.counted_odds import LOGS_SCALE, PRIOR, PRIOR_ROWS, with_counted_odds
from freshet_serving.models.zoo.dense_input import DenseInput
from tests.models.zoo.layouts import make_layout
from tests.models.zoo.sequence_models import manifest

pytestmark = pytest.mark.tensorflow


def with_two_counts(layout):
    """The layout with two features of counts behind it."""
    spans = make_layout(*[2] * (layout.width + 2)).embeddings
    counted = [span for span in spans if span.offset >= layout.width][:2]
    whole = DenseInput(layout.width + 4, (*layout.embeddings, *counted), layout.floats, layout.sequences)
    return whole, [span.name for span in counted]


def history_layout():
    drafted = manifest("din", 3)
    return DenseInput.from_features(drafted.features, drafted.sequences)


@pytest.mark.parametrize(("arch", "make"), [("deepfm", lambda: make_layout(4, 0, 4, 0)), ("din", history_layout)])
def test_network_reads_odds_and_rows(arch, make):
    layout, counts = with_two_counts(make())
    networks = []

    def build(own):
        networks.append(build_arch(arch, own, {"hidden": (4,)}, seed=3))
        return networks[0]

    whole = with_counted_odds(layout, counts, build)
    given = list(layout.examples(4).values())
    x, *histories = given
    x[:, -4:] = [[0, 0, 10, 9], [5, 0, 1, 1], [100, 30, 0, 0], [2, 1, 1000, 999]]
    seen, positive = x[:, [-4, -2]], x[:, [-3, -1]]
    share = (positive + PRIOR_ROWS * PRIOR) / (seen + PRIOR_ROWS)
    odds = np.log(share / (1 - share)) - np.log(PRIOR / (1 - PRIOR))
    read = np.concatenate([x[:, :-4], odds, LOGS_SCALE * np.log1p(seen)], 1).astype(np.float32)
    expected = networks[0].logits([read, *histories] if histories else read).numpy()
    logits = whole.logits(given if histories else x).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert np.isfinite(whole.logits([-abs(v) for v in given] if histories else -abs(x)).numpy()).all()


@pytest.mark.parametrize("both", [False, True])
def test_odds_of_equal_events_have_a_gate_that_begins_closed(both):
    layout, counts = with_two_counts(make_layout(4, 0))
    equals = counts if both else counts[1:]
    whole = with_counted_odds(
        layout, counts, lambda own: build_arch("deepfm", own, {"hidden": (4,)}, seed=3), equals=equals
    )
    x = layout.examples(2)["x"]
    x[:, -2:] = [[0, 0], [1000, 999]]
    y = x.copy()
    y[:, -2:] = [[50, 10], [1, 0]]
    np.testing.assert_allclose(whole.logits(x), whole.logits(y), atol=1e-6)
    gates = whole.logits.get_layer("equal_gates").kernel
    gates.assign(np.ones(gates.shape, np.float32))
    assert np.abs(whole.logits(x).numpy() - whole.logits(y).numpy()).min() > 1e-4


def test_id_that_was_never_seen_changes_nothing():
    layout, counts = with_two_counts(make_layout(4))
    whole = with_counted_odds(layout, counts, lambda own: build_arch("deepfm", own, {"hidden": ()}, seed=3))
    x = layout.examples(2)["x"]
    x[:, -4:] = 0
    read = whole.logits.get_layer(index=-1)(np.concatenate([x[:, :-4], np.zeros((2, 4), np.float32)], 1))
    np.testing.assert_allclose(whole.logits(x), read, atol=1e-5)


def test_network_without_counts_is_left_alone():
    layout = make_layout(4)
    assert with_counted_odds(layout, (), lambda own: own) is layout
