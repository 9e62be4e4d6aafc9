"""A user table that a Redis has when served: requests with the user alone get the scores of rows that were joined."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Strings
from freshet_serving.serving.client.client import Client
from tests.e2e.dialects import DIALECTS
from tests.e2e.servers import ALONE, LiveServer
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long, needs_redis]

ROWS, ITEMS, FIRST_S = 160, 12, 1_700_000_000
USERS = {
    # Two rows of one user: training reads each as of its time, the store has the newest.
    "user_id": ["ann", "bob", "cyd", "ann"],
    "changed_at": [FIRST_S, FIRST_S, FIRST_S, FIRST_S + ROWS // 2],
    "age": [31.5, 40.0, None, 32.5],
    "city": ["Bern", "Basel", "Bern", "Thun"],
    "segment": [3, 4, 9, 3],
}
NEWEST = {
    "ann": {"age": 32.5, "city": "Thun", "segment": 3},
    "bob": {"age": 40.0, "city": "Basel", "segment": 4},
    "cyd": {"city": "Bern", "segment": 9},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("shop"), np.random.default_rng(2)
    users = np.array(["ann", "bob", "cyd", "dan"])[random.integers(0, 4, ROWS)]
    log = {"user_id": users, "item_id": random.integers(0, ITEMS, ROWS), "ts": FIRST_S + np.arange(ROWS)}
    log["click"] = (random.random(ROWS) < np.where(users == "ann", 0.8, 0.3)).astype(np.float64)
    pq.write_table(pa.table(log), folder / "log.parquet")
    pq.write_table(pa.table(USERS), folder / "users.parquet")
    user_table = {"key": "user_id", "path": str(folder / "users.parquet"), "time": "changed_at", "serve": "online"}
    trained = TrainingRun(
        parse_config({
            "model": {"name": "shop", "arch": "deepfm", "hidden": [8]},
            "data": {"path": str(folder / "log.parquet"), "label": "click", "time": "ts"},
            "features": {"item_id": {"kind": "id", "side": "item", "dim": 4, "counts": True}},
            "user_table": {"user": user_table},
            # Nothing is to be late, however loaded the machine is.
            "online_features": {"user": {"store": "main", "format": "hash", "timeout_ms": 2000}},
            "train": {"batch_rows": 16, "optimizer": "adagrad", "learning_rate": 0.3, "seed": 1},
            "publish": {"repository": str(folder / "repository")},
        })
    )  # fmt: skip
    trained.run()
    return trained


@pytest.fixture(scope="module")
def live(run, tmp_path_factory):
    store = RedisServer().start()
    with store.client() as client:
        for name, values in NEWEST.items():
            client.hset(f"user:{name}", mapping={column: str(value) for column, value in values.items()})
    store_option = ("--online-store", f"main={store.url}")
    log = tmp_path_factory.mktemp("served") / "serve.log"
    with LiveServer(run.config.publish.repository, *ALONE, *store_option, log=log) as server:
        yield server
    store.close()


def trained_scores(run, user, candidates):
    """The trainer's scores of candidates beside the user's columns as the log would have them."""
    newest, rows = NEWEST.get(user, {}), len(candidates)
    columns = {
        "item_id": candidates,
        "age": np.full(rows, newest.get("age", np.nan), np.float32),
        "city": Strings.of([newest.get("city", "")] * rows),
        "segment": np.full(rows, newest.get("segment", 0), np.int64),
    }
    return run.trainer.score(columns)


@pytest.mark.parametrize("user", [*NEWEST, "dan"])
def test_user_alone_gets_the_scores_of_the_joined_columns(user, run, live):
    candidates = np.arange(ITEMS)
    expected = trained_scores(run, user, candidates)
    inputs = {"user_id": [user], "item_id": candidates}
    for name, ask in DIALECTS.items():
        scores = np.ravel(ask(live, "shop", inputs).output("score"))
        np.testing.assert_allclose(scores, expected, atol=1e-5, err_msg=name)
    for scheme in ("http", "grpc"):
        with Client(live.address(scheme)) as client:
            prediction = client.predict("shop", {"user_id": np.array([user]), "item_id": candidates})
            assert bool(prediction.features_missing) == (user in ("cyd", "dan"))


def test_columns_that_a_request_sends_win(run, live):
    candidates = np.arange(ITEMS)
    sent = {"user_id": ["bob"], "city": ["Thun"], "item_id": candidates}
    scores = np.ravel(DIALECTS["tensorflow columns"](live, "shop", sent).output("score"))
    columns = {
        "item_id": candidates,
        "age": np.full(ITEMS, 40, np.float32),
        "city": Strings.of(["Thun"] * ITEMS),
        "segment": np.full(ITEMS, 4),
    }
    np.testing.assert_allclose(scores, run.trainer.score(columns), atol=1e-5)
