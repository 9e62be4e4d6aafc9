"""A network of the next item is trained from an event log, published with deltas, and served."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.training import loop, resolved_config
from freshet_serving.models.training.defaults import EVENTS_AN_EPOCH, NEXT_ITEM_STEPS
from freshet_serving.models.training.fingerprint import fingerprint
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.models.training.next_item_logs import ITEMS, next_config, raw_config, write_log
from tests.serving.fakes import send
from tests.serving.http.data_app import serve

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

OLD = {"dropout": 0.0, "layers": 1}
"""Options of a file, in which older releases filled in nothing."""


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


def write_popular_log(path, late=80):
    """Write 400 events of items 100 to 109, the higher the more, and then events of a new item, 7."""
    random = np.random.default_rng(1)
    items = [100 + int(n) for n in np.sqrt(random.random(400)) * 10] + [7] * late
    lines = [f"{n % 50},{item},1,{1000 + n},0" for n, item in enumerate(items)]
    path.write_text("\n".join(["user_id,item_id,label,ts,seconds", *lines]) + "\n")
    return np.array(items)


def popular_config(folder, **sections):
    short = {"train": {"epochs": 2, "holdout": 0.0}, "publish": {"full_rows": 400, "delta_rows": 40}}
    return next_config(folder, **{name: short.get(name, {}) | sections.get(name, {}) for name in {*short, *sections}})


def top_over_http(repository, history):
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        app = serve(processor.predictor)[0]
        body = json.dumps({"inputs": {"history.item": [history]}}).encode()
        reply = send(app, "POST", "/v1/models/next:predict", body, {"x-top-items": "4"})
        assert reply.status == 200, reply.body
        return json.loads(reply.body)["outputs"]["item_ids"][0]


def test_user_without_history_gets_what_is_popular_and_deltas_move_it(tmp_path):
    items = write_popular_log(tmp_path / "log.csv", late=0)
    NextItemRun(popular_config(tmp_path)).run()
    kinds, counts = np.unique(items, return_counts=True)
    most = kinds[np.argsort(-counts)].tolist()
    found = top_over_http(tmp_path / "repository", [])
    # Later events count more, so neighbours may change places.
    assert set(found) <= set(most[:5])
    assert found != sorted(kinds.tolist())[:4]
    # A history of unknown items alone is answered, too.
    assert set(top_over_http(tmp_path / "repository", [555_555])) <= set(kinds.tolist())
    write_popular_log(tmp_path / "log.csv")
    NextItemRun(popular_config(tmp_path)).run()
    assert top_over_http(tmp_path / "repository", [])[0] == 7


def test_rows_of_fewer_bits_have_popularity_and_no_successors(tmp_path):
    write_popular_log(tmp_path / "log.csv", late=0)
    run = NextItemRun(popular_config(tmp_path, publish={"table_dtype": "int8"}))
    assert (run.config.model.options["popularity"], run.config.model.options["successors"]) == (True, 0)
    run.run()
    assert set(top_over_http(tmp_path / "repository", [])) <= set(range(105, 110))


def test_checkpoint_from_before_counts_continues_without_them(tmp_path):
    write_popular_log(tmp_path / "log.csv")
    plain = {"model": {"popularity": False, "successors": 0}}
    first = NextItemRun(popular_config(tmp_path, **plain))
    assert "model.popularity" not in first.state.settings
    without = replace(first.config, model=replace(first.config.model, options=OLD))
    assert first.state.fingerprint == fingerprint(without)
    first.full()
    resumed = NextItemRun(popular_config(tmp_path))
    assert resumed.trainer.items.dim == 16
    assert resumed.trainer.counts is None
    resumed.run()
    (tmp_path / "next").mkdir()
    again = NextItemRun(
        popular_config(tmp_path), checkpoints=tmp_path / "next", start_options=StartOptions(new_version=True)
    )
    assert again.trainer.items.dim == 16


class Killed(Exception):
    """Raised in place of a step."""


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


def test_epochs_left_out_follow_from_the_number_of_histories(tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    raw = raw_config(tmp_path, train={"batch_rows": 1})
    del raw["train"]["epochs"]
    users = {line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()[1:721]}
    by_events = round(720 / ITEMS / EVENTS_AN_EPOCH)
    assert by_events < -(-NEXT_ITEM_STEPS // len(users))
    assert NextItemRun(parse_config(raw)).config.train.epochs == by_events
    # They are counted only for that.
    monkeypatch.delattr(resolved_config, "count_distinct")
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
    given = {"item_id": np.arange(100, 100 + ITEMS), "history.item": Ragged.of([history] * ITEMS)}
    if times is not None:
        given["history.time"] = Ragged.of([times] * ITEMS)
    assert np.allclose(scores, run.trainer.score(given), atol=1e-5)
    # Only what has followed the newest events has more than a product.
    products = np.array([users[0] @ rows[100 + i] for i in range(ITEMS)])
    assert np.flatnonzero(~np.isclose(scores, products, atol=1e-5)).tolist() == [4]
    # The best items of the table are those of all sent as candidates, without the user's own.
    order = [item for item in np.argsort(-scores).tolist() if item + 100 not in history]
    assert top["item_ids"].tolist() == [[item + 100 for item in order]]
    assert np.allclose(top["scores"][0], scores[order], atol=1e-5)
