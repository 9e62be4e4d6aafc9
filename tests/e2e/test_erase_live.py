"""A user who is erased from a live server: no state, sample, recording or file has the id, in either layout."""

import json

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

import pyarrow.parquet as pq

from freshet_serving import Client
from tests.e2e.servers import LiveServer
from tests.models.zoo.sequence_models import make_batch, of_request, publish_untrained
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow]

LENGTH, CANDIDATES, OTHER = 512, 8, 3
USER = 8_264_917_350_823
"""Digits that do not repeat: a metric of 7/9 is shown with fifteen sevens."""
ROUTE = "/admin/models/m/erase"
ADMIN = {"authorization": "Bearer all"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("erase")
    publish_untrained("sasrec", folder, LENGTH, buckets=(1, CANDIDATES), units=32, layers=2)
    return folder


def request_of(user):
    request = of_request(make_batch(CANDIDATES, (LENGTH,), seed=3, items=38).columns, CANDIDATES)
    return request | {"user": np.array([user])}


def erase(live, body, headers=ADMIN):
    headers = {"content-type": "application/json"} | headers
    status, _, reply = live.request("POST", ROUTE, json.dumps(body), headers, admin=True)
    return status, json.loads(reply)


def metric(live, family):
    lines = live.get("/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(family))


def users_in(folder):
    """How often recordings have the erased id, in any column, and how many requests others have."""
    tables = [pq.read_table(path) for path in folder.glob("*.parquet")]
    values = [value for table in tables for column in table.itercolumns() for value in column.to_pylist()]
    return values.count(USER), sum(table["user"].to_pylist().count(OTHER) for table in tables)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_erased_user_is_nowhere_in_the_server(repository, tmp_path, workers):
    recordings, scratch, log = tmp_path / "recordings", tmp_path / "scratch", tmp_path / "serve.log"
    scratch.mkdir()
    options = ["--workers", workers, "--user-state-mb", "8", "--record", str(recordings), "--record-share", "1"]
    options += ["--scratch", str(scratch), "--admin-token", "all"]
    with LiveServer(repository, *options, log=log) as live:

        def ask(user):
            # Each on a connection of its own, so by any worker.
            with Client(f"http://127.0.0.1:{live.http_port}") as client:
                return client.predict("m", request_of(user)).outputs["score"]

        before = ask(USER)
        for _ in range(3):
            ask(USER)
            ask(OTHER)
        until(lambda: metric(live, "freshet_model_user_state_hits_total") >= 2)
        assert erase(live, {"key": USER}, {})[0] == 401
        status, reply = erase(live, {"key": USER})
        assert (status, reply["inputs"]) == (200, ["user"])
        assert reply["erased"]["recorded_requests"] == 4
        assert reply["erased"]["user_states"] >= 1
        assert reply["erased"]["kept_requests"] >= 4
        assert not any(" process" in place or "failed" in place for place in reply["not_reached"])
        erased, others = users_in(recordings)
        assert (erased, others) == (0, 3)
        _, again = erase(live, {"key": str(USER)})
        assert not any(again["erased"].values())
        example = live.request("GET", "/admin/models/m/signature", headers=ADMIN, admin=True)[2]
        audit = live.request("GET", "/admin/audit", headers=ADMIN, admin=True)[2]
        hits = metric(live, "freshet_model_user_state_hits_total")
        # The user's state is computed anew; the other's is still there.
        np.testing.assert_allclose(ask(USER), before, rtol=1e-5)
        ask(OTHER)
        until(lambda: metric(live, "freshet_model_user_state_hits_total") == hits + 1)
        erase(live, {"key": USER})
        shown = [log.read_bytes(), live.get("/metrics")[2], audit, example, json.dumps(reply).encode()]
    written = [path.read_bytes() for folder in (recordings, scratch) for path in folder.rglob("*") if path.is_file()]
    shows = dict(zip(("log", "metrics", "audit", "example", "reply", "log at its end"), (*shown, log.read_bytes())))
    assert [place for place, text in shows.items() if str(USER).encode() in text] == []
    assert not any(USER.to_bytes(8, "little") in data for data in written)
    assert users_in(recordings)[0] == 0
