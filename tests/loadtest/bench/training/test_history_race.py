"""The race over histories: the peers' ways to run, and the page of ratios."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.history_race import page, ways


def test_peer_tries_one_thread_and_all(monkeypatch):
    monkeypatch.setattr("loadtest.bench.training.history_race.available", lambda: range(4))
    found = ways("PyTorch", "torch_side.py", "rows.npz", 512)
    assert [way.command[:2] for way in found] == [["env", "OMP_NUM_THREADS=1"], ["env", "OMP_NUM_THREADS=4"]]
    assert all(way.command[-2:] == ["rows.npz", "512"] for way in found)


@pytest.mark.parametrize(("peer_s", "row"), [(0.2, "**2.00** (2.00 to 2.00) | 1.0: yes |"), (0.05, "| 1.0: no |")])
def test_page_compares_the_median_of_ratios_with_the_aim(peer_s, row):
    turns = {"Freshet": [[0.1, 0.2]] * 3, "FuxiCTR": [[peer_s, peer_s]] * 3}
    settings = {"Freshet": "as it comes", "FuxiCTR": "2 thread(s)"}
    text = page(
        {
            "machine": {"cores": 2, "cpu": "a CPU"},
            "origin": {"date": "today", "command": "make -C loadtest train-histories"},
            "rows": 1000,
            "load": "3.0 processes waited for 2 cores when it began",
            "races": {"512": {"settings": settings, "turns": turns}},
        }
    )
    assert "| 512 | Freshet | as it comes | 100.00 | 5,120 | 200.00 | 1 |  |" in text
    assert row in text
