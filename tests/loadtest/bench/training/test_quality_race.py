"""The quality race with runs that are made up: what is tried, kept and shown."""

import io

import pytest
from rich.console import Console

from loadtest.bench.training.quality_race import (
    FEW,
    MANY,
    RATES,
    REGULARIZERS,
    SEEDS,
    Runs,
    fixed,
    other_batch,
    page,
    rates,
    regularized,
)

MIDDLE = RATES[1]


@pytest.fixture
def console():
    return Console(file=io.StringIO())


def made_up(ran):
    """A run that likes the middle one of the rates best, and small batches less."""

    def side(way, seed, epochs):
        ran.append((way["batch"], way["rate"], way.get("regularizer", 0), seed, epochs))
        liked = 0.8 - abs(way["rate"] - MIDDLE) - (way["batch"] == FEW) - way.get("regularizer", 0)
        return {"auc": [0.75 + seed / 1000], "epochs": 2, "choosing": liked}

    return side


def test_first_seed_tries_settings_and_others_use_the_best(tmp_path, console):
    ran = []
    best = Runs(tmp_path, 100, console).of("deepfm", "Keras", (rates, other_batch), made_up(ran))
    tried = [(MANY, rate, 0, 0, 3) for rate in RATES] + [(FEW, MIDDLE / 2, 0, 0, 3)]
    assert ran == tried + [(MANY, MIDDLE, 0, seed, 2) for seed in SEEDS[1:]]
    assert best == {"batch": MANY, "rate": MIDDLE}


def test_fixed_setting_is_tried_with_other_batch_and_regularizer(tmp_path, console):
    ran, steps = [], (fixed({"batch": FEW, "rate": MIDDLE / 2}), other_batch, regularized)
    Runs(tmp_path, 100, console).of("dcn", "FuxiCTR", steps, made_up(ran))
    assert ran[:3] == [(FEW, MIDDLE / 2, 0, 0, 3), (MANY, MIDDLE, 0, 0, 3), (MANY, MIDDLE, REGULARIZERS[0], 0, 3)]


def test_finished_run_is_repeated_only_for_different_rows(tmp_path, console):
    first, again, other = [], [], []
    Runs(tmp_path, 100, console).of("dcn", "Keras", (rates, other_batch), made_up(first))
    Runs(tmp_path, 100, console).of("dcn", "Keras", (rates, other_batch), made_up(again))
    Runs(tmp_path, 200, console).of("dcn", "Keras", (rates, other_batch), made_up(other))
    assert (again, other) == ([], first)


def test_page_has_a_line_per_peer_with_all_seeds(tmp_path, console):
    runs = Runs(tmp_path, 100, console)
    runs.of("dcn", "Freshet", (fixed({}),), lambda *_: {"auc": [0.76], "epochs": 1, "choosing": 0.7})
    runs.of("dcn", "Keras", (rates, other_batch), made_up([]))
    runs.results["archs"]["dcn"]["FuxiCTR"] = {"batch 512": {"0": {"auc": [0.9], "epochs": 1, "choosing": 0.7}}}
    text = page(runs.results)
    line = "| `dcn` | rated4 | 0.7600 | Keras | 0.7510 | **+0.0090** (+0.0100, +0.0090, +0.0080) | 1, 1, 1 / 2, 2, 2 |"
    assert f"{line} batch 2048, rate 0.002 |" in text
    assert "FuxiCTR |" not in text
