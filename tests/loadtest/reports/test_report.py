import json
import re
import socket
from dataclasses import asdict

import numpy as np
import pytest

from loadtest.live.run import RunSettings, write_report
from loadtest.live.score_plan import CLEAR, TOLERANCE
from loadtest.load.measurements import Measurements
from loadtest.reports.report import freshness_lines, freshness_ms, latency_ms, machine, markdown, passed, summarize


def summary(fault="", mixed=False, lost=False):
    load, prober = Measurements(50.0), Measurements(50.0)
    for i in range(1000):
        load.request("kserve" if i % 4 else "tfs", 50.0 + i / 200, (i + 1) / 1e5)
    if fault:
        load.request("tfs", 55.0, 0.01, fault, mixed)
    for step in range(1, 5):
        load.request("delta", 50.0 + step, 0.02, load=False)
        load.published(f"1.{step}", "admin" if step < 3 else "folder", 50.0 + step, None)
        if not (lost and step == 4):
            prober.seen(f"1.{step}", 50.0 + step + step / 100)
    prober.request("probe", 51.0, 0.002, load=False)
    seen = prober.document()
    probes = {k: seen[k] for k in ("kinds", "faults", "first_seen_s")} | {"interval_ms": {"p50": 4.0, "p99": 9.0}}
    about = {**asdict(RunSettings()), "tolerance": TOLERANCE, "clear": CLEAR, "moved_share": 1.0}
    return summarize(load.document(), probes, 1.5, about, machine())


def test_the_summary_adds_the_protocols_up():
    s = summary()
    assert s["requests"] == 1000
    assert s["requests_per_s"] == pytest.approx(1000 / 4.995, rel=1e-2)
    assert s["counts"] == {"kserve": 750, "tfs": 250, "delta": 4, "probe": 1}
    assert s["latency_ms"]["all"]["p50"] == pytest.approx(5.0, rel=5e-3)
    assert s["latency_ms"]["all"]["p99.9"] == pytest.approx(9.99, rel=5e-3)
    assert s["checked"] == 1001
    assert passed(s)


def test_freshness_is_told_by_way_of_publishing():
    s = summary()
    assert s["freshness_ms"]["admin"] == {"deltas": 2, "p50": 10.0, "p99": 20.0, "max": 20.0}
    assert s["freshness_ms"]["folder"]["p99"] == 40.0
    lines = freshness_lines(s["freshness_ms"], s["deltas_never_served"])
    assert lines[0] == "freshness, POST to the admin API: 2 deltas, p50 10.0 ms, p99 20.0 ms, max 20.0 ms"


@pytest.mark.parametrize(
    ("arguments", "figure"),
    [
        ({"fault": "status 500: x"}, ("failed", 1)),
        ({"fault": "scores", "mixed": True}, ("mixed", 1)),
        ({"lost": True}, ("deltas_never_served", ["1.4"])),
    ],
)
def test_a_failed_request_a_mixed_reply_and_a_lost_delta_each_fail_the_run(arguments, figure):
    s = summary(**arguments)
    assert s[figure[0]] == figure[1]
    assert not passed(s)
    assert "FAILED" in markdown(s, "x")


def test_a_run_without_requests_or_without_deltas_has_not_passed():
    assert not passed(summary() | {"requests": 0})
    assert not passed(summary() | {"deltas": 0})


def test_percentiles_of_few_values_are_values_that_occurred():
    assert freshness_ms([0.01, 0.02, 0.5]) == {"deltas": 3, "p50": 20.0, "p99": 500.0, "max": 500.0}
    random = np.random.default_rng(0).random(1000)
    assert freshness_ms(random)["p99"] == pytest.approx(1000 * np.sort(random)[989], abs=0.01)


def test_percentiles_of_no_request_are_zero():
    assert set(latency_ms([]).values()) == {0.0}


def test_the_page_holds_the_figures_and_the_failures():
    page = markdown(summary("status 500: a | b"), "night")
    assert "1001 predict requests, 1 failed, 0 mixed" in page
    assert "| POST to the admin API | 2 | 10.00 | 20.00 | 20.00 |" in page
    assert "The goal is a p99 under 250 ms: met." in page
    assert "| status 500: a \\| b | 1 |" in page
    assert "(night-latency.png)" in page


def test_the_report_names_neither_host_nor_path(tmp_path):
    page = write_report(summary(), tmp_path, "night")
    text = page.read_text() + (tmp_path / "night.json").read_text()
    assert str(tmp_path) not in text
    assert socket.gethostname() not in re.findall(r"[\w.-]+", text)


def test_a_report_is_a_page_its_figures_and_two_pictures(tmp_path):
    s = summary()
    page = write_report(s, tmp_path / "results", "night")
    assert page.name == "night.md"
    assert json.loads((tmp_path / "results" / "night.json").read_text())["requests"] == 1000
    for name in ("night-latency.png", "night-freshness.png"):
        assert (tmp_path / "results" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options", [{"seconds": 1}, {"users": 0}, {"delta_every_s": 61.0}, {"json_share": 1.5}, {"publish": "mail"}]
)
def test_settings_that_make_no_sense_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RunSettings(**options)
