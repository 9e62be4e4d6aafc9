"""Figures of streams, guards, joins and several processes."""

import json

from loadtest.reports import figure_sources
from loadtest.reports.learning_figures import follow, guard, join, learning_runs, processes


def test_a_stream_that_gains_nothing_misses_its_aim():
    senders = {"redis": {"auc": {"fresh": 0.75, "daily": 0.7}}, "folder": {"auc": {"fresh": 0.7, "daily": 0.7}}}
    found = follow({"senders": senders})
    assert (found["redis"].text, found["redis"].aim) == ("0.7500 / 0.7000", "more")
    assert found["folder"].aim == "more: **missed**"


def test_good_deltas_that_were_held_and_faults_that_were_not_are_misses():
    stream = {"deltas": 40, "held": [7], "faults": {"zeroed": {"spread": 2}, "swapped": {"bias": 1}}}
    sides = {"delta_ms": {"on": [3.0], "off": [2.0]}, "delta_cpu_ms": {"on": [2.0], "off": [2.0]}}
    costs = {**sides, "request_cpu_us": {"looked at": [1.0], "not": [1.0]}}
    for values in costs.values():
        for side in values.values():
            side *= 2
    found = guard({"streams": {"one": stream}, "costs": costs})
    assert (found["good"].text, found["good"].aim) == ("1 of 40", "none: **missed**")
    assert (found["zeroed"].text, found["zeroed"].aim) == ("2 of 2", "all")
    assert found["swapped"].aim == "all: **missed**"
    assert found["delta_ms"].text == "1.50"


def test_what_late_labels_lose_is_the_mean_of_seeds_with_the_worst():
    seeds = [{"pace": 2.0, "auc": 0.75, "shapes": {"late": {"corrected": {"auc": auc}}}} for auc in (0.749, 0.745)]
    (found,) = join({"seeds": seeds}).values()
    assert (found.text, found.interval, found.aim) == (
        "-0.0030", "-0.0050 to -0.0010", "at least -0.002: **missed**",
    )  # fmt: skip


def test_only_sparse_work_has_the_aim_of_two_processes():
    turns = {"one": [{"step_s": 3.0}] * 3, "two": [{"step_s": 2.0}] * 3}
    shapes = [{"shape": name, "turns": turns} for name in ("histories", "deepfm")]
    found = processes({"shapes": shapes})
    assert found["histories"].text == "1.50"
    assert found["histories"].aim.endswith("**missed**")
    assert found["deepfm"].aim == ""


def test_a_report_that_is_there_is_a_run_of_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    assert learning_runs() == {}
    document = {
        "machine": {"cores": 2, "cpu": "x"},
        "origin": {"command": "make bench-follow", "date": "2026-11-23"},
        "senders": {"folder": {"auc": {"fresh": 0.7, "daily": 0.6}}},
    }
    (tmp_path / "follow.json").write_text(json.dumps(document))
    (run,) = learning_runs().values()
    assert run.made.startswith("`make bench-follow`, 2026-11-23")
    assert list(run.figures) == ["folder"]
