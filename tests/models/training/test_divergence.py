"""A run that diverges ends at once, with a line that leads to its rates; what it saved and published is finite."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.training.checkpoint import RunState
from freshet_serving.models.training.divergence import check_loss, check_weights
from freshet_serving.processor.errors import BadInput

STATE = RunState("", {}, position=340, version=2, step=7)


def trainer(weights=1.0, moments=1.0, factor=1.0, rates=None):
    state = SimpleNamespace(optimizer=lambda: {"0000": np.array(3), "first": np.full(2, moments, np.float32)})
    return SimpleNamespace(
        steps=31,
        rates=rates or {"user": 0.5},
        rate_factor=factor,
        settings=SimpleNamespace(learning_rate=0.5, dense_learning_rate=0.25),
        manifest=SimpleNamespace(model="ctr"),
        dense=SimpleNamespace(state=state, weights=lambda: {"kernel": np.full((2, 2), weights, np.float32)}),
    )


def changes(rows=1.0, slots=1.0):
    none = np.empty(0, np.int64)
    return {"user": Changes(none, np.full((2, 3), rows, np.float32), np.full((2, 1), slots, np.float32), *[none] * 3)}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_message_names_step_loss_rates_and_the_last_publication(loss):
    with pytest.raises(BadInput) as raised:
        check_loss(loss, trainer(factor=0.1, rates={"user": 0.5, "item": 3e6}), lambda: STATE)
    assert str(raised.value) == (
        f"training diverged at step 31: the loss is {loss}, with train.learning_rate 0.5, train.dense_learning_rate"
        " 0.25, tables.item.learning_rate 3e+06, all times 0.1 by the schedule; ctr 2.7 was published last. Lower"
        " these rates or set train.clip_norm and train.dense_clip_norm, and run the command again, which continues"
        " after row 340; if it diverges again, --new-version --from-scratch trains from new weights"
    )


def test_without_a_checkpoint_the_run_begins_again():
    with pytest.raises(BadInput, match=r"no version of this run was published.*continues with the first row"):
        check_loss(math.nan, trainer(), lambda: None)
    unpublished = replace(STATE, version=0, epoch=1)
    with pytest.raises(BadInput, match=r"no version of this run was published.*after row 340 of epoch 2"):
        check_loss(math.nan, trainer(), lambda: unpublished)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("of", ["rows", "slots", "weights", "moments"])
def test_number_that_is_not_finite_is_found_wherever_it_is(of, number):
    tables, network = ({of: number}, {}) if of in ("rows", "slots") else ({}, {of: number})
    with pytest.raises(BadInput, match="'user'" if tables else "network's weights"):
        check_weights(changes(**tables), trainer(**network), lambda: STATE)


def test_row_too_large_for_a_delta_has_diverged():
    with pytest.raises(BadInput, match="the last loss was finite, but rows of table 'user'"):
        check_weights(changes(1e20), trainer(), lambda: STATE)


def test_finite_numbers_pass():
    check_loss(1e30, trainer(), pytest.fail)
    check_weights(changes(), trainer(), pytest.fail)


@pytest.fixture
def run(quick, tmp_path):
    from freshet_serving.models.training.loop import TrainingRun
    from tests.models.training.streams import MixedSource, make_config

    return TrainingRun(make_config(tmp_path), MixedSource(584), checkpoints=tmp_path / "checkpoints")


@pytest.mark.tensorflow
@pytest.mark.parametrize("step", [3, 6])
def test_run_ends_at_the_step_whose_loss_is_not_finite(run, step, monkeypatch):
    learn = run.trainer.learn
    monkeypatch.setattr(run.trainer, "learn", lambda work: math.nan if run.trainer.steps == step else learn(work))
    with pytest.raises(BadInput, match=f"diverged at step {step}: the loss is nan"):
        run.run()
    assert run.trainer.steps == step


@pytest.mark.tensorflow
@pytest.mark.parametrize(("step", "published"), [(5, "no version of this run"), (7, "mixed 1.0")])
def test_rows_that_are_not_finite_are_never_saved(run, step, published, monkeypatch):
    learn, table = run.trainer.learn, run.trainer.own["user"]

    def learn_too_fast(work):
        loss = learn(work)
        if run.trainer.steps == step:
            first = np.array([0])
            table.update(first, np.full((1, table.dim), math.nan, np.float32), np.ones(1, np.int64), 1.0, step)
        return loss

    monkeypatch.setattr(run.trainer, "learn", learn_too_fast)
    # These are the last steps before the full version and before a delta, so that no later loss is spoiled.
    with pytest.raises(BadInput, match=f"diverged at step {step}: the last loss was finite.*{published} was published"):
        run.run()
    saved = run._checkpoints.newest()
    assert saved is None or (saved.version, saved.step) == (1, 0)
