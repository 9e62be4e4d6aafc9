"""An observer of its own is a new folder and no other file: installed it counts, removed it leaves no trace."""

import pytest

from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from freshet_serving.serving.telemetry.observers import Observers
from tests.processor.engines import USERS, processors, request
from tests.support.extensions import install
from tests.support.packages import write_package


@pytest.fixture
def opened(tmp_path):
    """Opens a processor, with the metrics of a server that serves it."""
    write_package(tmp_path / "repository", users=USERS)
    with processors(tmp_path / "repository") as build:

        def make():
            processor, lifecycle = build(), Lifecycle()
            lifecycle.open(processor.host)
            metrics = Metrics(lifecycle)
            Observers(FrontendOptions(), 0).observe(processor.predictor, metrics.own)
            return processor, metrics

        yield make


def test_observer_counts_requests_in_metrics(opened, monkeypatch, tmp_path):
    with install(monkeypatch, tmp_path, "toy_observer"):
        processor, metrics = opened()
        processor.batch_process([request([1]), request([2])])
        text = metrics.scrape().decode()
        version = processor.host.model("small").pick()
    assert "# HELP freshet_toy_requests_total Requests that the toy has seen.\n" in text
    assert "freshet_toy_requests_total 2.0\n" in text
    assert "freshet_toy_failures_total 0.0\n" in text
    assert processor.host.evidence("toy", version) == {"requests": 2}


def test_removed_observer_leaves_no_trace(opened):
    processor, metrics = opened()
    processor.process(request([1]))
    assert "toy" not in metrics.scrape().decode()
    assert processor.host.evidence("toy", processor.host.model("small").pick()) is None
    assert processor.predictor.observers.watching == ()
