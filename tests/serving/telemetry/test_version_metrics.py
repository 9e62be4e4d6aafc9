"""What a scrape says about versions."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor


def scraped(metrics=None):
    if metrics is None:
        lifecycle = Lifecycle()
        lifecycle.open(FakeProcessor())
        metrics = Metrics(lifecycle)
    families = text_string_to_metric_families(metrics.scrape().decode())
    return {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}


OF = (("model", "ctr"), ("version", "3"))


def test_stages_of_a_version_are_histograms():
    samples = scraped()
    for stage, seconds, count in (("queue", 0.002, 2), ("sparse", 0.002, 1), ("dense", 0.004, 1)):
        labels = tuple(sorted((*OF, ("phase", stage))))
        assert samples[("freshet_phase_duration_seconds_count", *labels)] == count
        assert samples[("freshet_phase_duration_seconds_sum", *labels)] == seconds
    labels = tuple(sorted((*OF, ("phase", "dense"))))
    below = {dict(key[1:])["le"]: n for key, n in samples.items() if set(labels) < set(key[1:])}
    assert (below["0.00390625"], below["0.005859375"], below["+Inf"]) == (0, 1, 1)
    assert samples[("freshet_batch_rows_sum", *OF)] == 4
    assert samples[("freshet_version_padded_rows_total", *OF)] == 3


def test_prometheus_linter_reports_nothing(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; Debian has it in the package prometheus")
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=Metrics(lifecycle).scrape(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_scores_and_tables_are_reported_by_version():
    samples = scraped()
    of = tuple(sorted((*OF, ("output", "score"))))
    assert abs(samples[("freshet_score_mean", *of)] - 1 / 3) < 1e-6
    assert 0.2 < samples[("freshet_score", *sorted((*of, ("q", "0.5"))))] < 0.3
    assert samples[("freshet_score_drift", *of)] == 0.125
    assert samples[("freshet_scores_total", *of)] == 3
    assert samples[("freshet_scores_nonfinite_total", *of)] == 1
    table = tuple(sorted((*OF, ("table", "user"))))
    assert samples[("freshet_table_lookups_total", *table)] == 1000
    assert samples[("freshet_table_default_rows_total", *table)] == 30


def test_traffic_share_and_labels_are_reported_by_version():
    samples = scraped()
    assert samples[("freshet_version_share", *OF)] == 0.95
    assert samples[("freshet_version_ejected", *OF)] == 0
    assert samples[("freshet_version_label", ("label", "stable"), *OF)] == 1
    assert samples[("freshet_version_requests_total", *OF)] == 2


def test_blocked_deltas_are_reported_by_kind():
    samples = scraped()
    found = {dict(key[1:])["kind"]: n for key, n in samples.items() if key[0] == "freshet_version_deltas_blocked"}
    assert found == {"held": 2, "refused": 0, "gap": 0, "unreadable": 0, "damaged": 0}


def test_batch_sizes_are_reported_by_precision():
    samples = scraped()
    for precision, count in (("float32", 2), ("int8", 1)):
        labels = tuple(sorted((*OF, ("precision", precision))))
        assert samples[("freshet_version_buckets", *labels)] == count
