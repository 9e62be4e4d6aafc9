"""The best items with filters over the network: every dialect, both layouts, and stock that goes to 0 by a delta."""

import json
import threading

import grpc
import numpy as np
import pytest

from freshet_serving import Client, Ragged
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.support.plain_filters import passes
from tests.support.ranked import MODEL, columns_of, ranked_delta, write_ranked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta has a matrix of its own, so all scores move"),
]

ITEMS, RECORDED = range(2000), range(0, 2000, 2)
K = 2000
TOP = {"x-top-items": str(K)}
HISTORY, BLOCK = [3, 4, 5], [10, 12, 11]
WANTED = {"stock": [1, None], "category": ["a", "b"], "tags": {"not": "t1"}}


def records_at(step, keys):
    columns = columns_of(keys, step)
    return {key: {name: values[n] for name, values in columns.items()} for n, key in enumerate(keys)}


class Shop:
    """What the server serves, by step."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.records = {0: records_at(0, RECORDED)}

    def change(self, keys, removed=()):
        step = max(self.records) + 1
        write_delta(self.folder / "upload", ranked_delta(step, recorded=keys, unrecorded=removed))
        after = {key: one for key, one in self.records[step - 1].items() if key not in removed}
        self.records[step] = after | records_at(step, keys)
        status, reply = self.server.upload(MODEL, (self.folder / "upload").read_bytes())
        assert status == 200, reply

    def good(self, step, wanted=WANTED, block=BLOCK):
        records = self.records[step]
        return {key for key in ITEMS if passes(wanted, records.get(key))} - {*HISTORY, *block}


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def shop(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("top")
    write_ranked(folder / "repository", ITEMS, recorded=RECORDED)
    with LiveServer(folder / "repository", *request.param, "--delta-guard", "off", log=folder / "serve.log") as server:
        yield Shop(server, folder)


def tensors():
    lists = {"history.item": np.array(HISTORY), "history.row_splits": np.array([0, 3])}
    return lists | {"block": np.array(BLOCK), "block.row_splits": np.array([0, 3])}


def call(shop, method, request, reply):
    with grpc.insecure_channel(f"127.0.0.1:{shop.server.grpc_port}") as channel:
        data, done = channel.unary_unary(method).with_call(
            request.SerializeToString(), timeout=60, metadata=tuple(TOP.items())
        )
    return message(reply).FromString(data), dict(done.trailing_metadata())


def post(shop, path, document):
    status, headers, data = shop.server.request("POST", path, json.dumps(document), TOP)
    assert status == 200, data
    return json.loads(data), headers


def tensorflow_columns(shop):
    inputs = {"history.item": [HISTORY], "filter": [json.dumps(WANTED)], "block": [BLOCK]}
    found, headers = post(shop, f"/v1/models/{MODEL}:predict", {"inputs": inputs})
    return found["outputs"]["item_ids"][0], headers


def tensorflow_rows(shop):
    row = {"history.item": HISTORY, "filter": json.dumps(WANTED), "block": BLOCK}
    found, headers = post(shop, f"/v1/models/{MODEL}:predict", {"instances": [row]})
    return found["predictions"][0]["item_ids"], headers


def tensorflow_grpc(shop):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = MODEL
    for name, values in tensors().items():
        tensor = request.inputs[name]
        tensor.dtype, tensor.tensor_content = 9, values.tobytes()
        tensor.tensor_shape.dim.add(size=len(values))
    request.inputs["filter"].dtype = 7
    request.inputs["filter"].string_val.append(json.dumps(WANTED).encode())
    request.inputs["filter"].tensor_shape.dim.add(size=1)
    method = "/tensorflow.serving.PredictionService/Predict"
    reply, metadata = call(shop, method, request, "tensorflow.serving.PredictResponse")
    return list(reply.outputs["item_ids"].int64_val), metadata


def kserve_json(shop):
    inputs = [
        {"name": name, "shape": list(values.shape), "datatype": "INT64", "data": values.tolist()}
        for name, values in tensors().items()
    ]
    inputs.append({"name": "filter", "shape": [1], "datatype": "BYTES", "data": [json.dumps(WANTED)]})
    found, headers = post(shop, f"/v2/models/{MODEL}/infer", {"inputs": inputs})
    return found["outputs"][0]["data"], headers


def kserve_request():
    request = message("inference.ModelInferRequest")(model_name=MODEL)
    text = json.dumps(WANTED).encode()
    for name, values in tensors().items():
        request.inputs.add(name=name, datatype="INT64", shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    request.inputs.add(name="filter", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    return request


def kserve_grpc(shop):
    method = "/inference.GRPCInferenceService/ModelInfer"
    reply, metadata = call(shop, method, kserve_request(), "inference.ModelInferResponse")
    return np.frombuffer(reply.raw_output_contents[0], "<i8").tolist(), metadata


def kserve_stream(shop):
    with grpc.insecure_channel(f"127.0.0.1:{shop.server.grpc_port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        (data,) = stream(iter([kserve_request().SerializeToString()]), timeout=60, metadata=tuple(TOP.items()))
    found = message("inference.ModelStreamInferResponse").FromString(data)
    assert not found.error_message
    reply = found.infer_response
    metadata = {"x-unfilled": reply.parameters["unfilled"].string_param}
    return np.frombuffer(reply.raw_output_contents[0], "<i8").tolist(), metadata


def deeprec(shop):
    request = eas.Request()
    for name, values in (("history.item", HISTORY), ("block", BLOCK)):
        array = request.inputs[name]
        array.dtype = eas.TYPES["int64"][0]
        array.array_shape.dim.extend([1, len(values)])
        array.int64_val.extend(values)
    array = request.inputs["filter"]
    array.dtype = eas.TYPES["string"][0]
    array.array_shape.dim.append(1)
    array.string_val.append(json.dumps(WANTED).encode())
    path = f"/v1/models/{MODEL}:processor"
    status, headers, data = shop.server.request("POST", path, request.SerializeToString(), TOP)
    assert status == 200, data
    return list(eas.Response.FromString(data).outputs["item_ids"].int64_val), headers


def client(scheme, port):
    def ask(shop):
        with Client(f"{scheme}://127.0.0.1:{getattr(shop.server, port)}", timeout_s=60) as client:
            best = client.recommend(MODEL, {"history.item": HISTORY}, K, filters=WANTED, block=BLOCK)
        return best.item_ids.tolist(), {"x-unfilled": best.unfilled}

    return ask


DIALECTS = {
    "tensorflow columns": tensorflow_columns,
    "tensorflow rows": tensorflow_rows,
    "tensorflow gRPC": tensorflow_grpc,
    "KServe JSON": kserve_json,
    "KServe gRPC": kserve_grpc,
    "KServe stream": kserve_stream,
    "client HTTP": client("http", "http_port"),
    "client gRPC": client("grpc", "grpc_port"),
    "DeepRec": deeprec,
}


def test_every_dialect_filters_and_says_how_many_are_missing(shop):
    good = shop.good(max(shop.records))
    for name, ask in DIALECTS.items():
        ids, headers = ask(shop)
        assert set(ids) == good, name
        assert int({key.lower(): value for key, value in headers.items()}["x-unfilled"]) == K - len(good), name


def test_nothing_that_a_delta_has_sold_out_is_in_a_reply_of_its_generation(shop):
    found, ended = [], threading.Event()

    def ask_on():
        with Client(f"http://127.0.0.1:{shop.server.http_port}", timeout_s=60) as client:
            inputs = {"history.item": Ragged.of([HISTORY]), "filter": [json.dumps({"stock": [1, None]})]}
            while not ended.is_set() or step_of(found[-1]) < max(shop.records):
                found.append(client.predict(MODEL, inputs, top_items=K))

    asking = [threading.Thread(target=ask_on) for _ in range(2)]
    for thread in asking:
        thread.start()
    for n in range(8):
        before = shop.records[max(shop.records)]
        shop.change(range(n, 2000, 3), [key for key in before if key % 7 == n and key % 3 != n % 3])
    ended.set()
    for thread in asking:
        thread.join(60)
    assert len({step_of(one) for one in found}) > 2
    for one in found:
        ids = one.outputs["item_ids"][0].tolist()
        assert set(ids) == shop.good(step_of(one), {"stock": [1, None]}, ()), step_of(one)
        assert one.unfilled == K - len(ids)


def step_of(prediction):
    return int(prediction.generation.partition(".")[2])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"filter": [json.dumps({"price": ["a", 1]})]}, "filter.price: expected a number or null, got 'a'"),
        ({"filter": [json.dumps({"colour": "red"})]}, "filter: 'colour' is no column to filter on"),
        ({"filter": ["[" * 50_000]}, "filter: expected a JSON object"),
        ({"filter": ['{"price": NaN}']}, "filter: expected finite numbers, got NaN"),
        ({"filter": [" " * 70_000]}, "filter: expected at most 65536 bytes, got 70000"),
        ({"filter": [" " * 10_000_000]}, "filter: expected at most 65536 bytes, got 10000000"),
        ({"filter": ['{"price": [1e400, null]}']}, "filter.price: expected a number or null, got Infinity"),
        ({"filter": ['{"category": "\\ud800"}']}, "filter.category: expected Unicode texts, got a lone surrogate"),
        ({"filter": ['{"stock": 1, "stock": 1}']}, "filter: expected each key once, got 'stock' again"),
        ({"filter": ['{"stock": ' + "9" * 60_000 + "}"]}, "filter: expected a JSON object"),
        ({"allow": Ragged(np.zeros(4_000_001, np.int64), np.array([0, 4_000_001]))}, "max_ids: expected at most"),
        ({"allow": Ragged.of([[1], [2], [3]])}, "allow: expected a list of ids for each of 1 users"),
    ],
)
def test_hostile_filters_are_refused_by_name(shop, scheme, inputs, message):
    with Client(f"{scheme}://127.0.0.1:{getattr(shop.server, scheme + '_port')}", timeout_s=60) as client:
        with pytest.raises((BadInput, TooLarge), match=message.replace("[", r"\[")):
            client.predict(MODEL, {"history.item": Ragged.of([HISTORY]), **inputs}, top_items=K)
        assert client.predict(MODEL, {"history.item": Ragged.of([HISTORY])}, top_items=3).unfilled == 0


def test_a_million_allowed_ids_are_read_within_the_limits(shop):
    allowed = Ragged(np.arange(1_000_000), np.array([0, 1_000_000]))
    with Client(f"grpc://127.0.0.1:{shop.server.grpc_port}", timeout_s=60) as client:
        inputs = {"history.item": Ragged.of([HISTORY]), "allow": allowed}
        assert client.predict(MODEL, inputs, top_items=K).unfilled == len(HISTORY)


@pytest.mark.parametrize("number", ["0", "-1", "1000000000", "000001", "1e3", "+5", ""])
def test_hostile_numbers_are_refused_over_grpc(shop, number):
    with grpc.insecure_channel(f"127.0.0.1:{shop.server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="x-top-items: expected a whole number from 1 to 10000") as refused:
            infer(kserve_request().SerializeToString(), timeout=60, metadata=(("x-top-items", number),))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("splits", [[-1, 3], [0, 3, 1, 3], [0, 2**40], [1, 3], []])
def test_hostile_splits_are_refused_over_grpc(shop, splits):
    request = kserve_request()
    at = [tensor.name for tensor in request.inputs].index("block.row_splits")
    request.inputs[at].shape[:] = [len(splits)]
    request.raw_input_contents[at] = np.array(splits, np.int64).tobytes()
    with grpc.insecure_channel(f"127.0.0.1:{shop.server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="block") as refused:
            infer(request.SerializeToString(), timeout=60, metadata=tuple(TOP.items()))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
