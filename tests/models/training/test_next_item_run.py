"""A network of the next item is trained from an event log, published with deltas, and served."""

import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training import loop, resolved_config
from freshet_serving.models.training.defaults import NEXT_ITEM_STEPS
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.models.training.next_item_logs import ITEMS, next_config, raw_config, write_log

pytestmark = pytest.mark.tensorflow


def served_scores(repository, history, times=None):
    with Processor(ProcessorConfig(str(repository))) as processor:
        processor.poll()
        inputs = {"item_id": np.arange(100, 100 + ITEMS), "history.item": Ragged.of([history])}
        if times is not None:
            inputs["history.time"] = Ragged.of([times])
        reply = processor.process(PredictRequest("next", inputs))
        del inputs["item_id"]
        top = processor.process(PredictRequest("next", inputs, top_items=ITEMS)).outputs
        return reply.outputs["score"].reshape(-1), reply.outputs["user_vector"], top


class Killed(Exception):
    """Raised in place of a step."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("steps", [9, *(pytest.param(steps, marks=pytest.mark.long) for steps in (3, 13))])
def test_killed_run_continues_to_the_same_weights(steps, tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    short = {"train": {"epochs": 2}, "publish": {"delta_rows": 30}}
    (tmp_path / "whole").mkdir()
    whole = NextItemRun(next_config(tmp_path, **short), checkpoints=tmp_path / "whole")
    whole.run()
    shutil.rmtree(tmp_path / "repository")

    def start():
        return NextItemRun(next_config(tmp_path, **short), checkpoints=tmp_path / "killed")

    (tmp_path / "killed").mkdir()
    killed, taken = start(), []
    learn = killed.trainer.learn

    def learn_until_killed(work):
        if len(taken) == steps:
            raise Killed
        taken.append(work)
        return learn(work)

    monkeypatch.setattr(killed.trainer, "learn", learn_until_killed)
    with pytest.raises(Killed):
        killed.run()
    resumed = start()
    resumed.run()
    assert resumed.trainer.steps == whole.trainer.steps
    found, wanted = resumed.trainer.items.export(), whole.trainer.items.export()
    assert np.array_equal(found.keys, wanted.keys)
    assert np.array_equal(found.rows, wanted.rows)
    assert np.array_equal(found.counts, wanted.counts)


def test_epochs_left_out_follow_from_the_number_of_histories(tmp_path):
    write_log(tmp_path / "log.csv")
    raw = raw_config(tmp_path, train={"batch_rows": 1})
    del raw["train"]["epochs"]
    users = {line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()[1:721]}
    assert NextItemRun(parse_config(raw)).config.train.epochs == -(-NEXT_ITEM_STEPS // len(users))


def test_histories_are_counted_only_to_choose_epochs(tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    monkeypatch.delattr(resolved_config, "count_histories")
    assert NextItemRun(next_config(tmp_path)).config.train.epochs == 30


@pytest.mark.long
def test_floats_of_new_events_are_read_as_those_of_earlier_ones(tmp_path):
    write_log(tmp_path / "log.csv")
    raw = raw_config(tmp_path, train={"epochs": 1, "holdout": 0.0})
    raw["sequences"]["history"]["floats"] = {"watched": "seconds", "liked": "label"}
    run, seen = NextItemRun(parse_config(raw)), []
    learn = run.trainer.learn
    run.trainer.learn = lambda work: seen.append(work.batch.columns) or learn(work)
    run.run()
    floats = [c for c in run.trainer.manifest.sequences[0].columns if not c.table]
    assert [(c.name, c.scale != 1, c.mean) for c in floats] == [
        ("history.watched", True, floats[0].mean),
        ("history.liked", False, 1),
    ]
    assert run.state.step == 2
    for columns in seen:
        # The step of a user's event in the log, from its item.
        items, watched = columns["history.item"], columns["history.watched"]
        assert items.row_splits.tolist() == watched.row_splits.tolist()
        for a, b in zip(items.row_splits, items.row_splits[1:]):
            assert ((np.diff(items.values[a:b]) % ITEMS) == np.diff(watched.values[a:b]) * 2).all()
        assert set(columns["history.liked"].values.tolist()) == {1.0}


@pytest.mark.parametrize("arch", [pytest.param("sasrec_next", marks=pytest.mark.long), "hstu_next"])
def test_next_item_is_learned_streamed_and_served(arch, tmp_path):
    write_log(tmp_path / "log.csv")
    run = NextItemRun(next_config(tmp_path, arch))
    summary = run.run()
    assert run.ranked.result().hit_rate == 1.0
    assert run.ranked.result().ndcg > 0.5
    assert run.ranked.targets == 72
    assert run.status().held_out == {"hit_rate": 1.0, "ndcg": run.ranked.result().ndcg}
    assert run.streamed_ranks.targets
    assert summary.generation.step == 2
    history = [100, 101, 102, 103]
    times = [1000, 2000, 3000, 4000] if arch == "hstu_next" else None
    scores, users, top = served_scores(tmp_path / "repository", history, times)
    assert int(scores.argmax()) == 4
    rows = dict(zip((export := run.trainer.items.export()).keys.tolist(), export.rows))
    assert np.allclose(scores, [users[0] @ rows[100 + i] for i in range(ITEMS)], atol=1e-5)
    # The best items of the table are those of all sent as candidates, without the user's own.
    order = [item for item in np.argsort(-scores).tolist() if item + 100 not in history]
    assert top["item_ids"].tolist() == [[item + 100 for item in order]]
    assert np.allclose(top["scores"][0], scores[order], atol=1e-5)
