import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.building.auc import auc
from loadtest.bench.bench_small_tables import FORMER, HALF, NOW, SmallTable, bootstrap, page
from loadtest.bench.random_tables import RandomTable, draw_shape

pytestmark = pytest.mark.tensorflow


def test_good_deltas_of_a_small_table_move_the_mean_moderately():
    """Table 4: 2,279 rows, 4 % of ones; batches of 32 and a network at 0.001 moved it by 62 %."""
    small = SmallTable(RandomTable(draw_shape(4)))
    moved = {which: max(map(abs, small.run(which, 0).moves)) for which in (FORMER, NOW)}
    assert moved[FORMER] > HALF
    assert moved[NOW] < HALF / 2


def test_equal_scores_have_zero_difference():
    random = np.random.default_rng(0)
    label = (random.random(500) < 0.3).astype(np.float32)
    scores = random.random(500).astype(np.float32)
    assert bootstrap(label, [(scores, scores)], auc) == [0, 0, 0]


def test_page_counts_tables_that_moved_and_got_worse():
    def found(moved, low, high):
        run = {"settings": "batch 32, network 0.001", "moved": moved}
        run |= {f"{at}_{what}": 0.5 for at in ("full", "end") for what in ("auc", "log_loss")}
        one = {"name": "t", "ones": 9, FORMER: run | {"moved": 1.2}, NOW: run}
        keys = ("full_auc", "full_log_loss", "end_auc", "end_log_loss")
        return one | {key: [(low + high) / 2, low, high] for key in keys}

    origin = {"date": "2026-01-01", "command": "make -C loadtest small-tables"}
    text = page(
        {
            "machine": {"cores": 2, "cpu": "x"},
            "origin": origin,
            "tables": [found(0.2, -0.1, 0.1), found(0.6, 0.01, 0.02), found(0.3, -0.3, -0.1)],
        }
    )
    assert "by half or more: 3 before, 1 now" in text
    assert "full, auc: beyond the interval better on 1, worse on 1" in text
    assert "end, log-loss: beyond the interval better on 1, worse on 1" in text
    assert "| t | batch 32, network 0.001 | batch 32, network 0.001 | 120% -> 60% |" in text
