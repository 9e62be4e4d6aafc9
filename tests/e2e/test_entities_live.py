"""Requests of keys alone on a live server, while deltas of features, rows and weights come and are rolled back."""

import http.client
import json
import random
import threading
from dataclasses import replace

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest

from freshet_serving import Client, Publisher
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.serving.access.keyed import Keyed
from tests.support import entities
from tests.support.packages import make_inputs, make_weights, reference, rows_of, tag_id
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row and every feature gets a value that tells the delta, so all scores move"),
]

STEPS, LAST = 24, 4
USERS = list(range(20))
PROBE = [0, 3, 7, 3, 12, 55]
TAG_MODEL = dict.fromkeys([tag_id(t) for t in "abc"], 0)
FEATURED = [0, 3, 7, 12]


def expected(step):
    """Scores of the probe once delta `step` is served, by plain numpy: nothing of them is read from the server."""
    contents = dict.fromkeys(entities.KNOWN, 0) | (dict.fromkeys(FEATURED, step) if step else {})
    sent = entities.sent(PROBE, contents)
    splits = sent["tags"].row_splits
    words = [tag.decode() for tag in sent["tags"].values.tolist()]
    tags = [words[a:b] for a, b in zip(splits, splits[1:])]
    rows = dict.fromkeys(USERS, step)
    return reference(rows, TAG_MODEL, make_weights(step), PROBE, tags, sent["floats"])


def publish(publisher, step):
    """Publishes delta `step` with everything that tells it."""
    publisher.take_served()
    return publisher.publish(
        rows={"user": (np.array(USERS), rows_of(USERS, step))},
        dense=make_weights(step),
        entities={"profile": (FEATURED, entities.columns(FEATURED, step))},
    )


@pytest.mark.parametrize("layout", [ALONE, ("--workers", "2")], ids=["alone", "workers"])
def test_every_reply_is_of_the_one_generation_that_it_names(tmp_path, layout):
    entities.write_package(tmp_path / "repository")
    wanted = {"1.0": expected(0)}
    problems, seen, stop = [], set(), threading.Event()

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)
        while not stop.is_set():
            try:
                scores, generation = live.predict("small", {"user": PROBE}, connection)
            except Exception as error:
                problems.append(error)
                return
            seen.add(generation)
            if not np.allclose(np.ravel(scores), wanted[generation], atol=1e-5):
                problems.append((generation, scores, wanted[generation]))
        connection.close()

    with LiveServer(tmp_path / "repository", *layout, log=tmp_path / "serve.log") as live:
        publisher = Publisher(tmp_path / "repository", "small")
        clients = [threading.Thread(target=client) for _ in range(3)]
        for thread in clients:
            thread.start()
        try:
            for step in range(1, STEPS + 1):
                wanted[f"1.{step}"] = expected(step)
                assert str(publish(publisher, step)) == f"1.{step}"
                until(lambda step=step: f"1.{step}" in seen or problems)
                if step % LAST == 0:
                    undone = live.post_json("/admin/models/small/rollback", {"generation": f"1.{step - 2}"})
                    assert undone[0] == 200, undone
        finally:
            stop.set()
            for thread in clients:
                thread.join()
        assert not problems, problems[:3]
        assert {f"1.{step}" for step in range(1, STEPS + 1)} <= seen


def test_keys_alone_are_answered_in_every_form_of_json(tmp_path):
    entities.write_package(tmp_path / "repository")
    with LiveServer(tmp_path / "repository", *ALONE, log=tmp_path / "serve.log") as live:
        wanted = expected(0)
        columns, _ = live.predict("small", {"user": PROBE})
        np.testing.assert_allclose(np.ravel(columns), wanted, atol=1e-5)
        connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)
        rows = json.dumps({"instances": [{"user": user} for user in PROBE]})
        connection.request("POST", "/v1/models/small:predict", rows, {"content-type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        np.testing.assert_allclose(np.ravel(reply["predictions"]), wanted, atol=1e-5)
        body = {"inputs": [{"name": "user", "shape": [len(PROBE)], "datatype": "INT64", "data": PROBE}]}
        connection.request("POST", "/v2/models/small/infer", json.dumps(body), {"content-type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        np.testing.assert_allclose(reply["outputs"][0]["data"], wanted, atol=1e-5)
        connection.request("POST", "/v1/models/small:predict", json.dumps({"inputs": {"tags": [["a"]]}}))
        answer = connection.getresponse()
        assert answer.status == 400
        assert "user" in json.loads(answer.read())["error"]
        connection.close()
        floats = make_inputs(PROBE)["floats"]
        over, _ = live.predict("small", {"user": PROBE, "floats": floats.tolist()})
        assert not np.allclose(np.ravel(over), wanted, atol=1e-5)


@pytest.mark.parametrize("policy", ["drop", "mark"])
def test_unknown_keys_are_named_in_every_protocol(tmp_path, policy):
    entities.write_package(tmp_path / "repository", entity=replace(entities.ENTITY, unknown=policy))
    kept = PROBE[:4] if policy == "drop" else PROBE
    wanted, header = expected(0)[: len(kept)], "x-dropped-rows" if policy == "drop" else "x-unknown-rows"
    with LiveServer(tmp_path / "repository", *ALONE, log=tmp_path / "serve.log") as live:
        for body in ({"inputs": {"user": PROBE}}, {"instances": [{"user": user} for user in PROBE]}):
            status, headers, data = live.request("POST", "/v1/models/small:predict", json.dumps(body))
            assert (status, headers[header]) == (200, "4-5")
            np.testing.assert_allclose(np.ravel(next(iter(json.loads(data).values()))), wanted, atol=1e-5)
        for address in (f"http://127.0.0.1:{live.http_port}", f"grpc://127.0.0.1:{live.grpc_port}"):
            with Client(address) as client:
                found = client.predict("small", {"user": np.array(PROBE, np.int64)})
            rows = found.dropped_rows if policy == "drop" else found.unknown_rows
            assert rows == (4, 5)
            np.testing.assert_allclose(found.scores(), wanted, atol=1e-5)


KEPT = replace(entities.ENTITY, text_nbytes=64)


def rpcs():
    """(method, request, reply) of the calls that predict, each for users 0 and 55."""
    predict = message("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = "small"
    tensor = predict.inputs["user"]
    tensor.dtype = 9
    tensor.tensor_shape.dim.add(size=2)
    tensor.int64_val.extend([0, 55])
    infer = message("inference.ModelInferRequest")(model_name="small")
    tensor = infer.inputs.add(name="user", datatype="INT64", shape=[2])
    tensor.contents.int64_contents.extend([0, 55])
    return [
        ("/inference.GRPCInferenceService/ModelInfer", infer, message("inference.ModelInferResponse")),
        ("/tensorflow.serving.PredictionService/Predict", predict, message("tensorflow.serving.PredictResponse")),
    ]


def shown(headers):
    """The values in x-features."""
    found = json.loads(headers["x-features"])
    return found["tags"], found["floats"]


@pytest.mark.parametrize("layout", [ALONE, ("--workers", "2")], ids=["alone", "workers"])
def test_values_of_entities_return_in_every_protocol_with_their_scope(tmp_path, layout):
    keyed = Keyed(tmp_path)
    allowed, others = keyed.add("both", ["predict", "features"]), keyed.add("ctr", ["predict"])
    entities.write_package(tmp_path / "repository", entity=KEPT)
    tags, floats = entities.columns([0])["tags"], entities.columns([0])["floats"].tolist()
    wanted = ([tags[0][:3], []], [floats[0], [None] * 4])
    columns, rows = {"inputs": {"user": [0, 55]}}, {"instances": [{"user": 0}, {"user": 55}]}
    kserve_body = {"inputs": [{"name": "user", "shape": [2], "datatype": "INT64", "data": [0, 55]}]}
    asked = {"x-return-features": "1"}
    with LiveServer(
        tmp_path / "repository", *layout, "--api-keys", str(keyed.path), log=tmp_path / "serve.log"
    ) as live:
        for path, body in (
            ("/v1/models/small:predict", columns),
            ("/v1/models/small:predict", rows),
            ("/v2/models/small/infer", kserve_body),
        ):
            status, headers, data = live.request("POST", path, json.dumps(body), allowed | asked)
            assert status == 200, data
            assert shown(headers) == wanted
            assert "x-features" not in live.request("POST", path, json.dumps(body), allowed)[1]
            status, headers, data = live.request("POST", path, json.dumps(body), others | asked)
            assert (status, b"the scope features" in data, "x-features" in headers) == (403, True, False)
        # What is sent is not looked up.
        body = {"inputs": {"user": [0], "tags": [["z"]]}}
        found = live.request("POST", "/v1/models/small:predict", json.dumps(body), allowed | asked)[1]["x-features"]
        assert json.loads(found).keys() == {"floats"}
        for method, request, reply in rpcs():
            with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
                call = channel.unary_unary(method, type(request).SerializeToString, reply.FromString)
                _, of = call.with_call(request, metadata=[*(allowed | asked).items()], timeout=60)
                assert shown(dict(of.trailing_metadata())) == wanted
                with pytest.raises(grpc.RpcError, match="the scope features"):
                    call(request, metadata=[*(others | asked).items()], timeout=60)
        for address in (f"http://127.0.0.1:{live.http_port}", f"grpc://127.0.0.1:{live.grpc_port}"):
            with Client(address) as client:
                inputs = {"user": np.array([0, 55], np.int64)}
                found = client.predict("small", inputs, headers=allowed | asked).features
                assert (found["tags"], found["floats"]) == wanted
                assert client.predict("small", inputs, headers=allowed).features == {}
        with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
            infer = rpcs()[0][1]
            stream = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                type(infer).SerializeToString,
                message("inference.ModelStreamInferResponse").FromString,
            )
            (answer,) = stream(iter([infer]), metadata=[*(allowed | asked).items()], timeout=60)
            assert not answer.error_message
            parameters = answer.infer_response.parameters
            assert shown({"x-features": parameters["features"].string_param}) == wanted


@pytest.mark.parametrize("layout", [ALONE, ("--workers", "2")], ids=["alone", "workers"])
def test_recorded_rows_are_of_the_generation_that_they_name(tmp_path, layout):
    entities.write_package(tmp_path / "repository", entity=KEPT)
    contents, stop, problems = {"1.0": dict.fromkeys(entities.KNOWN, 0)}, threading.Event(), []

    def client(number):
        connection, draw = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60), random.Random(number)
        while not stop.is_set():
            users = [draw.randrange(30) for _ in range(draw.randint(1, 300))]
            connection.request("POST", "/v1/models/small:predict", json.dumps({"inputs": {"user": users}}))
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                problems.append(reply.status)
        connection.close()

    options = ("--delta-guard", "off", "--record", str(tmp_path / "recordings"), "--record-share", "1.0")
    with LiveServer(tmp_path / "repository", *layout, *options, log=tmp_path / "serve.log") as live:
        clients = [threading.Thread(target=client, args=(n,)) for n in range(2)]
        for thread in clients:
            thread.start()
        publisher, line, draw = Publisher(tmp_path / "repository", "small"), ["1.0"], random.Random("deltas")
        try:
            for step in range(1, 13):
                publisher.take_served()
                users = draw.sample(range(20), 5)
                one = str(publisher.publish(entities={"profile": (users, entities.columns(users, step))}))
                contents[one] = contents[line[-1]] | dict.fromkeys(users, step)
                line.append(one)
                until(lambda one=one: live.generation("small") == one)
                if step % 4 == 0:
                    undone = live.post_json("/admin/models/small/rollback", {"generation": line[-3]})
                    assert undone[0] == 200, undone
                    del line[-2:]
        finally:
            stop.set()
            for thread in clients:
                thread.join()
    assert not problems
    named = set()
    for path in (tmp_path / "recordings").glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            named.add(row["freshet.generation"])
            content = contents[row["freshet.generation"]].get(row["user"])
            had = entities.columns([] if content is None else [row["user"]], content)
            assert [tag.decode() for tag in row["tags"]] == [tag for tags in had["tags"] for tag in tags[:3]]
            floats = had["floats"][0] if len(had["floats"]) else np.full(4, np.nan, np.float32)
            np.testing.assert_array_equal(np.array([row[f"f{n}"] for n in range(4)], np.float32), floats)
    assert len(named) > 3
