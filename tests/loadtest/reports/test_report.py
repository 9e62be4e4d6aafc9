import json

import numpy as np
import pytest

from loadtest.reports.report import freshness_lines, freshness_ms, origin, passed, store
from tests.loadtest.reports.summaries import summary


def test_summary_adds_up_the_protocols():
    s = summary()
    assert s["requests"] == 1000
    assert s["requests_per_s"] == pytest.approx(1000 / 4.995, rel=1e-2)
    assert s["counts"] == {"kserve": 750, "tfs": 250, "delta": 4, "probe": 1}
    assert s["latency_ms"]["all"]["p50"] == pytest.approx(5.0, rel=5e-3)
    assert s["latency_ms"]["all"]["p99.9"] == pytest.approx(9.99, rel=5e-3)
    assert s["checked"] == 1001
    assert passed(s)


def test_freshness_is_reported_by_publishing_method():
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
def test_failed_mixed_or_lost_results_each_fail_the_run(arguments, figure):
    s = summary(**arguments)
    assert s[figure[0]] == figure[1]
    assert not passed(s)


def test_run_without_requests_or_deltas_fails():
    assert not passed(summary() | {"requests": 0})
    assert not passed(summary() | {"deltas": 0})


def test_run_that_ended_early_fails():
    assert not passed(summary(error="freshet serve: exit code -9"))


def test_percentiles_of_few_values_are_observed_values():
    assert freshness_ms([0.01, 0.02, 0.5]) == {"deltas": 3, "p50": 20.0, "p99": 500.0, "max": 500.0}
    random = np.random.default_rng(0).random(1000)
    assert freshness_ms(random)["p99"] == pytest.approx(1000 * np.sort(random)[989], abs=0.01)


def test_each_delta_has_its_time_and_serving_delay():
    published = summary(lost=True)["published"]
    assert [(d["at_s"], d["way"]) for d in published] == [(1, "admin"), (2, "admin"), (3, "folder"), (4, "folder")]
    assert [d["ms"] for d in published] == [10.0, 20.0, 30.0, None]


def test_report_command_is_reproducible_and_names_no_folder():
    given = ["--only", "deltas", "--out", "somewhere/else", "--serve", "--workers 2", "--out=there"]
    assert origin("bench", "BENCH_ARGS", given)["command"] == (
        "make bench BENCH_ARGS=\"--only deltas --serve '--workers 2'\""
    )
    assert origin("bench", "BENCH_ARGS", [])["command"] == "make bench"


def test_report_is_stored_with_its_figures(tmp_path):
    store(tmp_path, "found", {"a": 1}, "# Found\n")
    assert (tmp_path / "found.md").read_text() == "# Found\n"
    assert json.loads((tmp_path / "found.json").read_text()) == {"a": 1}
