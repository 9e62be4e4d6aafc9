import math
from dataclasses import replace

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training import loop as running
from freshet_serving.models.training.early_stopping import best_epoch
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.generation import Generation
from tests.models.training.streams import MixedSource, Notes, differing, make_config, snapshot
from tests.models.training.test_loop import Disk, Killed

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS = 256
# Rates under which the rows are soon known by heart, so that the best epoch is not the last.
SOON = {
    "learning_rate": 1.0, "dense_learning_rate": 0.05, "holdout": 0.25, "batch_rows": 32, "schedule": "linear",
    "schedule_steps": 40, "warmup_steps": 3, "clip_norm": 0.05, "dense_clip_norm": 0.5, "dense_weight_decay": 0.01,
}  # fmt: skip


def config(folder, **settings):
    return make_config(folder, full_rows=0, delta_rows=0, **SOON, **settings)


def stopped(folder, **settings):
    """A run that stops early -> (the run, what it noted)."""
    notes = Notes()
    run = TrainingRun(config(folder, epochs=6, patience=1, **settings), MixedSource(ROWS), reporter=notes)
    run.full()
    return run, notes.notes


def test_best_epoch_is_the_first_best_ignoring_nan():
    assert best_epoch([0.5, 0.7, 0.7]) == 1
    assert best_epoch([math.nan, 0.1, math.nan]) == 1
    assert best_epoch([math.nan, math.nan]) == 1


def test_early_stopped_run_equals_one_of_the_best_epochs_bitwise(tmp_path):
    run, notes = stopped(tmp_path / "stopped", stop_by="log_loss")
    scores = run.state.epoch_scores
    best = best_epoch(scores)
    assert len(scores) == best + 2 < 6
    told = [note for note in notes if note.startswith("epoch ")]
    assert len(told) == len(scores)
    assert told[0].startswith("epoch 1: held out AUC 0.")
    assert told[-1].endswith(f"; stopping with the weights of epoch {best + 1}")

    plain = TrainingRun(config(tmp_path / "plain", epochs=best + 1), MixedSource(ROWS))
    assert plain.full() == Generation(1, 0)
    assert differing(snapshot(run.trainer), snapshot(plain.trainer)) == []
    assert run.held_out.auc() == plain.held_out.auc()
    assert len(run.held_out) == 64


def test_rows_with_equal_labels_end_at_the_last_epoch(tmp_path):
    source = MixedSource(ROWS)
    source._all = replace(source._all, label=source._all.label * 0)
    run = TrainingRun(config(tmp_path, epochs=2, patience=1), source)
    run.full()
    assert [math.isnan(score) for score in run.state.epoch_scores] == [True, True]


def killed_and_resumed(folder, commit):
    """The trainer after a run that was killed ahead of a commit and run again; None where there is no such commit."""

    def die(n):
        if n == commit:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, die)
        try:
            stopped(folder)
        except Killed:
            pass
        else:
            return None
    return stopped(folder)[0].trainer


@pytest.mark.long
def test_run_killed_before_any_commit_ends_bitwise_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)
    run, _ = stopped(tmp_path / "whole")
    assert best_epoch(run.state.epoch_scores) < len(run.state.epoch_scores) - 1
    wanted, commit = snapshot(run.trainer), 0
    while (trainer := killed_and_resumed(tmp_path / str(commit), commit)) is not None:
        assert differing(snapshot(trainer), wanted) == [], commit
        commit += 3
    assert commit > 10


def test_run_killed_after_an_epoch_decision_ends_bitwise_equal(tmp_path):
    wanted = snapshot(stopped(tmp_path / "whole")[0].trainer)
    for commit in (1, 2):
        trainer = killed_and_resumed(tmp_path / str(commit), commit)
        assert differing(snapshot(trainer), wanted) == []
