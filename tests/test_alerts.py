"""The alert rules: Prometheus accepts them, they fire when they should, and they name metrics that there are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from freshet_serving.models.runs.train_metrics import COUNTERS, GAUGES
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor

DOCS = Path(__file__).parents[1] / "docs" / "reference"
RULES = DOCS / "alerts.yml"
# Of a fleet, and of what is only there where it was asked for.
ELSEWHERE = {
    "freshet_worker_restarts_total",
    "freshet_model_feature_damaged_total",
    "freshet_recording_dropped_total",
}


@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_rules(command):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; Debian has it in the package prometheus")
    done = subprocess.run([promtool, *command], cwd=DOCS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires():
    named = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    fires = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n\s+- exp_labels", (DOCS / "alerts_test.yml").read_text())
    assert named
    assert named - set(fires) == set()


def test_every_alert_links_to_its_runbook_section():
    sections = set(re.findall(r"^## (\w+)$", (DOCS.parent / "how-to" / "alerts.md").read_text(), re.MULTILINE))
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert set(alerts) == sections
    links = re.findall(r"runbook_url: docs/how-to/alerts\.md#(\w+)", RULES.read_text())
    assert links == [name.lower() for name in alerts]


def test_every_metric_in_a_rule_exists():
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor())
    metrics = Metrics(lifecycle)
    metrics.observe("kserve", 200, 0.001)
    there = set(re.findall(r"^# TYPE (\S+)", metrics.scrape().decode(), re.MULTILINE))
    there |= {f"{name}_bucket" for name in there} | ELSEWHERE | {f"{name}_total" for name, _, _ in COUNTERS}
    there |= {name for name, _, _ in GAUGES}
    named = set(
        re.findall(
            r"\bfreshet_[a-z_]+", "".join(re.findall(r"expr:(.*?)\n +(?:for|labels):", RULES.read_text(), re.DOTALL))
        )
    )
    assert named
    assert not named - there
