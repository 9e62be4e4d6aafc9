import numpy as np
import pytest

from loadtest.load.outcome import NEVER, RequestOutcomes, encode, figures, merge, of_microseconds, quantiles_ms


def outcome(entries):
    """entries: (due_s, latency_us, status, late_us); each was answered within half of its latency."""
    due_s, latency_us, status, late_us = zip(*entries)
    latency_us = np.array(latency_us, np.int64)
    answered_us = np.where(latency_us == NEVER, NEVER, latency_us // 2)
    return RequestOutcomes(
        np.array(due_s, float), latency_us, np.array(status, np.int16), np.array(late_us, np.int64), answered_us
    )


TEN = outcome([(0.1 * n + 0.05, 1000 * (n + 1), 200, n) for n in range(10)])


def test_only_requests_due_in_the_interval_count():
    found = figures(TEN, 0.5, 1.0)
    assert (found.requests, found.offered, found.failed) == (5, 10.0, 0)
    assert found.latency_ms["p50"] == pytest.approx(8, rel=1e-3)
    assert found.latency_ms["max"] == pytest.approx(10, rel=1e-3)
    assert found.late_ms["max"] == pytest.approx(0.009)
    assert found.answered_ms["max"] == pytest.approx(5, rel=1e-3)


def test_goodput_is_replies_of_status_200_within_the_deadline():
    mixed = outcome([(0.1, 5000, 200, 0), (0.2, 5001, 200, 0), (0.3, 100, 429, 0), (0.4, NEVER, 0, NEVER)])
    found = figures(mixed, 0, 2, deadline_s=0.005)
    assert (found.good, found.goodput) == (1, 0.5)
    assert found.statuses == {"none": 1, "200": 2, "429": 1}
    assert found.failed == 2


def test_achieved_rate_counts_replies_when_they_arrived():
    late = outcome([(0.1, 100_000, 200, 0), (0.2, 5_000_000, 200, 0), (0.3, NEVER, 0, NEVER)])
    found = figures(late, 0, 1)
    assert found.achieved == 1.0
    assert found.offered == 3.0


def test_refused_requests_do_not_improve_the_latency():
    found = figures(outcome([(0.1, 10_000, 200, 0), (0.2, 10, 429, 0)]), 0, 1)
    assert found.latency_ms["p50"] == pytest.approx(10, rel=1e-3)
    assert found.answered_ms["p50"] == pytest.approx(5, rel=1e-3)


def test_windows_cover_the_interval_and_add_up():
    found = figures(TEN, 0.0, 1.0, window_s=0.25)
    assert [w["at_s"] for w in found.windows] == [0.0, 0.25, 0.5, 0.75]
    assert sum(w["requests"] for w in found.windows) == 10
    total = merge(w["hdr"] for w in found.windows)
    assert quantiles_ms(total) == found.latency_ms


def test_histograms_of_processes_add_up():
    both = merge([encode(of_microseconds(np.array([1000] * 99))), encode(of_microseconds(np.array([50_000])))])
    assert both.total_count == 100
    assert quantiles_ms(both)["p50"] == pytest.approx(1, rel=1e-3)
    assert quantiles_ms(both)["max"] == pytest.approx(50, rel=1e-3)


def test_run_without_replies_has_figures_too():
    found = figures(RequestOutcomes.of(np.array([0.5])), 0, 1)
    assert (found.requests, found.achieved, found.goodput, found.failed) == (1, 0.0, 0.0, 1)
    assert found.latency_ms["p99"] == found.latency_ms["max"] == 0.0
