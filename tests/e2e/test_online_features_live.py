"""Real servers that look up a user's features in a real Redis: every dialect, and what happens without the store."""

import http.client
import json
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from freshet_serving.processor.extensions.online_features.feast_keys import (
    feature_field,
    key_serializer,
    timestamp_field,
)
from freshet_serving.serving.client.client import Client
from tests.e2e.dialects import DIALECTS
from tests.e2e.servers import LiveServer
from tests.processor.extensions.online_features.proxies import HeldProxy
from tests.processor.extensions.online_features.value_messages import value_of
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.serving.access.keyed import Keyed
from tests.support.looked_up import FEAST, HASHES, reference, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, needs_redis]

ITEMS, F2, F3 = [1, 2, 3], [0.5, 1.5, 2.5], [0.0, 1.0, -1.0]
USER = {"tags": ["a", "c"], "f0": 1.5, "f1": -3}
WITH_FEATURES = reference(ITEMS, F2, F3, **USER)
WITHOUT = reference(ITEMS, F2, F3)
SENT = {"user": ITEMS, "f2": F2, "f3": F3}


@pytest.fixture
def redis_server():
    server = RedisServer().start()
    with server.client() as client:
        client.hset("user:7", mapping={"tags": json.dumps(USER["tags"]), "f0": "1.5", "f1": "-3"})
        key = key_serializer("shop", ["user_id"], ["int64"])([(7).to_bytes(8, "little")])
        values = [("string_list", USER["tags"]), ("double", 1.5), ("int64", -3)]
        fields = {
            feature_field("profile", name): value_of(kind, content).SerializeToString()
            for name, (kind, content) in zip(USER, values)
        }
        client.hset(key, mapping=fields | {timestamp_field("profile"): b"\x08\x80\xa0\xc9\xc9\x06"})
    yield server
    server.close()


def live(folder, port, *options, section=HASHES, workers="1"):
    write_package(folder / "repository", section=section)
    where = ("--online-store", f"main=redis://127.0.0.1:{port}/0", "--workers", workers)
    return LiveServer(folder / "repository", *where, *options, log=folder / "serve.log")


def ask(server, headers=None, **more):
    """(scores, headers) in TensorFlow Serving's columnar form."""
    body = json.dumps({"inputs": SENT | {"user_id": [7]} | more}).encode()
    status, headers, data = server.request("POST", "/v1/models/small:predict", body, headers)
    assert status == 200, data
    return np.ravel(json.loads(data)["outputs"]), {name.lower(): value for name, value in headers.items()}


def columns(user=7):
    return {
        "user": np.array(ITEMS), "f2": np.array(F2, np.float32), "f3": np.array(F3, np.float32),
        "user_id": np.array([user]),
    }  # fmt: skip


def features_missing(address):
    with Client(address, timeout_s=10) as client:
        return [client.predict("small", columns(user)).features_missing.get("f0") for user in (7, 9)]


def check_explanations(server):
    """An explanation looks up what its request leaves out, as the scores are computed with it."""
    for user, missing in ((7, {}), (9, {"tags": "not_found", "f0": "not_found", "f1": "not_found"})):
        scores, _ = ask(server, user_id=[user])

        def explained(user=user):
            status, answer = server.post_json("/admin/models/small/explain", {"inputs": SENT | {"user_id": [user]}})
            assert status == 200, answer
            # The explainer's own connection may not be open yet.
            return answer if "late" not in answer["features_missing"].values() else None

        answer = until(explained)
        assert answer["features_missing"] == missing
        np.testing.assert_allclose(answer["sides"][0]["outputs"]["score"], np.ravel(scores)[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("section", "workers"), [(HASHES, "1"), (HASHES, "2"), pytest.param(FEAST, "1", marks=pytest.mark.long)]
)
def test_every_dialect_and_explanation_looks_up_what_it_leaves_out(tmp_path, redis_server, section, workers):
    with live(tmp_path, redis_server.port, section=section, workers=workers) as server:
        for _ in range(3):
            scores, headers = ask(server)
            np.testing.assert_allclose(scores, WITH_FEATURES, atol=1e-5)
            assert "x-features-missing" not in headers
            sent, _ = ask(server, tags=[USER["tags"]], f0=[1.5], f1=[-3.0])
            assert np.array_equal(sent, scores)
        for name, predict in DIALECTS.items():
            answer = np.ravel(predict(server, "small", columns()).output("score"))
            np.testing.assert_allclose(answer, WITH_FEATURES, atol=1e-5, err_msg=name)
        for scheme in ("http", "grpc"):
            assert features_missing(server.address(scheme)) == [None, "not_found"]
        status, _, text = server.request("POST", "/v1/models/small:predict", json.dumps({"inputs": SENT}).encode())
        assert status == 400
        assert b"'user_id', by which online features 'user' fill it" in text
        until(
            lambda: b'freshet_model_feature_values_total{model="small",status="present"}' in server.get("/metrics")[2]
        )
        check_explanations(server)


@pytest.mark.long
def test_requests_get_defaults_without_the_store(tmp_path, redis_server):
    redis_server.kill()
    with live(tmp_path, redis_server.port) as server:
        scores, headers = ask(server)
        np.testing.assert_allclose(scores, WITHOUT, atol=1e-5)
        assert headers["x-features-missing"] == "tags=late, f0=late, f1=late"
        assert b'freshet_model_feature_values_total{model="small",status="late"} 3.0' in server.get("/metrics")[2]
        redis_server.start()
        with redis_server.client() as client:
            client.hset("user:7", mapping={"tags": '["a", "c"]', "f0": "1.5", "f1": "abc"})
        until(lambda: ask(server)[1].get("x-features-missing") == "f1=damaged")
        with redis_server.client() as client:
            client.delete("user:7")
            client.set("user:7", "no hash")
        until(lambda: "tags=damaged" in ask(server)[1].get("x-features-missing", ""))
        with redis_server.client() as client:
            client.delete("user:7")
            client.hset("user:7", mapping={"tags": '["a", "c"]', "f0": "1.5", "f1": "-3"})
        until(lambda: "x-features-missing" not in ask(server)[1])
        np.testing.assert_allclose(ask(server)[0], WITH_FEATURES, atol=1e-5)


@pytest.mark.long
def test_used_values_are_recorded_and_return_on_request_with_their_scope(tmp_path, redis_server):
    keyed, folder = Keyed(tmp_path), tmp_path / "recorded"
    wanted = {"x-return-features": "1"}
    allowed, others = keyed.add("both", ["predict", "features"]), keyed.add("ctr", ["predict"])
    options = ("--api-keys", str(keyed.path), "--record", str(folder), "--record-share", "1.0")
    with live(tmp_path, redis_server.port, *options) as server:
        # On a busy machine the store's first answers may be late.
        until(lambda: "x-features-missing" not in ask(server, allowed)[1])
        assert "x-features" not in ask(server, allowed)[1]
        found = json.loads(ask(server, allowed | wanted)[1]["x-features"])
        assert found == {"tags": [["a", "c"]], "f0": [1.5], "f1": [-3.0]}
        body = json.dumps({"inputs": SENT | {"user_id": [7]}}).encode()
        status, _, data = server.request("POST", "/v1/models/small:predict", body, others | wanted)
        assert (status, b"the scope features" in data) == (403, True)
        assert "x-features" not in ask(server, others)[1]
        ask(server, allowed, f0=[9.0])
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    firsts = [row for row in rows if row["freshet.row"] == 0][-2:]
    assert [row["f0"] for row in firsts] == [1.5, 9.0]
    assert [row["f1"] for row in firsts] == [-3.0, -3.0]
    assert firsts[0]["tags"] == [b"a", b"c"]
    # A key that no feature reads is not recorded.
    assert not any("user_id" in name for name in rows[0])


ASKED, TIMEOUT_MS, ROOM_S, HUGE_NBYTES = 40, 100, 0.02, 8 << 20


def ask_all(server, started=100):
    """Ask for a user each; returns reasons of f0 by count, and the seconds that requests took."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    reasons, times_s = Counter(), []
    for user in range(started, started + ASKED):
        body = json.dumps({"inputs": SENT | {"user_id": [user]}})
        began_s = time.monotonic()
        connection.request("POST", "/v1/models/small:predict", body)
        reply = connection.getresponse()
        data = reply.read()
        times_s.append(time.monotonic() - began_s)
        assert reply.status == 200, data
        missing = dict(part.split("=") for part in (reply.getheader("x-features-missing") or "f0=none").split(", "))
        reasons[missing.get("f0", "none")] += 1
        if missing == {"f0": "none"} or set(missing) == set(USER):
            wanted = WITH_FEATURES if missing == {"f0": "none"} else WITHOUT
            np.testing.assert_allclose(np.ravel(json.loads(data)["outputs"]), wanted, atol=1e-5)
    connection.close()
    return reasons, times_s


@pytest.mark.long
def test_store_in_trouble_fails_and_delays_no_request(tmp_path, redis_server):
    users, section = [f"user:{user}" for user in range(100, 100 + ASKED)], HASHES | {"timeout_ms": TIMEOUT_MS}
    values = {"tags": json.dumps(USER["tags"]), "f0": "1.5", "f1": "-3"}

    def write(client):
        with client.pipeline() as pipeline:
            for user in users:
                pipeline.delete(user)
                pipeline.hset(user, mapping=values)
            pipeline.execute()

    with redis_server.client() as client:
        write(client)
    with HeldProxy(redis_server.port) as proxy, live(tmp_path, proxy.port, section=section) as server:
        until(lambda: ask_all(server)[0]["none"] == ASKED)
        proxy.open.clear()
        # What is cached for a second is served for it.
        until(lambda: ask_all(server)[0]["late"] == ASKED)
        reasons, times_s = ask_all(server)
        assert reasons == {"late": ASKED}
        # Half of them: a machine that is busy may delay any.
        assert np.median(times_s) <= TIMEOUT_MS / 1000 + ROOM_S
        proxy.open.set()
        until(lambda: ask_all(server)[0]["none"] == ASKED)
        with redis_server.client() as client, client.pipeline() as pipeline:
            for user in users:
                pipeline.delete(user)
                pipeline.set(user, "no hash")
            pipeline.execute()
        until(lambda: ask_all(server)[0]["damaged"] == ASKED)
        with redis_server.client() as client:
            write(client)
            for user in users[::20]:
                client.hset(user, "f0", "x" * HUGE_NBYTES)
        until(lambda: (found := ask_all(server)[0])["damaged"] and found["none"] >= ASKED // 2)
        redis_server.kill()
        until(lambda: ask_all(server)[0]["late"] == ASKED)
        redis_server.start()
        with redis_server.client() as client:
            write(client)
        until(lambda: ask_all(server)[0]["none"] == ASKED)
        told = server.get("/metrics")[2]
    for status in (b"late", b"damaged", b"present"):
        assert b'freshet_model_feature_values_total{model="small",status="%b"}' % status in told
