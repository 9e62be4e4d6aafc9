"""Figures of streams, guards, joins and several processes."""

import json

from loadtest.reports import figure_sources
from loadtest.reports.learning_figures import follow, guard, join, learning_runs, processes


def test_stream_without_gain_misses_its_goal():
    senders = {"redis": {"auc": {"fresh": 0.75, "daily": 0.7}}, "folder": {"auc": {"fresh": 0.7, "daily": 0.7}}}
    found = follow({"senders": senders})
    assert (found["redis"].text, found["redis"].aim) == ("0.7500 / 0.7000", "more")
    assert found["folder"].aim == "more: **missed**"


def test_held_good_deltas_and_missed_poisons_are_misses():
    def stream(held, waited, **poisons):
        good = {"deltas": 1000, "held": held, "waited": waited, "taken_back": []}
        return {"good": good, "poisons": {name: {"outcome": outcome} for name, outcome in poisons.items()}}

    sides = {"delta_ms": {"on": [3.0] * 2, "off": [2.0] * 2}, "delta_cpu_ms": {"on": [2.0] * 2, "off": [2.0] * 2}}
    costs = {**sides, "request_cpu_us": {"looked at": [1.0] * 2, "not": [1.0] * 2}}
    one = stream([[7, "odd"]], [2], zeroed="held", drift="rolled back", new="not tried")
    found = guard(
        {"streams": {"one": one, "other": stream([], [], zeroed="held", drift="served", new="held")}} | {"costs": costs}
    )
    assert (found["good"].text, found["good"].aim) == ("1 of 2,000", "at most 1 in 1,000")
    assert (found["late"].text, found["late"].aim) == ("0 of 1", "none")
    assert (found["zeroed"].text, found["zeroed"].aim) == ("2 of 2", "all")
    assert (found["drift"].text, found["drift"].aim) == ("1 of 2", "all: **missed**")
    assert found["new"].text == "1 of 1"
    assert found["delta_ms"].text == "1.50"
    many = guard({"streams": {"one": stream([[7, "odd"], [90, "odd"]], [None, 9])}, "costs": costs})
    assert many["good"].aim.endswith("**missed**")
    assert (many["late"].text, many["late"].aim) == ("2 of 2", "none: **missed**")


def test_late_label_loss_is_the_mean_over_seeds_with_range():
    seeds = [{"pace": 2.0, "auc": 0.75, "shapes": {"late": {"corrected": {"auc": auc}}}} for auc in (0.749, 0.745)]
    (found,) = join({"seeds": seeds}).values()
    assert (found.text, found.interval, found.aim) == (
        "-0.0030", "-0.0050 to -0.0010", "at least -0.002: **missed**",
    )  # fmt: skip


def test_two_process_goal_applies_only_to_sparse_work():
    turns = {"one": [{"step_s": 3.0}] * 3, "two": [{"step_s": 2.0}] * 3}
    shapes = [{"shape": name, "turns": turns} for name in ("histories", "deepfm")]
    found = processes({"shapes": shapes})
    assert found["histories"].text == "1.50"
    assert found["histories"].aim.endswith("**missed**")
    assert found["deepfm"].aim == ""


def test_existing_report_is_a_run_of_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    assert learning_runs() == {}
    document = {
        "machine": {"cores": 2, "cpu": "x"},
        "origin": {"command": "make -C loadtest follow", "date": "2026-11-23"},
        "senders": {"folder": {"auc": {"fresh": 0.7, "daily": 0.6}}},
    }
    (tmp_path / "follow.json").write_text(json.dumps(document))
    (run,) = learning_runs().values()
    assert run.made.startswith("`make -C loadtest follow`, 2026-11-23")
    assert list(run.figures) == ["folder"]
