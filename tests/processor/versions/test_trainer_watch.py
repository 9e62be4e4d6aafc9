"""Trainers as a server sees them: by a file that changes, and by this server's own clock."""

from dataclasses import replace

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.repository import Repository, TrainerReport, TrainerState
from freshet_serving.processor.versions.changes import WarningMessage
from freshet_serving.processor.versions.trainer_watch import SILENT_S, TrainerWatch, duration

REPORT = TrainerReport("0badcafe", TrainerState.RUNNING, 1, 10.0, written_at=1.0)


class Watched:
    """A trainer that reports, and the server that watches it."""

    def __init__(self, root):
        (root / "ctr").mkdir()
        self.repository, self.clock = Repository(root), FakeClock()
        self.watch = TrainerWatch(self.repository, self.clock.now_s)
        self.beat = 0

    def report(self, **changes):
        self.beat += 1
        self.repository.keep_trainer("ctr", replace(REPORT, beat=self.beat, **changes).dump())

    def poll(self, after_s=1.0):
        self.clock.advance(after_s)
        return self.watch.poll(["ctr"])

    @property
    def standing(self):
        return self.watch.standings()["ctr"]


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_model_without_a_trainer_has_no_standing(watched):
    assert watched.poll() == []
    assert watched.watch.standings() == {}


def test_age_counts_from_when_the_server_saw_the_change(watched):
    watched.report()
    watched.poll()
    watched.poll(30.0)
    assert (watched.standing.age_s, watched.standing.silent) == (30.0, False)
    watched.report()
    watched.poll()
    assert (watched.standing.age_s, watched.standing.report.beat) == (0.0, 2)


def test_silent_trainer_is_told_once_until_it_reports_again(watched):
    watched.report()
    watched.poll()
    (line,) = watched.poll(SILENT_S)
    assert line == "ctr trainer silent for 2 min"
    assert isinstance(line, WarningMessage)
    assert watched.poll(540.0) == []
    assert watched.standing.problem == "trainer silent for 11 min"

    watched.report()
    assert watched.poll() == ["ctr trainer reports again: running"]
    assert watched.standing.problem == ""


@pytest.mark.parametrize("state", [TrainerState.FINISHED, TrainerState.STOPPED])
def test_run_that_ended_is_never_silent(watched, state):
    watched.report()
    watched.poll()
    watched.report(state=state)
    assert watched.poll() == [f"ctr trainer: {state}"]
    assert watched.poll(1e6) == []
    assert (watched.standing.silent, watched.standing.problem) == (False, "")


def test_refused_and_failed_runs_say_why(watched):
    watched.report(state=TrainerState.REFUSED, gate="AUC 0.61, at least 0.74")
    assert watched.poll() == ["ctr trainer's newest version was refused by the gate: AUC 0.61, at least 0.74"]
    watched.report(state=TrainerState.FAILED, error="data.path: does not exist")
    assert watched.poll() == ["ctr trainer failed: data.path: does not exist"]


def test_hold_and_trouble_of_a_running_trainer_are_problems(watched):
    watched.report(held="AUC of the window is 0.51")
    watched.poll()
    assert watched.standing.problem == "trainer's guard holds deltas: AUC of the window is 0.51"
    watched.report(trouble="the broker does not answer")
    watched.poll()
    assert watched.standing.problem == "trainer cannot read its stream: the broker does not answer"
    watched.report(store_trouble="store 'main' does not answer", stale_tables=1)
    watched.poll()
    expected = "trainer cannot write histories, and publishes nothing: store 'main' does not answer"
    assert watched.standing.problem == expected
    watched.report(stale_tables=2)
    watched.poll()
    assert watched.standing.problem == "trainer joins old tables: the newest content of 2 cannot be read"


def test_damaged_report_is_ignored_with_one_line(watched):
    watched.report()
    watched.poll()
    watched.repository.keep_trainer("ctr", b"{")
    assert watched.poll(5.0) == ["ctr ignores the trainer's report: trainer.json: expected JSON"]
    assert watched.poll(5.0) == []
    assert (watched.standing.report.beat, watched.standing.age_s) == (1, 10.0)
    watched.report()
    watched.poll()
    assert watched.standing.age_s == 0.0


def test_report_that_is_no_file_or_too_large_is_ignored(watched, tmp_path):
    (tmp_path / "ctr" / "trainer.json").mkdir()
    assert len(watched.poll()) == 1
    (tmp_path / "ctr" / "trainer.json").rmdir()
    (tmp_path / "ctr" / "trainer.json").write_bytes(b" " * (1 << 17))
    assert watched.poll() == [
        "ctr ignores the trainer's report: trainer.json: expected at most 65536 bytes, got 131072"
    ]
    assert watched.watch.standings() == {}


def test_models_that_are_gone_are_forgotten(watched):
    watched.report()
    watched.poll()
    watched.watch.poll([])
    assert watched.watch.standings() == {}


def test_report_of_a_model_without_a_folder_is_not_written(watched, tmp_path):
    watched.repository.keep_trainer("new", REPORT.dump())
    assert not (tmp_path / "new").exists()


def test_durations_are_for_people():
    assert [duration(s) for s in (5.2, 60, 660, 3660)] == ["5 s", "1 min", "11 min", "1 h 1 min"]
