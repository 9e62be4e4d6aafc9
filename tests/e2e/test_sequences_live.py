"""Histories over the network: every dialect and form of lists gives the scores that training computed."""

import json

import grpc
import numpy as np
import pytest

from freshet_serving import Client, Ragged
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.models.zoo import next_item_models
from tests.models.zoo.sequence_models import make_batch, make_trainer, of_request, publish

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LENGTHS = (0, 1, 7, 50, 64, 100)
"""Events of the users that are asked for; the model reads the newest 64."""
CANDIDATES = 5
DT_INT64, DT_FLOAT = 9, 1


@pytest.fixture(scope="module", params=["stca", "sasrec", "sasrec_next", "hstu_next"])
def served(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param.endswith("_next"):
        trainer = next_item_models.learned(request.param, 64, 2)
    else:
        trainer = make_trainer(request.param, 64)
        trainer.learn(make_batch(64, LENGTHS))
    publish(trainer, folder / "repository", (1, 8))
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as live:
        yield live, trainer


def asked(trainer, length):
    """The columns of one user with a history of this length, and candidates."""
    columns = make_batch(CANDIDATES, (length,), seed=length, timed=True).columns
    columns = of_request(columns, CANDIDATES) | {"user": np.full(CANDIDATES, columns["user"][0])}
    read = {i.name for i in trainer.manifest.inputs}
    return {name: column for name, column in columns.items() if name in read}


def forms(columns):
    """The same request, with its lists in each form that tensors may have."""
    plain = {name: column for name, column in columns.items() if not isinstance(column, Ragged)}
    lists = {name: column for name, column in columns.items() if isinstance(column, Ragged)}
    splits = lists["history.item"].row_splits
    yield plain | lists
    yield plain | {name: column.values for name, column in lists.items()} | {"history.row_splits": splits}
    padding = [np.zeros(3, np.int64)]
    padded = {name: np.concatenate([column.values, *padding])[np.newaxis] for name, column in lists.items()}
    yield plain | padded | {"history.lengths": np.diff(splits)}


@pytest.mark.parametrize("length", LENGTHS)
def test_every_dialect_gives_the_trained_scores(served, length):
    live, trainer = served
    columns = asked(trainer, length)
    wanted = trainer.score(columns)
    as_json = {n: [c.values.tolist()] if isinstance(c, Ragged) else c.tolist() for n, c in columns.items()}
    scores, _ = live.predict("m", as_json)
    scores = scores["score"] if isinstance(scores, dict) else scores
    np.testing.assert_allclose(np.ravel(scores), wanted, atol=1e-5)
    for address in (f"http://127.0.0.1:{live.http_port}", f"grpc://127.0.0.1:{live.grpc_port}"):
        with Client(address) as client:
            for form in forms(columns):
                got = client.predict("m", form).outputs["score"]
                np.testing.assert_allclose(np.ravel(got), wanted, atol=1e-5)
    for form in list(forms(columns))[1:]:
        np.testing.assert_allclose(tensorflow_serving(live, form), wanted, atol=1e-5)
        np.testing.assert_allclose(kserve_json(live, form), wanted, atol=1e-5)


def tensorflow_serving(live, inputs):
    """Scores by TensorFlow Serving's Predict over gRPC."""
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name = "m"
    for name, values in inputs.items():
        tensor = made.inputs[name]
        tensor.dtype = DT_FLOAT if values.dtype == np.float32 else DT_INT64
        for size in values.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = values.tobytes()
    with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        reply = message("tensorflow.serving.PredictResponse").FromString(call(made.SerializeToString(), timeout=60))
    return np.array(reply.outputs["score"].float_val)


def kserve_json(live, inputs):
    """Scores by KServe's infer with tensors in JSON."""
    tensors = [
        {
            "name": name,
            "shape": list(values.shape),
            "datatype": "FP32" if values.dtype == np.float32 else "INT64",
            "data": values.tolist(),
        }
        for name, values in inputs.items()
    ]
    status, _, reply = live.request("POST", "/v2/models/m/infer", json.dumps({"inputs": tensors}))
    assert status == 200, reply
    return json.loads(reply)["outputs"][0]["data"]
