"""Runs that follow a stream with histories of its events: what they learn is what a run over the same files learns."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.streams.followed_source import followed_source
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.generation import Generation
from tests.models.training.event_files import Events, stop_when, stream_to
from tests.models.training.streams import Notes, differing, snapshot

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def config_of(tmp_path, follow=True, name="followed", sequence=None, features=None, **publish):
    return parse_config(
        {
            "model": {"name": name, "arch": "din", "hidden": [8]},
            "data": {"path": str(tmp_path / "events"), "label": "clicked", "time": "ts", "follow": follow},
            "features": {
                "user": {"kind": "id", "dim": 4, "side": "user"},
                "item": {"kind": "id", "dim": 4, "side": "item"},
                "last": {"kind": "id", "from": "h.item", "take": -1},
            }
            | (features or {}),
            "sequences": {
                "h": {
                    "columns": {"item": "item", "kind": "kind"},
                    "tables": {"item": "item"},
                    "from_events": "user",
                    "max_length": 6,
                    "dim": 4,
                }
                | (sequence or {})
            },
            "train": {"batch_rows": 100, "learning_rate": 0.1, "shuffle_rows": 0, "seed": 1},
            "publish": {"repository": str(tmp_path / "repository"), "full_rows": 400, "delta_rows": 200} | publish,
        }
    )


def begin(config):
    return TrainingRun(config, reporter=Notes())


def started(tmp_path, events):
    """A run that has published a version of the first of 600 rows."""
    events.send(600)
    run = begin(config_of(tmp_path))
    run.full()
    return run


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path / "events", late=True)


@pytest.mark.parametrize("late", [False, True], ids=["in-order", "late"])
def test_a_followed_run_learns_what_a_run_over_its_files_learns(tmp_path, late):
    events = Events(tmp_path / "events", late)
    events.send(400)
    events.send(200)
    # Run again over the folder as it has grown, by which first weights do not differ.
    if not events.late:
        whole = begin(config_of(tmp_path, follow=False, name="whole"))
        whole.full()
        assert stream_to(whole, 600) == ["1.1"]
    run = begin(config_of(tmp_path))
    assert isinstance(run.source, SequenceSource)
    assert followed_source(run.source).endless
    assert run.full() == Generation(1, 0)
    events.send(300)
    assert stream_to(run, 900) == ["1.1", "1.2", "1.3"]
    # Continued by another process, from what its checkpoint has of the histories.
    again = begin(config_of(tmp_path))
    events.send(200)
    assert stream_to(again, 1100) == ["1.4"]
    if events.late:
        return
    whole = begin(config_of(tmp_path, follow=False, name="whole"))
    assert stream_to(whole, 1100)[-1] == "1.4"
    assert whole.state.position == 1100
    assert differing(snapshot(again.trainer), snapshot(whole.trainer)) == []


def test_a_run_goes_on_without_the_rows_before_its_checkpoint(tmp_path, events, monkeypatch):
    run = started(tmp_path, events)
    assert stream_to(run, 600) == ["1.1"]
    read = []
    again = begin(config_of(tmp_path))
    source = again.source.events
    take = source.batches
    monkeypatch.setattr(source, "batches", lambda rows, start=0: read.append(start) or take(rows, start))
    events.send(200)
    assert stream_to(again, 800) == ["1.2"]
    assert read == []
    assert len(again.source._furthest["h"]) == 25


def test_a_newer_version_is_judged_on_rows_read_again(tmp_path, events):
    events.send(600)
    config = config_of(tmp_path, version_rows=300)
    run = begin(replace(config, publish=replace(config.publish, version_rows=300)))
    run.full()
    events.send(300)
    generations = stream_to(run, 900)
    assert "2.0" in generations
    assert not any("cannot be read" in line for line in run._report.notes)


def test_a_history_of_other_rules_does_not_use_a_checkpoint(tmp_path, events):
    run = started(tmp_path, events)
    stream_to(run, 600)
    saved = run._checkpoints.saved_histories
    assert int(saved(600)["h"][-1]["position"][0]) == 600
    rows = followed_source(run.source)
    read = {}
    for ttl_s in (0.0, 50.0):
        config = config_of(tmp_path, sequence={"ttl_s": ttl_s})
        source = SequenceSource(rows, config.features)
        source.saved = saved
        batch = next(source.batches(50, 550))
        read[ttl_s] = batch.columns["h.item"].row_splits[-1]
        assert source._restored("h", {"h": source._no_events("h")}, saved(600)) == (not ttl_s)
    assert 0 < read[50.0] < read[0.0]


@pytest.mark.parametrize("rows_after", [0, 200])
def test_an_erased_user_is_in_no_newer_checkpoint(tmp_path, events, rows_after):
    from freshet_serving.processor.repository import Erasures

    run = started(tmp_path, events)
    erasures = Erasures.of_model(tmp_path / "repository", "followed")
    erasures.ask("7")
    events.send(rows_after) if rows_after else None
    stop_when(run, lambda: run.state.position >= 600 + rows_after and not erasures.asked())
    for _ in run.stream():
        pass
    assert erasures.asked() == {}
    whole = run._checkpoints.saved_histories(600 + rows_after)["h"][0]
    rows = dict.fromkeys(range(25), np.empty(0, int))
    rows |= zip(whole["keys"].tolist(), np.split(whole["events"][:, 1], np.cumsum(whole["counts"])))
    # What the user has done since is known again.
    assert (rows[7] >= 600).all()
    assert rows[8].min() < 600


def test_an_erasure_waits_for_a_store_that_is_away(tmp_path, events):
    from freshet_serving.processor.errors import NotReady
    from freshet_serving.processor.repository import Erasures

    run = started(tmp_path, events)
    tried = []

    def erase(users, state):
        tried.append(users.tolist())
        if len(tried) == 1:
            raise NotReady("the store is away")

    run.source.erase_stored = erase
    erasures = Erasures.of_model(tmp_path / "repository", "followed")
    erasures.ask("7")
    run._checkpoints.save_full(run.trainer, run.state)
    assert erasures.asked()
    run._checkpoints.save_full(run.trainer, run.state)
    assert erasures.asked() == {}
    assert tried[0] == tried[1]
    assert 7 in tried[0]
