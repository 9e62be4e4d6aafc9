import re
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from freshet_serving.processor.counter_block import CounterBlock, Slot
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import PHASE_BOUNDS_S, Counts, Metrics, counter_families
from tests.serving.fakes import PACKED, FakeProcessor
from tests.support.counters import slots_of_owners


def scraped(metrics):
    families = text_string_to_metric_families(metrics.scrape().decode())
    return {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}


def served(models=("ctr",)):
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor(dict.fromkeys(models, PACKED)))
    return Metrics(lifecycle)


def test_server_without_models_can_be_scraped():
    samples = scraped(Metrics(Lifecycle()))
    assert samples[("freshet_ready",)] == 0


def test_requests_are_counted_by_protocol_and_code():
    metrics = served()
    for seconds in (0.0001, 0.003, 0.0031, 100.0):
        metrics.observe("kserve", 200, seconds)
    metrics.observe("kserve", 429, 0.5)
    samples = scraped(metrics)
    labels = (("code", "200"), ("protocol", "kserve"))
    assert samples[("freshet_http_requests_total", *labels)] == 4
    assert samples[("freshet_http_requests_total", ("code", "429"), ("protocol", "kserve"))] == 1
    histogram = "freshet_http_request_duration_seconds"
    assert samples[(f"{histogram}_bucket", labels[0], ("le", "0.003"), labels[1])] == 2
    assert samples[(f"{histogram}_bucket", labels[0], ("le", "0.004"), labels[1])] == 3
    assert samples[(f"{histogram}_bucket", labels[0], ("le", "+Inf"), labels[1])] == 4
    assert samples[(f"{histogram}_count", *labels)] == 4
    assert abs(samples[(f"{histogram}_sum", *labels)] - 100.0062) < 1e-9


def test_models_report_generation_freshness_and_lookups_in_base_units():
    metrics = served(("a", "b"))
    metrics.predicted("a", 64)
    metrics.predicted("a", 32)
    samples = scraped(metrics)
    assert samples[("freshet_model_step", ("model", "a"))] == 17
    assert samples[("freshet_model_requests_total", ("model", "a"))] == 2
    assert samples[("freshet_model_rows_total", ("model", "a"))] == 96
    assert samples[("freshet_model_delta_apply_seconds", ("model", "b"))] == 0.0025
    assert samples[("freshet_model_lookup_misses_total", ("model", "b"))] == 30
    assert ("freshet_model_event_timestamp_seconds", ("model", "a")) not in samples
    assert metrics.requests() == {"a": 2}


def test_group_metrics_are_reported_once_per_group():
    samples = scraped(served(("a", "b")))
    assert samples[("freshet_session_rows_total", ("group", "default"))] == 70
    assert samples[("freshet_queue_rows", ("group", "default"))] == 2
    assert samples[("freshet_sessions", ("group", "default"))] == 2
    assert samples[("freshet_queue_wait_seconds_total", ("group", "default"))] == 0.5
    assert samples[("freshet_queue_expired_total", ("group", "default"))] == 2
    assert samples[("freshet_queue_shed_total", ("group", "default"), ("reason", "late"))] == 3
    assert samples[("freshet_queue_shed_total", ("group", "default"), ("reason", "full"))] == 0
    assert samples[("freshet_session_runs_total", ("bucket", "64"), ("group", "default"))] == 4


def test_closed_processor_does_not_break_a_scrape():
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor())
    metrics = Metrics(lifecycle)
    lifecycle.close()
    assert ("freshet_ready",) in scraped(metrics)


def test_nothing_is_lost_or_counted_twice_during_a_scrape():
    metrics = served()
    counted, stop = [], threading.Event()

    def scrape():
        while not stop.is_set():
            counted.append(sum(sum(counts) for _, _, counts, _ in metrics.counts().series()))

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(20_000):
        metrics.observe("kserve", 200, 0.001)
    stop.set()
    thread.join()
    (series,) = metrics.counts().series()
    assert sum(series[2]) == 20_000
    assert series[3] == pytest.approx(20.0)
    assert counted == sorted(counted)


def test_phase_times_are_reported_by_protocol_and_summed_across_processes():
    metrics = Metrics(Lifecycle())
    metrics.phase("kserve", "parse", 3e-6)
    metrics.phase("kserve", "encode", 1.0)
    twice = Counts.of(metrics.counts().snapshot())
    assert list(twice.phases()) == list(metrics.counts().phases())
    samples = scraped(metrics)
    labels = (("phase", "parse"), ("protocol", "kserve"))
    assert samples[("freshet_http_phase_duration_seconds_count", *labels)] == 1
    le = str(next(b for b in PHASE_BOUNDS_S if b >= 3e-6))
    assert samples[("freshet_http_phase_duration_seconds_bucket", ("le", le), *labels)] == 1


def test_every_metric_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
    named = set()
    for pattern in re.findall(r"`(freshet_[a-z_{},]+)`", text):
        head, _, rest = pattern.partition("{")
        choices, _, tail = rest.partition("}")
        named |= {head + choice + tail for choice in choices.split(",")} if rest else {pattern}
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor())
    metrics = Metrics(lifecycle)
    metrics.own.source(CounterBlock(slots_of_owners()).snapshot)
    there = {line.split()[2] for line in metrics.scrape().decode().splitlines() if line.startswith("# TYPE freshet_")}
    assert there - named == set()


READS = Slot("toy", "reads", "toy_reads", "Reads.")


CACHE = Slot("toy", "cache", "toy_bytes", "Memory.", gauge=True)


LATE, DOWN = Slot("toy", "losses", "toy_losses", "Lost keys.", "reason").each(["late", "down"])


HIDDEN = Slot("toy", "hidden")


def test_slots_become_samples_with_the_labels_of_their_owner():
    counted = [({"model": "a"}, {READS: 3, LATE: 1, DOWN: 2, CACHE: 7, HIDDEN: 9}), ({"model": "b"}, {READS: 4})]
    families = {family.name: family for family in counter_families(counted)}
    assert [(f.name, f.type, f.documentation) for f in families.values()] == [
        ("freshet_toy_reads", "counter", "Reads."),
        ("freshet_toy_losses", "counter", "Lost keys."),
        ("freshet_toy_bytes", "gauge", "Memory."),
    ]
    samples = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
    assert samples == {
        ("freshet_toy_reads_total", "a"): 3,
        ("freshet_toy_reads_total", "b"): 4,
        ("freshet_toy_losses_total", "a", "late"): 1,
        ("freshet_toy_losses_total", "a", "down"): 2,
        ("freshet_toy_bytes", "a"): 7,
    }


def test_counters_of_a_process_have_no_labels():
    (family,) = counter_families([({}, {READS: 3})])
    assert [(s.name, s.labels, s.value) for s in family.samples] == [("freshet_toy_reads_total", {}, 3)]


def test_nothing_counted_is_no_family():
    assert list(counter_families([({"model": "a"}, {})])) == []
