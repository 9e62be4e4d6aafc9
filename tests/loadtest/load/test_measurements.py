import pytest
from hdrh.histogram import HdrHistogram

from loadtest.load.measurements import Measurements, freshness


def test_requests_are_counted_in_the_second_they_ended():
    recorder = Measurements(100.0)
    for end_s, latency_s in ((100.2, 0.010), (100.9, 0.020), (101.1, 0.030), (104.5, 0.040)):
        recorder.request("kserve", end_s, latency_s)
    windows = recorder.document()["windows"]
    assert [(w["at_s"], w["requests"]) for w in windows] == [(0.0, 2), (1.0, 1), (4.0, 1)]
    assert windows[0]["max_ms"] == pytest.approx(20, rel=1e-3)
    assert windows[2]["p50_ms"] == pytest.approx(40, rel=1e-3)


def test_requests_other_than_load_are_excluded_from_windows():
    recorder = Measurements(0.0)
    recorder.request("delta", 0.5, 0.1, load=False)
    assert recorder.document()["windows"] == []
    assert recorder.totals() == (1, 0, 0)


def test_faults_are_counted_by_text_and_mixed_replies_separately():
    recorder = Measurements(0.0)
    recorder.request("kserve", 0.1, 0.01, "status 503: draining")
    recorder.request("tfs", 0.2, 0.01, "scores differ", mixed=True)
    recorder.request("tfs", 0.3, 0.01)
    document = recorder.document()
    assert recorder.totals() == (3, 2, 1)
    assert document["faults"] == {"status 503: draining": 1, "scores differ": 1}
    assert document["kinds"]["tfs"]["mixed"] == 1
    assert document["windows"][0]["failed"] == 2


def test_histograms_round_trip_between_processes():
    recorder = Measurements(0.0)
    for ms in range(1, 101):
        recorder.request("kserve", 0.5, ms / 1000)
    read = HdrHistogram.decode(recorder.document()["kinds"]["kserve"]["latency"])
    assert read.total_count == 100
    assert read.get_value_at_percentile(99) == pytest.approx(99_000, rel=1e-3)


def test_latencies_beyond_the_histogram_count_at_its_ends():
    recorder = Measurements(0.0)
    recorder.request("kserve", 0.1, 1000.0)
    recorder.request("kserve", 0.2, 0.0)
    assert recorder.document()["windows"][0]["requests"] == 2


def test_freshness_runs_from_publication_to_the_first_reply():
    recorder = Measurements(0.0)
    recorder.published("1.1", "admin", 10.0)
    recorder.published("1.2", "folder", 11.0)
    recorder.seen("1.1", 10.3)
    recorder.seen("1.1", 10.9)
    document = recorder.document()
    taken, missing = freshness(document["deltas"], [document["first_seen_s"], {"1.1": 10.2, "1.2": 11.5}])
    assert taken["admin"] == [pytest.approx(0.2)]
    assert taken["folder"] == [pytest.approx(0.5)]
    assert missing == []


def test_later_step_implies_the_delta_but_another_version_does_not():
    deltas = [{"generation": f"1.{step}", "way": "admin", "published_s": float(step)} for step in (1, 2, 10)]
    taken, missing = freshness(deltas, [{"1.2": 2.5, "2.10": 11.0}])
    assert taken == {"admin": [1.5, 0.5]}
    assert missing == ["1.10"]
