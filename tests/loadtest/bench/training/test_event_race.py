"""The race on logs of events: its page tells who is ahead, and the default file learns what a history says."""

import pytest

from loadtest.bench.event_logs import LAST_TWO
from loadtest.bench.training.event_race import DEFAULT, FLAT, TRUTH, drawn, page, trained


def run(default, best):
    return {
        DEFAULT: {"auc": default, "mb": 2.0},
        FLAT: {"auc": 0.6, "mb": 1.0},
        "last item": {"auc": 0.61},
        "LightGBM": {"auc": best},
        TRUTH: {"auc": 0.8},
        "torch_side.py": {},
    }


def test_page_has_means_and_the_gap_to_the_best_rival():
    text = page({"shop": {"1": run(0.7, 0.69), "2": run(0.72, 0.75)}, "hours": {"1": run(0.65, 0.64)}})
    assert "| shop | 2 | 0.7100 | 0.6000 | 0.6100 | 0.7200 | 0.8000 | +0.0100 | 2.0 (1.0) |" in text
    assert "at most 0.003 behind the best rival on 1 of 2 logs" in text
    assert text.endswith("is not met with 1 of 5 seeds on some logs.")


def test_aim_is_met_with_one_log_a_little_behind():
    seeds = [str(seed) for seed in range(5)]
    logs = {"shop": dict.fromkeys(seeds, run(0.7, 0.705)), "hours": dict.fromkeys(seeds, run(0.65, 0.652))}
    assert page(logs).endswith("is met.")


@pytest.mark.long
@pytest.mark.tensorflow
def test_file_without_a_network_learns_from_histories(tmp_path):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    log, names = drawn(LAST_TWO.name, 1)
    (tmp_path / "flat").mkdir()
    (tmp_path / "default").mkdir()
    flat, default = (trained(tmp_path / side, log, names, side == "default", 1) for side in ("flat", "default"))
    assert default["auc"] > flat["auc"] + 0.02
