"""Popular and new items are served from what a run has learned, deltas bring them, and rollbacks take them back."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.training import retrieval_trainer
from freshet_serving.models.training.retrieval_run import RetrievalRun
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.event_files import EventFiles, stream_to
from tests.models.training.streams import Notes, differing, snapshot

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

USERS, ITEMS = 30, 20


class Pairs(EventFiles):
    """Rows in which users choose items."""

    def rows(self, rows, item=None):
        items = 100 + self.random.integers(0, ITEMS, rows)
        if item is not None:
            items[self.random.random(rows) < 0.4] = item
        return {
            "user": self.random.integers(0, USERS, rows),
            "item": items,
            "ts": 1.7e9 + 3600.0 * (self.sent + np.arange(rows)),
            "clicked": (self.random.random(rows) < 0.8).astype(float),
        }


def pairs(tmp_path, name="followed", follow=True, time="ts", entity=False, full_rows=400, kind="id", **train):
    raw = {
        "model": {"name": name, "arch": "two_tower", "hidden": [8], "vector_dim": 4, "negatives": 16},
        "data": {"path": str(tmp_path / "events"), "label": "clicked", "follow": follow, "time": time},
        "features": {
            "user": {"kind": "id", "side": "user", "dim": 4},
            "item": {"kind": kind, "side": "item", "dim": 4},
        },
        "train": {"batch_rows": 100, "seed": 3, "learning_rate": 0.05, "optimizer": "adagrad"} | train,
        "publish": {"repository": str(tmp_path / "repository"), "full_rows": full_rows, "delta_rows": 200},
    }
    if not time:
        raw["data"].pop("time")
    if entity:
        raw["entities"] = {"item": {"key": "item", "path": str(tmp_path / "items.parquet"), "filters": ["stock"]}}
    return RetrievalRun(parse_config(raw), reporter=Notes())


def top(tmp_path, k=3, **inputs):
    request = PredictRequest("followed", inputs, top_items=k)
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        return processor.process(request).outputs["item_ids"][0].tolist()


def by_source(tmp_path, source, k=3):
    return top(tmp_path, k, source=Strings.of([source]))


@pytest.fixture
def events(tmp_path):
    return Pairs(tmp_path / "events")


def test_two_towers_that_follow_count_what_a_run_over_their_files_counts(tmp_path, events):
    events.send(400)
    events.send(200)
    whole = pairs(tmp_path, "whole", follow=False, epochs=2)
    whole.full()
    assert stream_to(whole, 600) == ["1.1"]
    run = pairs(tmp_path, epochs=2)
    run.full()
    events.send(300)
    assert stream_to(run, 900) == ["1.1", "1.2", "1.3"]
    # Continued by another process, from what its checkpoint has.
    again = pairs(tmp_path, epochs=2)
    events.send(100, item=7)
    assert stream_to(again, 1000) == ["1.4"]
    whole = pairs(tmp_path, "whole", follow=False, epochs=2)
    assert stream_to(whole, 1000)[-1] == "1.3"
    own = whole.trainer.sources.table.export()
    assert 7 in own.keys
    assert len(own.keys) == ITEMS + 1
    assert differing(snapshot(again.trainer), snapshot(whole.trainer)) == []
    assert again.trainer.sources.saved() == whole.trainer.sources.saved()
    # A new version goes on counting.
    version = RetrievalRun(again.config, reporter=Notes(), start_options=StartOptions(new_version=True))
    assert differing(snapshot(version.trainer), snapshot(again.trainer)) == []
    assert by_source(tmp_path, "new", 1) == [7]


def test_deltas_make_items_popular_and_new_and_a_rollback_takes_it_back(tmp_path, events):
    events.send(600)
    run = pairs(tmp_path, full_rows=600)
    run.full()
    before = by_source(tmp_path, "popular", 30), by_source(tmp_path, "new", 30)
    assert sorted(before[0]) == sorted(before[1]) == [*range(100, 100 + ITEMS)]
    events.send(200, item=7)
    stream_to(run, 800)
    assert by_source(tmp_path, "popular", 1) == by_source(tmp_path, "new", 1) == [7]
    assert 7 not in top(tmp_path, 30, like=np.array([7]))
    assert len(top(tmp_path, 30, like=np.array([7]))) == ITEMS
    repository = Repository(tmp_path / "repository")
    ChangeLog.of(repository.version("followed", 1), whole=True).rollback(0)
    assert (by_source(tmp_path, "popular", 30), by_source(tmp_path, "new", 30)) == before
    assert top(tmp_path, 30, like=np.array([7])) == []
    # So does a run that continues.
    again = pairs(tmp_path, full_rows=600)
    events.send(200)
    stream_to(again, 1000)
    assert 7 not in again.trainer.sources.table.export().keys


def test_described_items_without_events_are_new_and_least_popular(tmp_path, events):
    events.send(400)
    path = events.folder / "00000.parquet"
    table = pq.read_table(path)
    names = [f"item {item}" for item in table["item"].to_pylist()]
    pq.write_table(table.set_column(1, "item", [names]), path)
    described = [*sorted(set(names)), "item new"]
    pq.write_table(pa.table({"item": described, "stock": np.arange(len(described))}), tmp_path / "items.parquet")
    pairs(tmp_path, follow=False, entity=True, kind="string").full()
    assert by_source(tmp_path, "new", 1) == ["item new"]
    popular = by_source(tmp_path, "popular", 30)
    assert set(popular) == set(described)
    assert popular[-1] == "item new"
    like = top(tmp_path, 30, like=Strings.of(["item 104"]))
    assert set(like) == set(described) - {"item 104"}


def test_a_checkpoint_of_an_older_release_goes_on_and_its_next_version_has_sources(tmp_path, events, monkeypatch):
    events.send(600)
    with monkeypatch.context() as older:
        older.setattr(retrieval_trainer, "_as_sent", lambda manifest, item: False)
        run = pairs(tmp_path)
        run.full()
        assert run.trainer.sources is None
        assert stream_to(run, 600) == ["1.1"]
    with pytest.raises(BadInput, match="has no 'new', only 'model', 'like'"):
        by_source(tmp_path, "new")
    again = pairs(tmp_path)
    events.send(200)
    # The version has no such table, and its deltas have none.
    assert stream_to(again, 800) == ["1.2"]
    version = RetrievalRun(again.config, reporter=Notes(), start_options=StartOptions(new_version=True))
    assert version.state.version == 2
    counted = by_source(tmp_path, "new", 30)
    assert set(counted) == set(by_source(tmp_path, "popular", 30)) == set(version.trainer.sources.table.export().keys)


def test_a_log_without_times_has_no_new_items(tmp_path, events):
    events.send(400)
    pairs(tmp_path, follow=False, time="").full()
    assert len(by_source(tmp_path, "popular", 30)) == ITEMS
    with pytest.raises(BadInput, match="has no 'new', only 'model', 'like', 'popular'"):
        by_source(tmp_path, "new")
