"""Next-item networks follow a stream: what they learn and count is what a run over the same files learns and counts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.streams.followed_source import followed_source
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.generation import Generation
from tests.models.training.streams import differing, snapshot
from tests.models.training.test_loop_follow import Notes
from tests.models.training.test_loop_follow_histories import stream_to
from tests.serving.fakes import send
from tests.serving.http.data_app import serve

pytestmark = pytest.mark.tensorflow

USERS, ITEMS = 25, 12


class Steps:
    """Files of events: each user steps through the items one by one, from a place of their own."""

    def __init__(self, folder, late=False):
        self.folder, self.random, self.files, self.late = folder, np.random.default_rng(5), 0, late
        self.sent, self.done = 0, np.random.default_rng(3).integers(0, ITEMS, USERS)
        folder.mkdir()

    def rows(self, rows, item=None):
        user = self.random.integers(0, USERS, rows)
        items = np.full(rows, item)
        if item is None:
            for at, who in enumerate(user):
                items[at] = 100 + self.done[who] % ITEMS
                self.done[who] += 1
        times = 1.7e9 + self.sent + np.arange(rows)
        if self.late:
            times -= np.where(self.random.random(rows) < 0.2, 40, 0)
        self.sent += rows
        return {"user": user, "item": items.astype(np.int64), "ts": times, "clicked": np.ones(rows)}

    def send(self, rows, item=None):
        path = self.folder / f"{self.files:05}.parquet"
        pq.write_table(pa.table(self.rows(rows, item)), path.with_name("." + path.name))
        path.with_name("." + path.name).rename(path)
        self.files += 1


def config_of(tmp_path, follow=True, name="followed", arch="sasrec_next", **publish):
    return parse_config(
        {
            "model": {"name": name, "arch": arch, "dropout": 0.0, "layers": 1},
            "data": {"path": str(tmp_path / "events"), "label": "clicked", "time": "ts", "follow": follow},
            "features": {
                "user": {"kind": "id", "side": "user"},
                "item": {"kind": "id", "dim": 8, "side": "item"},
            },
            "sequences": {
                "h": {
                    "columns": {"item": "item"},
                    "tables": {"item": "item"},
                    "from_events": "user",
                    "ties": "file",
                    "max_length": 6,
                }
                | ({"time": "ts"} if arch == "hstu_next" else {})
            },
            "train": {"epochs": 2, "batch_rows": 100, "learning_rate": 0.01, "dense_learning_rate": 0.01, "seed": 1},
            "publish": {"repository": str(tmp_path / "repository"), "full_rows": 400, "delta_rows": 200} | publish,
        }
    )


def begin(config):
    return NextItemRun(config, reporter=Notes())


def top_of(tmp_path, history, generation=None, count=ITEMS):
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        app = serve(processor.predictor)[0]
        body = json.dumps({"inputs": {"h.item": [history]}}).encode()
        reply = send(app, "POST", "/v1/models/followed:predict", body, {"x-top-items": str(count)})
        assert reply.status == 200, reply.body
        return json.loads(reply.body)["outputs"]["item_ids"][0]


@pytest.fixture(params=[False, True], ids=["in-order", "late"])
def events(tmp_path, request):
    return Steps(tmp_path / "events", request.param)


def test_a_followed_run_learns_what_a_run_over_its_files_learns(tmp_path, events):
    events.send(400)
    events.send(200)
    # Stored data have to be in order.
    stored = {"follow": events.late, "name": "whole"}
    whole = begin(config_of(tmp_path, **stored))
    whole.full()
    assert stream_to(whole, 600) == ["1.1"]
    run = begin(config_of(tmp_path))
    assert followed_source(run.source).endless
    assert run.full() == Generation(1, 0)
    events.send(300)
    assert stream_to(run, 900) == ["1.1", "1.2", "1.3"]
    # Continued by another process, from what its checkpoint has of histories and counts.
    again = begin(config_of(tmp_path))
    events.send(200)
    assert stream_to(again, 1100) == ["1.4"]
    whole = begin(config_of(tmp_path, **stored))
    assert stream_to(whole, 1100)[-1] == "1.4"
    assert whole.state.position == 1100
    assert differing(snapshot(again.trainer), snapshot(whole.trainer)) == []
