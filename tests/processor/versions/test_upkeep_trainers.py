"""Trainers of a repository: looked for once a second, and watched once one of them has reported."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.repository import Repository, TrainerReport, TrainerState
from freshet_serving.processor.versions.upkeep import LOOK_S, Trainers

REPORT = TrainerReport("0badcafe", TrainerState.RUNNING, 1, 10.0, written_at=1.0).dump()


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "ctr").mkdir()
    return Repository(tmp_path)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def trainers(repository, clock):
    return Trainers(repository, clock.now_s)


def test_without_reports_nothing_is_watched(trainers):
    assert trainers.poll(["ctr"]) == []
    assert trainers.standings() == {}
    assert trainers._watch is None


@pytest.mark.parametrize("watching", [False, True])
def test_files_are_looked_at_once_a_second(trainers, repository, clock, watching, tmp_path):
    if watching:
        (tmp_path / "other").mkdir()
        repository.keep_trainer("other", REPORT)
    trainers.poll(["ctr", "other"])
    repository.keep_trainer("ctr", REPORT)
    clock.advance(LOOK_S / 2)
    assert clock.now_s() < trainers.due_s
    assert "ctr" not in trainers.standings()
    clock.advance(LOOK_S / 2)
    assert clock.now_s() >= trainers.due_s
    trainers.poll(["ctr", "other"])
    assert trainers.standings()["ctr"].report.beat == 1


def test_broken_report_is_told_of_too(trainers, tmp_path):
    (tmp_path / "ctr" / "trainer.json").write_bytes(b"{")
    assert trainers.poll(["ctr"]) == ["ctr ignores the trainer's report: trainer.json: expected JSON"]
