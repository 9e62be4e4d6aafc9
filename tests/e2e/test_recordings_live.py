"""Recordings of a live server hold the values that scores were computed of, and training reads them as such."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Client, Publisher
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.streams.open_rows import open_rows
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Ragged, Strings
from tests.e2e.servers import LiveServer
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, needs_redis]

ITEMS, USERS, EVENTS = 20, 6, 1200
CATEGORIES, SEGMENTS = ["shoes", "hats", "öl"], ["new", "loyal"]
HISTORY, WATCHED = "history.item", "history.watched"
MISSING = {"category": "", "price": float("nan"), "tags": [], "shelves": [], "maker": 0}


def item(number, content=0):
    """The features of an item: content 0 is what the model was trained with."""
    return {
        "category": CATEGORIES[(number + content) % 3],
        "price": float(np.float32(number / 7 + content)),
        "tags": [f"t{n}" for n in range((number + content) % 4)],
        "shelves": list(range(number % 3 + content)),
        "maker": 100 + number + content,
    }


def user(number):
    history = [n % ITEMS for n in range(number, 2 * number)]
    seconds = [n / 4 for n in range(number)]
    return {"age": 20.5 + number, "segment": SEGMENTS[number % 2], "hist_items": history, "hist_seconds": seconds}


def write_tables(folder):
    random = np.random.default_rng(5)
    users, items = random.integers(0, USERS, EVENTS), random.integers(0, ITEMS, EVENTS)
    of_users, of_items = [user(u) for u in range(USERS)], [item(n) for n in range(ITEMS)]
    events = {"user_id": users, "item_id": items, "clicked": (random.random(EVENTS) < 0.3).astype(float)}
    events |= {name: [of_users[u][name] for u in users] for name in of_users[0]}
    pq.write_table(pa.table(events), folder / "events.parquet")
    rows = {"item_id": list(range(ITEMS))} | {name: [one[name] for one in of_items] for name in of_items[0]}
    pq.write_table(pa.table(rows), folder / "items.parquet")


def config(folder, path, label, hist_items, hist_seconds, **publish):
    """A training file; of recordings it differs in path, label and the names of lists of events."""
    return {
        "model": {"name": "ctr", "arch": "deepfm", "hidden": [8]},
        "data": {"path": str(path), "label": label},
        "features": {
            "user_id": {"kind": "id", "side": "user", "dim": 4},
            "age": {"kind": "float", "side": "user"},
            "segment": {"kind": "string", "side": "user", "dim": 4},
            "item_id": {"kind": "id", "side": "item", "dim": 4},
            "category": {"kind": "string", "side": "item", "dim": 4},
            "price": {"kind": "float", "side": "item"},
            "dear": {"from": "price", "transform": "bucketize", "boundaries": [0.5, 1.5], "dim": 4},
            "tags": {"kind": "strings", "side": "item", "dim": 4, "combiner": "mean", "max_length": 2},
            "shelves": {"kind": "ids", "side": "item", "dim": 4, "combiner": "sum"},
            "maker": {"kind": "id", "side": "item", "dim": 4},
        },
        "entities": {
            "item": {
                "key": "item_id",
                "path": str(folder / "items.parquet"),
                "columns": ["category", "price", "dear", "tags", "shelves", "maker"],
            }
        },
        "online_features": {
            "user": {
                "key": "user_id",
                "format": "hash",
                "features": ["age", "segment", "hist_items", "hist_seconds"],
                "types": {
                    "age": "double",
                    "segment": "string",
                    "hist_items": "int64_list",
                    "hist_seconds": "double_list",
                },
                "names": {"hist_items": HISTORY, "hist_seconds": WATCHED},
                "timeout_ms": 5000,
            }
        },
        "sequences": {
            "history": {
                "columns": {"item": hist_items},
                "tables": {"item": "item_id"},
                "floats": {"watched": hist_seconds},
                "max_length": 8,
            }
        },
        "publish": {"repository": str(folder / "repository"), "full_rows": 0, "delta_rows": 0, **publish},
    }


def trained(raw):
    raw["model"]["arch"] = "stca"
    run = TrainingRun(parse_config(raw))
    try:
        run.full()
    finally:
        run.stop()


def rows_of(column):
    if isinstance(column, Ragged):
        flat, splits = column.values.tolist(), column.row_splits.tolist()
        return [[_text(v) for v in flat[a:b]] for a, b in zip(splits, splits[1:])]
    return [_text(v) for v in column.tolist()] if isinstance(column, Strings) else column.tolist()


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    write_tables(folder)
    trained(config(folder, folder / "events.parquet", "clicked", "hist_items", "hist_seconds"))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_training_on_recordings_reads_the_values_as_they_were_used(shop, tmp_path, workers):
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    redis = RedisServer().start()
    with redis.client() as client:
        for number in range(USERS):
            values = {name: json.dumps(v) if isinstance(v, list) else v for name, v in user(number).items()}
            client.hset(f"user:{number}", mapping=values)
    folder, options = tmp_path / "recordings", ("--record-share", "1.0", "--workers", workers)
    store = ("--online-store", f"main=redis://127.0.0.1:{redis.port}/0", "--record", str(folder))
    asked, content = [], dict.fromkeys(range(ITEMS), 0)
    try:
        with LiveServer(tmp_path / "repository", *store, *options, log=tmp_path / "serve.log") as live:

            def ask(number, items, **more):
                inputs = {"user_id": [number], "item_id": items, **more}
                body = json.dumps({"inputs": inputs})
                status, headers, data = live.request("POST", "/v1/models/ctr:predict", body)
                assert (status, "x-features-missing" in headers) == (200, False), data
                scores = np.ravel(json.loads(data)["outputs"]).tolist()
                for n, score in zip(items, scores):
                    values = item(n, content[n]) if n < ITEMS else MISSING
                    values = values | ({"price": more["price"][items.index(n)]} if more else {})
                    score = float(np.float32(score))
                    asked.append({"item_id": n, **values, "tags": values["tags"][:2], **user(number), "score": score})

            def ask_binary(number, items):
                with Client(f"http://127.0.0.1:{live.http_port}") as asking:
                    inputs = {"user_id": np.array([number]), "item_id": np.array(items)}
                    scores = asking.predict("ctr", inputs).scores().tolist()
                for n, score in zip(items, scores):
                    values = item(n, content[n])
                    asked.append({"item_id": n, **values, "tags": values["tags"][:2], **user(number), "score": score})

            ask(3, [0, 1, 5, ITEMS + 7])
            for items in ([9, 1], [10, 12]):
                ask_binary(5, items)
            ask(4, [7, 2], price=[0.25, 3.5])
            publisher = Publisher(tmp_path / "repository", "ctr")
            changed = [item(n, 1) for n in (1, 5)]
            columns = {name: [one[name] for one in changed] for name in changed[0]}
            generation = str(publisher.publish(entities={"item": ([1, 5], columns)}))
            content |= {1: 1, 5: 1}
            probe = json.dumps({"inputs": {"user_id": [0], "item_id": [0], "age": [0.0]}})
            until(lambda: live.request("POST", "/v1/models/ctr:predict", probe)[1]["x-model-generation"] == generation)
            ask(3, [0, 1, 5])
    finally:
        redis.close()
    lists = [f"freshet.input.{name}" for name in (HISTORY, WATCHED)]
    raw = config(tmp_path, folder, "freshet.output.score", *lists)
    raw["model"]["arch"] = "stca"
    (batch,) = open_rows(parse_config(raw), tmp_path / "none").batches(1000)
    read = {name: rows_of(column) for name, column in batch.columns.items()}
    read |= {"score": batch.label.tolist(), "hist_items": read[HISTORY], "hist_seconds": read[WATCHED]}
    # The probes sent an age of their own.
    found = [{name: read[name][n] for name in asked[0]} for n, age in enumerate(read["age"]) if age]
    assert sorted(map(repr, found)) == sorted(map(repr, asked))
    if workers == "1":
        # No table has the price that item 1 was scored with first: only the recordings do.
        (tmp_path / "again").mkdir()
        raw["publish"]["repository"] = str(tmp_path / "again")
        trained(raw)
