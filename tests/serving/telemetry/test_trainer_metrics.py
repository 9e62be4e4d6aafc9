"""What a scrape says of trainers, dead ones included."""

from freshet_serving.processor.repository import TrainerReport, TrainerState
from freshet_serving.processor.versions.trainer_watch import TrainerStanding
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor
from tests.serving.telemetry.test_version_metrics import scraped

REPORT = TrainerReport(
    "0badcafe", TrainerState.RUNNING, 7, 10.0, rows=500, rows_per_s=31.5, version=3, step=9, held_out={"auc": 0.75}
)


def samples(**standings):
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor(standings=standings))
    there = scraped(Metrics(lifecycle))
    return {key: value for key, value in there.items() if key[0].startswith("freshet_trainer_")}


def test_dead_trainer_has_its_age_and_last_progress():
    there = samples(ctr=TrainerStanding(REPORT, 660.0))
    ctr = ("model", "ctr")
    assert there["freshet_trainer_report_age_seconds", ctr] == 660
    assert there["freshet_trainer_silent", ctr] == 1
    assert (there["freshet_trainer_rows", ctr], there["freshet_trainer_rows_per_second", ctr]) == (500, 31.5)
    assert (there["freshet_trainer_version", ctr], there["freshet_trainer_step", ctr]) == (3, 9)
    assert there["freshet_trainer_held_out", ("figure", "auc"), ctr] == 0.75
    assert there["freshet_trainer_state", ctr, ("state", "running")] == 1
    assert there["freshet_trainer_state", ctr, ("state", "failed")] == 0
    assert (there["freshet_trainer_held", ctr], there["freshet_trainer_stream_up", ctr]) == (0, 1)


def test_model_without_a_trainer_has_no_samples():
    assert samples() == {}
