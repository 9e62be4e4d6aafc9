"""Figures of repositories in object stores."""

import json

from loadtest.reports import figure_sources
from loadtest.reports.report import machine, origin
from loadtest.reports.store_figures import objects, outage, store_runs


def test_fleet_slower_than_a_second_misses_its_goal():
    races = {"two replicas": {"p50_ms": 200.4, "p99_ms": 300.0}, "16 replicas": {"p50_ms": 900.0, "p99_ms": 1000.0}}
    found = objects({"races": races})
    assert (found["two replicas"].text, found["two replicas"].aim) == ("200 / 300 ms", "p99 below 1 s")
    assert found["16 replicas"].aim == "p99 below 1 s: **missed**"


def test_failed_or_late_request_misses_the_goal():
    found = outage({"rounds": {"refuses": {"answered": 9_999, "failed": 1, "fresh_s": 2.5}}})
    assert (found["failed, refuses"].text, found["failed, refuses"].aim) == ("1 of 10,000", "none: **missed**")
    assert (found["fresh, refuses"].text, found["fresh, refuses"].aim) == ("2.50 s", "within 2 s: **missed**")


def test_missing_reports_are_omitted(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    about = {"machine": machine(), "origin": origin("-C loadtest objects", "ARGS", [])}
    races = {"two replicas": {"p50_ms": 200.0, "p99_ms": 300.0}}
    (tmp_path / "objects.json").write_text(json.dumps({**about, "races": races}))
    (run,) = store_runs().values()
    assert run.find("two").text == "200 / 300 ms"
    assert "make -C loadtest objects" in run.made
