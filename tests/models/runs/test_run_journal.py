import errno
import json
import os

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.runs.run_journal import LINES, RunJournal

pytestmark = pytest.mark.tensorflow
STANDING = {
    "step": 5, "epoch": 0, "position": 10, "dense_learning_rate": 0.1, "learning_rates": {"user": 0.2},
    "table_rows": {"user": 3},
}  # fmt: skip


class Clock:
    def __init__(self):
        self.s = 100.0

    def __call__(self):
        return self.s


@pytest.fixture
def told():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def journal(tmp_path, told, clock):
    return RunJournal(tmp_path, "ctr", {"model": {"name": "ctr"}}, lambda: dict(STANDING), told.append, clock)


def lines(tmp_path):
    (folder,) = tmp_path.iterdir()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_batches_within_one_second_are_one_line(tmp_path, journal, clock):
    journal.learned(10, 0.5)
    clock.s += 0.6
    journal.learned(30, 0.7)
    assert list(tmp_path.iterdir()) == []
    clock.s += 0.4
    journal.scored(np.array([0, 1], np.float32), np.array([0.2, 0.9], np.float32), None)
    journal.learned(10, 0.5)
    (line,) = lines(tmp_path)
    assert line.pop("unix_s") > 0
    assert line == STANDING | {
        "what": "progress", "rows": 50, "seconds": 1.0, "rows_per_s": 50.0, "loss": pytest.approx(0.62), "auc": 1.0,
        "log_loss": pytest.approx(0.1643, abs=1e-4),
    }  # fmt: skip
    clock.s += 2
    journal.learned(4, 0.1)
    assert [line["rows"] for line in lines(tmp_path)] == [50, 54]
    assert "auc" not in lines(tmp_path)[1]


def test_long_run_writes_ever_fewer_lines(tmp_path, journal, clock):
    clock.s += 10 * LINES
    journal.learned(1, 0.5)
    for _ in range(9):
        clock.s += 1
        journal.learned(1, 0.5)
    assert len(lines(tmp_path)) == 1
    clock.s += 2
    journal.learned(1, 0.5)
    assert len(lines(tmp_path)) == 2


def test_finished_run_leaves_configuration_lines_report_and_events(tmp_path, journal, clock):
    clock.s += 0.1
    journal.learned(10, float("nan"))
    journal.epoch(1, {"auc": 0.7, "log_loss": float("nan")})
    journal.published("1.0")
    journal.published("1.1")
    journal.measured([{"what": "all", "label": "clicked", "rows": 3, "auc": 0.75, "log_loss": 0.5}])
    report = journal.report()
    assert [line["what"] for line in lines(tmp_path)] == ["epoch", "published", "published", "all", "progress"]
    assert lines(tmp_path)[0]["log_loss"] is None
    assert json.loads((report.parent / "config.json").read_text()) == {"model": {"name": "ctr"}}
    assert "1.0 to 1.1, 2 of them" in report.read_text()
    (events,) = report.parent.glob("events.*")
    data = events.read_bytes()
    assert b"table_rows/user" in data
    assert b"scalars" in data


def test_run_that_learned_nothing_leaves_nothing(tmp_path, journal):
    assert journal.report() is None
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_logged_once_and_training_continues(tmp_path, journal, clock, told, monkeypatch):
    clock.s += 2
    journal.learned(10, 0.5)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("freshet_serving.models.runs.run_folder._append", full)
    for _ in range(3):
        clock.s += 2
        journal.learned(10, 0.5)
    assert journal.report() is None
    assert told == ["cannot write the run's folder (No space left on device): training continues without it"]
