"""What a server does now: rates since the sample before, percentiles, five minutes of them, and who is told."""

import orjson

from freshet_serving.serving.extensions.admin.live_samples import KEPT_S, MOST_MODELS, LiveSamples, _latencies_ms
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import BOUNDS_S, Metrics
from tests.serving.fakes import PACKED, FakeProcessor


class Watched:
    """A server under a clock of its own."""

    def __init__(self, models=("ctr",)):
        self.now_s, self.lifecycle = 100.0, Lifecycle()
        self.metrics = Metrics(self.lifecycle)
        self.lifecycle.open(FakeProcessor(dict.fromkeys(models, PACKED)))
        self.samples = LiveSamples(self.lifecycle, self.metrics, lambda: self.now_s, lambda: 1.7e9 + self.now_s)

    def take(self, after_s=1.0):
        self.now_s += after_s
        self.samples.take()
        return orjson.loads(self.samples.since(0)[-1].data)


def test_sample_covers_the_time_since_the_previous_one():
    server = Watched()
    first = server.take()
    assert (first["requests"], first["latency_ms"], first["since_s"]) == (0, None, 0)
    for n in range(100):
        server.metrics.observe("tfs", 200, 0.001 + n * 1e-5)
        server.metrics.predicted("ctr", 64)
    server.metrics.observe("tfs", 429, 0.0001)
    server.metrics.observe("http", 200, 5.0)
    sample = server.take(after_s=2.0)
    assert sample["requests"] == 50.5
    assert sample["codes"] == {"200": 50.0, "429": 0.5}
    assert sample["models"]["ctr"] == {
        "requests": 50.0,
        "rows": 3200.0,
        "generation": "3.17",
        "state": sample["models"]["ctr"]["state"],
        "age_s": sample["models"]["ctr"]["age_s"],
        "freshness_s": sample["models"]["ctr"]["freshness_s"],
    }
    assert 1.0 < sample["latency_ms"]["p50"] < 2.0
    assert sample["latency_ms"]["p99"] <= 2.0, "what is no prediction is not counted"
    assert server.take()["requests"] == 0


def test_percentiles_lie_in_the_bin_of_their_request():
    counts = [0] * (len(BOUNDS_S) + 1)
    assert _latencies_ms(counts) is None
    counts[3] = 10
    found = _latencies_ms(counts)
    assert all(BOUNDS_S[2] * 1e3 <= ms <= BOUNDS_S[3] * 1e3 for ms in found.values())
    counts[-1] = 1000
    assert _latencies_ms(counts)["p99"] == BOUNDS_S[-1] * 1e3
    counts[0] = -1
    assert _latencies_ms(counts) is None, "counting began anew"


def test_only_five_minutes_of_samples_are_kept():
    server = Watched()
    for _ in range(400):
        server.take()
    samples = server.samples.since(0)
    assert len(samples) == KEPT_S + 1
    assert [s.number for s in server.samples.since(398)] == [399, 400]


def test_sample_size_is_limited_for_many_models():
    server = Watched([f"m{n}" for n in range(200)])
    for _ in range(3):
        server.metrics.predicted("m150", 1)
    sample = server.take()
    assert len(sample["models"]) == MOST_MODELS
    assert "m150" in sample["models"], "those that are asked most are told of"


def test_subscriber_is_notified_of_each_sample_and_the_end():
    server, told = Watched(), []
    subscriber = server.samples.subscribe(lambda: told.append(1))
    server.take()
    assert (len(told), server.samples.subscribers) == (1, 1)
    server.samples.close()
    assert (len(told), server.samples.closed) == (2, True)
    server.samples.unsubscribe(subscriber)
    server.samples.unsubscribe(subscriber)
    assert server.samples.subscribers == 0


def test_nothing_is_sampled_while_models_load():
    lifecycle = Lifecycle()
    samples = LiveSamples(lifecycle, Metrics(lifecycle))
    samples.take()
    assert samples.since(0) == []


def test_sampler_runs_until_it_is_closed():
    server = Watched()
    server.samples.start()
    server.samples.close()
    assert len(server.samples.since(0)) == 1
