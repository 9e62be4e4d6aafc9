"""A supervisor's /metrics has what its workers count, and what it counts itself, once each."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.counter_block import Slot
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.workers.counter_layout import COUNTED, PROCESS, CounterWriter
from freshet_serving.serving.workers.worker_counts import Totals
from freshet_serving.serving.workers.worker_pool_metrics import WorkerPoolMetrics

SEEN = Slot("toy", "seen", "toy_seen", "Requests that the toy has seen.")
RELOADS = Slot("access", "reloads", "access_reloads", "Reloads.")


@pytest.fixture
def totals():
    return Totals()


@pytest.fixture
def metrics(totals):
    """The metrics of a supervisor whose workers report to `totals`."""
    host = SimpleNamespace(totals=totals, refresh=lambda: None, workers=list)
    made = WorkerPoolMetrics(Lifecycle(), lambda: host)
    made.own.source(lambda: {RELOADS: 1})
    return made


def report(slot, seen):
    counted = CounterWriter().write({PROCESS: {SEEN: seen}})
    return slot, {"counters": {}, "gauges": {"cpu_s": 0.0}, COUNTED: counted}


def test_counters_of_workers_and_supervisor_are_added(metrics, totals):
    totals.reported(*report(0, 2))
    totals.reported(*report(1, 3))
    totals.on_exit(0)
    text = metrics.scrape().decode()
    assert "# HELP freshet_toy_seen_total Requests that the toy has seen.\n" in text
    assert "freshet_toy_seen_total 5.0\n" in text
    assert "freshet_access_reloads_total 1.0\n" in text


def test_counters_of_the_supervisor_are_there_before_workers(metrics):
    text = metrics.scrape().decode()
    assert "freshet_access_reloads_total 1.0\n" in text
    assert "toy" not in text
