"""HSTU of the next item: trained, served and a plain numpy reference score alike, whatever the history's length."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from tests.models.zoo.next_item_models import LAYERS, LENGTH, check_scores, learned, make_trainer
from tests.models.zoo.sequence_models import DIM, dense, norm, silu
from tests.models.zoo.test_hstu import biases

pytestmark = pytest.mark.tensorflow


def layers(x, w, times, length):
    for i in range(LAYERS):
        places, seconds = w[f"history_bias_{i}/places"], w[f"history_bias_{i}/times"]
        every = silu(dense(norm(x, w, f"history_norm_{i}"), w, f"history_all_{i}"))
        u, v, q, k = (every[:, n * DIM : (n + 1) * DIM] for n in range(4))
        attended = silu(q @ k.T + biases(places, seconds, times)) * np.tri(len(x)) / length @ v
        x = x + dense(u * norm(attended, w, f"history_inner_{i}"), w, f"history_out_{i}")
    return x


POPULARITY = {"successors": 0}
"""Without what follows what, which test_sasrec_next.py has."""


def test_trained_and_served_scores_equal_numpy_reference(tmp_path):
    first = make_trainer("hstu_next", LENGTH, counting=POPULARITY).dense.weights()
    trainer = learned("hstu_next", LENGTH, counting=POPULARITY)
    check_scores(trainer, "hstu_next", tmp_path / "r", LENGTH, (0, 1, 2, LENGTH - 1, LENGTH, LENGTH + 4), 20, layers)
    then = trainer.dense.weights()
    # Its layers begin as the identity.
    for i in range(LAYERS):
        assert not first[f"history_out_{i}/kernel"].any()
        assert first[f"history_all_{i}/kernel"].all()
        assert then[f"history_out_{i}/kernel"].all()


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = learned("hstu_next", length, 2)
    check_scores(trainer, "hstu_next", tmp_path / "r", length, (0, 1, 7, 50, length - 1, length), 12, layers)
