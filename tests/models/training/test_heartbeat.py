"""A run's reports to its servers: rows a second, how it ended, and what they never say."""

import json
import math

import pytest

from freshet_serving.models.runs.train_metrics import RunStatus
from freshet_serving.models.training.heartbeat import EVERY_S, Heartbeat
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import TrainerState, parse_trainer_report


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def heartbeat(tmp_path, clock):
    (tmp_path / "ctr").mkdir()
    return Heartbeat(str(tmp_path), "ctr", False, clock.unix_s, clock.now_s)


def report_in(folder):
    return parse_trainer_report((folder / "ctr" / "trainer.json").read_bytes())


def ended(folder, heartbeat, error=None):
    heartbeat.end(error)
    heartbeat.write()
    return report_in(folder)


def test_report_has_the_status_of_the_run(tmp_path, heartbeat):
    heartbeat.status = lambda: RunStatus(
        learned_rows=900,
        waiting_rows=4,
        version=3,
        step=7,
        published_at=5.0,
        held_out={"auc": 0.8},
        window_auc=0.75,
        gate="within its bounds",
        held="AUC fell",
        trouble="away",
        store_trouble="refused",
        stale_tables=2,
    )
    heartbeat.write()
    report = report_in(tmp_path)
    assert (report.state, report.beat, report.rows, report.waiting_rows) == (TrainerState.RUNNING, 1, 900, 4)
    assert (report.version, report.step, report.published_at) == (3, 7, 5.0)
    assert (report.held_out, report.window) == ({"auc": 0.8}, {"auc": 0.75})
    assert (report.gate, report.held, report.trouble) == ("within its bounds", "AUC fell", "away")
    assert (report.store_trouble, report.stale_tables) == ("refused", 2)


def test_rate_is_that_of_the_newest_minute(tmp_path, heartbeat, clock):
    rows = 0
    heartbeat.status = lambda: RunStatus(learned_rows=rows)
    for _ in range(20):
        clock.advance(EVERY_S)
        rows += 500
        heartbeat.write()
    assert report_in(tmp_path).rows_per_s == 50.0
    for _ in range(7):
        clock.advance(EVERY_S)
        heartbeat.write()
    assert report_in(tmp_path).rows_per_s == 0.0


def test_every_report_differs_from_the_one_before(tmp_path, heartbeat):
    heartbeat.write()
    before = (tmp_path / "ctr" / "trainer.json").read_bytes()
    heartbeat.write()
    assert (tmp_path / "ctr" / "trainer.json").read_bytes() != before


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, TrainerState.FINISHED),
        (KeyboardInterrupt(), TrainerState.STOPPED),
        (SystemExit(1), TrainerState.STOPPED),
        (BadInput("data.path: does not exist"), TrainerState.FAILED),
        (ValueError("row 17 of ann@example.com"), TrainerState.FAILED),
    ],
)
def test_last_report_says_how_the_run_ended(tmp_path, heartbeat, error, state):
    assert ended(tmp_path, heartbeat, error).state is state


def test_run_that_was_asked_to_stop_is_stopped(tmp_path, heartbeat):
    asked = []
    heartbeat.stop(lambda: asked.append(True))
    assert (ended(tmp_path, heartbeat).state, asked) == (TrainerState.STOPPED, [True])


def test_run_whose_version_was_refused_has_the_verdict(tmp_path, heartbeat):
    refused = BadInput("gate: AUC 0.61, at least 0.74")
    refused.exit_code = 3
    report = ended(tmp_path, heartbeat, refused)
    assert (report.state, report.gate, report.error) == (TrainerState.REFUSED, "gate: AUC 0.61, at least 0.74", "")


def test_errors_hold_no_value_and_no_unknown_text(tmp_path, heartbeat):
    assert ended(tmp_path, heartbeat, BadInput("data.age: expected a number, got 'ann'")).error == (
        "data.age: expected a number"
    )
    assert ended(tmp_path, heartbeat, ValueError("ann")).error == "an unexpected error; its output says which"


def test_figures_that_are_not_finite_are_left_out(tmp_path, heartbeat):
    heartbeat.status = lambda: RunStatus(held_out={"auc": math.nan})
    heartbeat.write()
    assert json.loads((tmp_path / "ctr" / "trainer.json").read_bytes())["held_out"] == {}


def test_repository_that_cannot_be_written_is_no_error(tmp_path, clock):
    heartbeat = Heartbeat(str(tmp_path / "gone"), "ctr", False, clock.unix_s, clock.now_s)
    heartbeat.write()
    (tmp_path / "gone" / "ctr").mkdir(parents=True)
    heartbeat.write()
    assert report_in(tmp_path / "gone").beat == 2


def test_block_reports_at_its_begin_and_its_end(tmp_path, heartbeat):
    with pytest.raises(BadInput), heartbeat:
        raise BadInput("data.path: does not exist")
    report = report_in(tmp_path)
    assert (report.state, report.error) == (TrainerState.FAILED, "data.path: does not exist")
    assert report.beat == 2
