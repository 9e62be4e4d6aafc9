"""Runs that follow a stream: published by time, stopped gently, judged, held, released and rejected."""

import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.chain_record import HOLD, RELEASE
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.event_files import Clicks, stop_when
from tests.models.training.streams import Notes

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def config_of(tmp_path, **publish):
    return parse_config(
        {
            "model": {"name": "ctr", "arch": "deepfm", "hidden": [8]},
            "data": {"path": str(tmp_path / "clicks"), "label": "clicked", "time": "ts", "follow": True},
            "features": {"user": {"kind": "id", "dim": 4}, "item": {"kind": "id", "dim": 4}},
            "train": {"batch_rows": 100, "learning_rate": 0.1},
            "publish": {"repository": str(tmp_path / "repository"), **publish},
        }
    )


@pytest.fixture
def clicks(tmp_path):
    return Clicks(tmp_path / "clicks")


def begin(config, notes=None):
    return TrainingRun(config, reporter=notes if notes is not None else Notes())


def started(tmp_path, clicks, notes=None, **publish):
    """A run that has published a version of 300 rows."""
    clicks.send(300)
    run = begin(config_of(tmp_path, **publish), notes)
    run.full()
    return run


def ledger_of(tmp_path):
    repository = Repository(tmp_path / "repository")
    return ChangeLog.of(repository.version("ctr", repository.versions("ctr")[-1]), whole=True)


def counted(run):
    """How often each user was learned."""
    table = run.trainer.tables["user"].export()
    return dict(zip(table.keys.tolist(), table.counts.tolist()))


def written(tmp_path):
    users = [pq.read_table(path)["user"].to_numpy() for path in sorted((tmp_path / "clicks").glob("*.parquet"))]
    keys, counts = np.unique(np.concatenate(users), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist()))


def test_existing_rows_make_the_version_and_new_ones_deltas(tmp_path, clicks):
    clicks.send(500)
    clicks.send(300)
    run = begin(config_of(tmp_path, delta_rows=200))
    assert isinstance(run.source, FollowedSource)
    assert (run.full(), run.state.position) == (Generation(1, 0), 800)
    clicks.send(450)
    stream = run.stream()
    assert [str(next(stream)), str(next(stream))] == ["1.1", "1.2"]
    stop_when(run, lambda: run.state.position == 1250)
    # What is learned of a delta that is not due yet is published at the end.
    assert [str(generation) for generation in stream] == ["1.3"]
    assert run.state.position == 1250
    assert counted(run) == written(tmp_path)


def test_delta_is_published_by_time_even_without_new_rows(tmp_path, clicks, monkeypatch):
    run = started(tmp_path, clicks, delta_seconds=0.2)
    clicks.send(40)
    stream = run.stream()
    assert str(next(stream)) == "1.1"
    assert run.state.position == 340
    clicks.send(10)
    assert str(next(stream)) == "1.2"
    assert run.status().deltas == 2
    run.stop()
    assert list(stream) == []


def test_resumed_run_reads_each_row_once_after_its_checkpoint(tmp_path, clicks):
    clicks.send(300)
    config = config_of(tmp_path, delta_rows=100)
    run = begin(config)
    run.full()
    for n in range(4):
        clicks.send(70 + n)
    stream = run.stream()
    next(stream)
    # The process is gone: nothing of it is asked to end.
    again = begin(config)
    assert again.state.position == run.state.position
    clicks.send(200)
    stream = again.stream()
    stop_when(again, lambda: again.state.position == 786)
    list(stream)
    assert counted(again) == written(tmp_path)


def test_new_version_is_published_on_schedule_while_the_stream_continues(tmp_path, clicks):
    run = started(tmp_path, clicks, delta_rows=100, version_rows=250)
    clicks.send(600)
    stream = run.stream()
    found = []
    while run.state.position < 900:
        found.append(str(next(stream)))
    run.stop()
    found += map(str, stream)
    assert found[:6] == ["1.1", "1.2", "1.3", "2.0", "2.1", "2.2"]
    assert counted(run) == written(tmp_path)
    assert begin(run.config).state.version_row == run.state.version_row == 900


def test_old_versions_are_removed_after_a_new_one_unless_the_policy_is_unreadable(tmp_path, clicks):
    notes = Notes()
    run = started(tmp_path, clicks, notes, delta_rows=100, version_rows=100, keep_versions=2)
    repository = Repository(tmp_path / "repository")
    repository.keep_labels("ctr", {"stable": 2})
    clicks.send(500)
    stream = run.stream()
    while run.state.version < 5:
        next(stream)
    assert repository.versions("ctr") == [2, 4, 5]
    assert [line for line in notes.notes if line.startswith("removed")] == [
        "removed ctr 1: publish.keep_versions is 2",
        "removed ctr 3: publish.keep_versions is 2",
    ]
    # The rest of the stream is learned upon the newest; an unreadable policy removes nothing.
    repository.keep_traffic("ctr", {"policy": {"versions": 7}})
    clicks.send(100)
    while run.state.version < 6:
        assert str(next(stream)).startswith(("5.", "6."))
    assert repository.versions("ctr") == [2, 4, 5, 6]
    assert notes.notes[-1].startswith(
        "publish.keep_versions: could not remove older versions of ctr: policy.versions: "
    )


def test_no_version_is_published_past_a_hold(tmp_path, clicks):
    run = started(tmp_path, clicks, delta_rows=100, version_rows=100)
    ledger_of(tmp_path).hold("a server's guard")
    clicks.send(200)
    stream = run.stream()
    assert [str(next(stream)), str(next(stream))] == ["1.1", "1.2"]
    ledger_of(tmp_path).release()
    clicks.send(100)
    assert [str(next(stream)), str(next(stream))] == ["1.3", "2.0"]


def test_new_version_is_published_by_time_with_the_next_delta(tmp_path, clicks):
    clicks.send(300)
    now = [1e9]
    run = TrainingRun(config_of(tmp_path, delta_rows=100, version_seconds=3600.0), unix_s=lambda: now[0])
    run.full()
    clicks.send(200)
    stream = run.stream()
    assert str(next(stream)) == "1.1"
    now[0] += 3600
    assert [str(next(stream)), str(next(stream))] == ["2.0", "2.1"]
    clicks.send(100)
    assert str(next(stream)) == "2.2"


def test_run_waits_for_the_rows_of_the_full_version(tmp_path, clicks):
    notes = Notes()
    threading.Timer(0.2, lambda: clicks.send(150)).start()
    run = begin(config_of(tmp_path, full_rows=400, delta_rows=100), notes)
    threading.Timer(0.2, lambda: clicks.send(250)).start()
    assert (run.full(), run.state.position) == (Generation(1, 0), 400)


def test_stopping_while_waiting_for_rows_reports_the_missing_ones(tmp_path, clicks):
    clicks.send(100)
    run = begin(config_of(tmp_path, full_rows=400, delta_rows=100))
    run.stop()
    with pytest.raises(BadInput, match=r"data: expected 400 rows for the full version, got 100 so far"):
        run.full()


def judged_run(tmp_path, clicks, **guard):
    clicks.send(3000)
    config = config_of(tmp_path, delta_rows=900)
    config = replace(config, guard=replace(GuardConfig(release_windows=2), **guard))
    notes = Notes()
    run = begin(config, notes)
    run.full()
    for _ in range(8):
        clicks.send(900)
    stream = run.stream()
    for _ in range(8):
        next(stream)
    assert run.guard.held_windows == 0, notes.notes
    assert not ledger_of(tmp_path).history.gate
    return run, stream, notes


def records(tmp_path, kind):
    folder = tmp_path / "repository" / "ctr" / "1" / "chain"
    return [path for path in sorted(folder.iterdir()) if f'"kind":"{kind}"' in path.read_text()]


def check_status(status):
    """Check what a judged run says of itself."""
    assert (status.position, status.learned_rows, status.version, status.step) == (10200, 10200, 1, 8)
    assert (status.deltas, status.versions, status.waiting_rows) == (8, 1, 0)
    assert status.table_rows == {"user": 40, "item": 30}
    assert status.window_auc > 0.7
    assert 0.5 < status.window_calibration < 2
    assert status.published_at <= time.time()


def test_window_with_shuffled_labels_is_held_and_later_released(tmp_path, clicks):
    run, stream, notes = judged_run(tmp_path, clicks)
    check_status(run.status())
    clicks.send(900, shuffled=True)
    assert str(next(stream)) == "1.9"
    history = ledger_of(tmp_path).history
    assert (history.target.step, history.head.step) == (8, 9)
    assert history.held.startswith("window: AUC 0.")
    assert run.status().held.startswith("AUC 0.")
    clicks.send(900)
    next(stream)
    assert ledger_of(tmp_path).history.target.step == 8
    clicks.send(900)
    assert str(next(stream)) == "1.11"
    history = ledger_of(tmp_path).history
    assert (history.target.step, history.gate, run.status().held) == (11, None, "")
    assert (len(records(tmp_path, HOLD)), len(records(tmp_path, RELEASE))) == (1, 1)
    assert notes.notes[-1] == "released: windows are normal again"
    # Good windows release no hold but the run's own.
    ledger_of(tmp_path).hold("a holiday")
    for _ in range(3):
        clicks.send(900)
        next(stream)
    history = ledger_of(tmp_path).history
    assert (history.held, history.target.step, run.status().held) == ("a holiday", 11, "")


def test_rejected_window_is_undone_and_a_released_one_becomes_usual(tmp_path, clicks):
    run, stream, notes = judged_run(tmp_path, clicks, release_windows=0)
    clicks.send(900, flipped=True)
    next(stream)
    assert run.status().held
    change_log = ledger_of(tmp_path)
    change_log.rollback(change_log.history.gate.step, "rejected")
    clicks.send(900)
    assert str(next(stream)) == "1.10"
    assert any("1.9 was rolled back to 1.8" in note for note in notes.notes)
    assert run.status().held == ""
    clicks.send(900, flipped=True)
    next(stream)
    assert run.status().held
    ledger_of(tmp_path).release("it is meant so")
    clicks.send(900, flipped=True)
    next(stream)
    assert run.status().held == ""


def test_disabled_guard_holds_nothing(tmp_path, clicks):
    _, stream, _ = judged_run(tmp_path, clicks, enabled=False)
    clicks.send(900, shuffled=True)
    next(stream)
    assert ledger_of(tmp_path).history.gate is None


def test_bad_rows_in_the_first_deltas_are_held(tmp_path, clicks):
    """The full version's held-out rows say what is usual before there are windows."""
    clicks.send(3000)
    notes, config = Notes(), config_of(tmp_path, delta_rows=900)
    begin(config).full()
    # They survive a kill.
    run = begin(config, notes)
    stream = run.stream()
    for deltas in (1, 2, 3):
        clicks.send(900, flipped=True)
        next(stream)
        assert run.guard.held_windows == deltas, notes.notes
        history = ledger_of(tmp_path).history
        assert (history.target.step, history.head.step) == (0, deltas)


def test_excessive_learning_rate_is_held_before_it_is_served(tmp_path, clicks):
    run, stream, _ = judged_run(tmp_path, clicks)
    for name in run.trainer.rates:
        run.trainer.rates[name] *= 100
    run.trainer.settings = replace(
        run.trainer.settings, dense_learning_rate=run.trainer.settings.dense_learning_rate * 100
    )
    run.trainer.dense._settings = run.trainer.settings
    clicks.send(900)
    assert str(next(stream)) == "1.9"
    history = ledger_of(tmp_path).history
    assert history.target.step == 8
    assert history.held.startswith("window: ")


def test_idle_run_follows_a_rollback_while_rows_wait(tmp_path, clicks, monkeypatch):
    notes = Notes()
    run = started(tmp_path, clicks, notes, delta_rows=50)
    clicks.send(100)
    stream = run.stream()
    next(stream), next(stream)
    ledger_of(tmp_path).rollback(1)
    stop_when(run, lambda: any("was rolled back" in note for note in notes.notes))
    assert list(stream) == []
    assert any("1.2 was rolled back to 1.1" in note for note in notes.notes)
