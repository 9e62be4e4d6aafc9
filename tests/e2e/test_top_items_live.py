"""The best items of a whole table over the network: every dialect, both layouts, and what is refused by name."""

import json
import threading

import grpc
import numpy as np
import pytest

from freshet_serving import Client, Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import write_package
from tests.support.ranked import MODEL, best, ranked_delta, write_ranked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta has a matrix of its own, so all scores move"),
]

ITEMS = range(3000)
USERS = [[3, 4, 5], [], [7]]
K = 6
TOP = {"x-top-items": str(K)}
LEAST = -(2**53) - 1
"""An id that no float holds, and the best item of users without events: their scores are equal."""


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def live(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("top")
    write_ranked(folder / "repository", [*ITEMS, LEAST])
    write_package(folder / "repository", users=range(10))
    with LiveServer(folder / "repository", *request.param, "--delta-guard", "off", log=folder / "serve.log") as server:
        server.contents, server.folder = dict.fromkeys([*ITEMS, LEAST], 0), folder
        yield server


def tensor(values):
    made = message("tensorflow.TensorProto")()
    made.dtype, made.tensor_content = 9, values.tobytes()
    for size in values.shape:
        made.tensor_shape.dim.add(size=size)
    return made


def call(live, method, request, reply):
    with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
        metadata = tuple(TOP.items())
        data = channel.unary_unary(method)(request.SerializeToString(), timeout=60, metadata=metadata)
    return message(reply).FromString(data)


def lists(users):
    ragged = Ragged.of(users)
    return {"history.item": ragged.values, "history.row_splits": ragged.row_splits}


def post(live, path, document, headers=TOP):
    status, _, data = live.request("POST", path, json.dumps(document), headers)
    assert status == 200, data
    return json.loads(data)


def tensorflow_columns(live, users):
    found = post(live, f"/v1/models/{MODEL}:predict", {"inputs": {"history.item": users}})["outputs"]
    return found["item_ids"], found["scores"]


def tensorflow_rows(live, users):
    found = post(live, f"/v1/models/{MODEL}:predict", {"instances": [{"history.item": user} for user in users]})
    rows = found["predictions"]
    return [row["item_ids"] for row in rows], [row["scores"] for row in rows]


def tensorflow_grpc(live, users):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = MODEL
    for name, values in lists(users).items():
        request.inputs[name].CopyFrom(tensor(values))
    method = "/tensorflow.serving.PredictionService/Predict"
    outputs = call(live, method, request, "tensorflow.serving.PredictResponse").outputs
    assert (outputs["item_ids"].dtype, outputs["scores"].dtype) == (9, 1)
    shape = [dim.size for dim in outputs["item_ids"].tensor_shape.dim]
    return np.reshape(outputs["item_ids"].int64_val, shape), np.reshape(outputs["scores"].float_val, shape)


def kserve_json(live, users):
    inputs = [
        {"name": name, "shape": list(values.shape), "datatype": "INT64", "data": values.tolist()}
        for name, values in lists(users).items()
    ]
    found = post(live, f"/v2/models/{MODEL}/infer", {"inputs": inputs})["outputs"]
    assert [(t["name"], t["datatype"]) for t in found] == [("item_ids", "INT64"), ("scores", "FP32")]
    return [np.reshape(t["data"], t["shape"]) for t in found]


def kserve_stream(live, users):
    request = message("inference.ModelInferRequest")(model_name=MODEL)
    for name, values in lists(users).items():
        request.inputs.add(name=name, datatype="INT64", shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        (data,) = stream(iter([request.SerializeToString()]), timeout=60, metadata=tuple(TOP.items()))
    found = message("inference.ModelStreamInferResponse").FromString(data)
    assert not found.error_message
    shape = list(found.infer_response.outputs[0].shape)
    ids, scores = found.infer_response.raw_output_contents
    return np.frombuffer(ids, "<i8").reshape(shape), np.frombuffer(scores, "<f4").reshape(shape)


def deeprec(live, users):
    assert len({len(user) for user in users}) == 1
    request = eas.Request()
    array = request.inputs["history.item"]
    array.dtype = eas.TYPES["int64"][0]
    array.array_shape.dim.extend([len(users), len(users[0])])
    array.int64_val.extend([item for user in users for item in user])
    path = f"/v1/models/{MODEL}:processor"
    status, _, data = live.request("POST", path, request.SerializeToString(), TOP)
    assert status == 200, data
    outputs = eas.Response.FromString(data).outputs
    shape = list(outputs["item_ids"].array_shape.dim)
    return np.reshape(outputs["item_ids"].int64_val, shape), np.reshape(outputs["scores"].float_val, shape)


def client(scheme, port):
    def ask(live, users):
        with Client(f"{scheme}://127.0.0.1:{getattr(live, port)}", timeout_s=60) as client:
            prediction = client.predict(MODEL, {"history.item": Ragged.of(users)}, top_items=K)
            named = client.predict(MODEL, lists(users), top_items=K, outputs=["item_ids"])
        assert prediction.generation == named.generation
        assert np.array_equal(prediction.outputs["item_ids"], named.outputs["item_ids"])
        assert list(named.outputs) == ["item_ids"]
        return prediction.outputs["item_ids"], prediction.outputs["scores"]

    return ask


DIALECTS = {
    "tensorflow columns": tensorflow_columns,
    "tensorflow rows": tensorflow_rows,
    "tensorflow gRPC": tensorflow_grpc,
    "KServe JSON": kserve_json,
    "KServe stream": kserve_stream,
    "client HTTP": client("http", "http_port"),
    "client gRPC": client("grpc", "grpc_port"),
    "DeepRec": deeprec,
}


def check(live, name, step):
    users = [[3, 4], [8, 7]] if name == "DeepRec" else USERS
    ids, scores = map(np.asarray, DIALECTS[name](live, users))
    assert ids.shape == scores.shape == (len(users), K)
    for user, history in enumerate(users):
        wanted_ids, wanted = best(live.contents, step, history, K)
        np.testing.assert_allclose(scores[user], wanted, atol=1e-5)
        assert set(ids[user].tolist()) == set(wanted_ids.tolist())


def test_every_dialect_gives_the_best_items(live):
    for name in DIALECTS:
        check(live, name, 0)
    step = live.next_step(MODEL)
    upserts, removed = [*range(1, 3000, 2), LEAST], list(range(100, 110))
    write_delta(live.folder / "upload", ranked_delta(step, upserts, [n for n in removed if not n % 2]))
    status, reply = live.upload(MODEL, (live.folder / "upload").read_bytes())
    assert status == 200, reply
    live.contents |= dict.fromkeys(upserts, step)
    for item in removed:
        if not item % 2:
            del live.contents[item]
    for name in DIALECTS:
        check(live, name, step)


def test_ids_beyond_floats_come_whole(live):
    for name, ask in DIALECTS.items():
        # Without events that have a row.
        ids, _ = ask(live, [[10**6, 10**6 + 1]])
        assert int(np.asarray(ids)[0, 0]) == LEAST, name


def test_long_binary_request_is_answered(live):
    events = np.resize(np.arange(1, 900), 20_000).tolist()
    with Client(f"http://127.0.0.1:{live.http_port}", timeout_s=60) as client:
        found = client.predict(MODEL, {"history.item": Ragged.of([events])}, top_items=K).outputs
        short = client.predict(MODEL, {"history.item": Ragged.of([events[-8:]])}, top_items=K).outputs
    assert np.array_equal(found["item_ids"], short["item_ids"])


@pytest.mark.parametrize("text", ["0", "-1", "1000000000000", "10001", "ten", "", "5.0", "0x5"])
def test_hostile_number_is_refused_by_name(live, text):
    headers = {"x-top-items": text}
    body = json.dumps({"inputs": {"history.item": [[1]]}})
    status, _, data = live.request("POST", f"/v1/models/{MODEL}:predict", body, headers)
    assert status == 400
    expected = "x-top-items: expected a whole number from 1 to 10000, got "
    assert json.loads(data)["error"].startswith(expected)
    with Client(f"grpc://127.0.0.1:{live.grpc_port}", timeout_s=60) as client, pytest.raises(BadInput, match=expected):
        client.predict(MODEL, {"history.item": Ragged.of([[1]])}, headers=headers)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_requests_that_cannot_be_ranked_are_refused(live, scheme):
    with Client(f"{scheme}://127.0.0.1:{getattr(live, scheme + '_port')}", timeout_s=60) as client:
        with pytest.raises(BadInput, match="model 'small' version 1 cannot rank all items of a table"):
            client.predict("small", {"user": np.array([1])}, top_items=K)
        with pytest.raises(BadInput, match="has no columns to filter on"):
            client.predict(MODEL, {"filter": ["{}"], "history.item": Ragged.of([[1]])}, top_items=K)
        with pytest.raises(BadInput, match="outputs"):
            client.predict(MODEL, {"history.item": Ragged.of([[1]])}, top_items=K, outputs=["score"])
        # As before without the number: candidates are required.
        with pytest.raises(BadInput, match="item"):
            client.predict(MODEL, {"history.item": Ragged.of([[1]])})


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_replies_without_ids_are_refused(live, method):
    body = json.dumps({"examples": [{"history.item": [1, 2]}]})
    status, _, data = live.request("POST", f"/v1/models/{MODEL}:{method}", body, TOP)
    assert (status, b"x-top-items: expected a predict request" in data) == (400, True)


def test_every_reply_is_of_the_generation_that_it_names(live):
    first, contents, found, uploaded = live.next_step(MODEL), {}, [], threading.Event()
    contents[first - 1] = dict(live.contents)

    def ask_on():
        with Client(f"http://127.0.0.1:{live.http_port}", timeout_s=60) as client:
            while not (uploaded.is_set() and found and step_of(found[-1]) == first + 4):
                found.append(client.predict(MODEL, {"history.item": Ragged.of([[3, 4, 5]])}, top_items=K))

    asking = [threading.Thread(target=ask_on) for _ in range(2)]
    for thread in asking:
        thread.start()
    for step in range(first, first + 5):
        write_delta(live.folder / "upload", ranked_delta(step, upserts := list(range(step % 2, 3000, 2))))
        live.contents |= dict.fromkeys(upserts, step)
        contents[step] = dict(live.contents)
        status, reply = live.upload(MODEL, (live.folder / "upload").read_bytes())
        assert status == 200, reply
    uploaded.set()
    for thread in asking:
        thread.join(60)
    different = {(p.generation, p.outputs["scores"].tobytes()): p for p in found}
    assert len({step_of(p) for p in found}) > 2
    assert len(different) == len({step_of(p) for p in found})
    for prediction in different.values():
        wanted_ids, wanted = best(contents[step_of(prediction)], step_of(prediction), [3, 4, 5], K)
        np.testing.assert_allclose(prediction.outputs["scores"][0], wanted, atol=1e-5)
        assert set(prediction.outputs["item_ids"][0].tolist()) == set(wanted_ids.tolist())


def step_of(prediction):
    return int(prediction.generation.partition(".")[2])
