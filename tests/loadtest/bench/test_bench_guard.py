"""The page of the guard's trial."""

import json

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.processor.generation import OFF, ON
from loadtest.bench import bench_guard
from loadtest.bench.bench_guard import page

pytestmark = pytest.mark.tensorflow


def outcome(outcome, **more):
    return {
        "outcome": outcome, "reason": "why", "seconds": 0, "deltas": 0, "moved": 0.0, "correlation": 1.0,
    } | more  # fmt: skip


def test_page_shows_streams_poisons_and_costs_with_the_earlier_guard():
    good = {"deltas": 2000, "held": [[7, "odd"], [90, "odd"]], "waited": [2, None], "taken_back": []}
    now = {
        "good": good,
        "trainer_held": ["held, later deltas are not served: AUC"],
        "poisons": {
            "zeroed": outcome("held"),
            "drift": outcome("held", deltas=8, moved=0.5),
            "new": outcome("rolled back", seconds=2, moved=3.0, correlation=0.1),
            "old": outcome("served", moved=0.1),
        },
    }
    cost = {
        "delta_ms": {ON: [12.0, 14.0], OFF: [10.0, 10.0]},
        "delta_cpu_ms": {ON: [8.0, 8.0], OFF: [4.0, 4.0]},
        "request_cpu_us": {"looked at": [20.0], "not": [19.0]},
        "preview_ms": 2.0,
    }
    before = {"s": {"good": good | {"held": [], "waited": []}, "poisons": {"zeroed": outcome("served")}}}
    origin = {"date": "2026-01-01", "command": "make -C loadtest guard"}
    text = page(
        {
            "machine": {"cores": 2, "cpu": "x"},
            "origin": origin,
            "streams": {"s": now},
            "costs": cost,
            "before": before,
        }
    )
    assert "| s | 2,000 | 0 held | 2 held (released after 2; 1 by hand) | 1 |" in text
    assert "- s: at delta 7: odd" in text
    assert "| s | zeroed | served | held |  | why |" in text
    assert "| s | drift |  | held after 8 deltas | +50%, 1.00 | why |" in text
    assert "| s | new |  | rolled back in 2 s | +300%, 0.10 | why |" in text
    assert "Neither held nor rolled back: 1 of 4." in text
    assert "| its processor time, ms | 8.00 | 4.00 | 2.00 (2.00 to 2.00) |" in text


def test_measuring_costs_alone_keeps_the_stream_results(tmp_path, monkeypatch):
    last = {"machine": {"cores": 4, "cpu": "x"}, "origin": {"date": "2026-01-01", "command": "make -C loadtest guard"}}
    last |= {"streams": {}, "before": {}}
    (tmp_path / "guard.json").write_text(json.dumps(last))
    measured = {"delta_ms": {ON: [2.0], OFF: [1.0]}, "delta_cpu_ms": {ON: [2.0], OFF: [1.0]}}
    measured["request_cpu_us"] = {"looked at": [3.0], "not": [2.0]}
    monkeypatch.setattr(bench_guard, "costs", lambda *_: measured)
    monkeypatch.setattr(bench_guard, "train_stream", None)
    monkeypatch.setattr("sys.argv", ["bench-guard", "--costs", "--out", str(tmp_path)])

    bench_guard.main()

    document = json.loads((tmp_path / "guard.json").read_text())
    assert {key: document[key] for key in last} == last
    text = (tmp_path / "guard.md").read_text()
    assert "4 cores (x), 2026-01-01, `make -C loadtest guard`." in text
    assert '`make -C loadtest guard ARGS="--costs"`.' in text
