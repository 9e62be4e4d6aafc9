"""Counts, newest events and crosses of histories over the network: every dialect gives what training and numpy compute.

With rows in float32 and in int8, after each delta, and after going back to an earlier one.
"""

import json
import shutil
from functools import partial
from itertools import product
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.training.lineage import rebuild
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import ChangeLog, VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.client.client import Client
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.models.training.test_parity_histories import LENGTHS, ROWS, Lists, by_hand, config_of, events
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

MODEL = "shop"
CANDIDATES = np.array([3, 17, 39], np.int64)
DTYPES = {np.dtype(np.int64): 9, np.dtype(object): 7}
"""Types of TensorFlow."""

OPTIONS = (*ALONE, "--delta-guard", "off")
"""A run of a few steps moves scores further than a guard would serve."""


def serves(live, generation):
    return live.generation(MODEL) == generation


@pytest.fixture(scope="module", params=["float32", "int8"])
def story(request, tmp_path_factory):
    """A run with three deltas, and its trainer as it is in each generation's files."""
    folder = tmp_path_factory.mktemp(request.param)
    config = config_of(folder / "repository", full_rows=ROWS // 4, delta_rows=ROWS // 4, table_dtype=request.param)
    run = TrainingRun(config, SequenceSource(Lists(), config.features))
    run.full()
    list(run.stream())
    version = Repository(folder / "repository").version(MODEL, 1)
    log = ChangeLog.of(version)
    packaged = Trainer(run.trainer.manifest, config.train, config.network, tables=config.tables)

    def trainer_of(step):
        rebuild(packaged, VersionContents(version, log, log.history.known(step)))
        return packaged

    return SimpleNamespace(run=run, folder=folder, version=version, trainer_of=trainer_of, dtype=request.param)


@pytest.fixture(scope="module")
def live(story):
    with LiveServer(story.folder / "repository", *OPTIONS, log=story.folder / "serve.log") as server:
        until(partial(serves, server, "1.3"))
        yield server


def user(length):
    """The columns of one user with so many events, beside the candidates, and the items of the events."""
    history, items, actions, times = events(np.random.default_rng(length), [length])
    columns = {"history.item": items, "history.action": actions, "history.time": times, "item": CANDIDATES}
    return columns, history[0]


def plain(column):
    """A column as JSON has it."""
    if isinstance(column, Ragged):
        values = column.values
        return [[text.decode() for text in values.tolist()] if isinstance(values, Strings) else values.tolist()]
    return column.tolist()


def arrays(columns):
    """Columns as tensors of one row for the user."""
    lists = {name: plain(column) for name, column in columns.items() if isinstance(column, Ragged)}
    made = {
        name: np.array(rows, object if name == "history.action" else np.int64).reshape(1, -1)
        for name, rows in lists.items()
    }
    return made | {"item": columns["item"]}


def json_columns(live, columns):
    outputs, _ = live.predict(MODEL, {name: plain(column) for name, column in columns.items()})
    return outputs["score"] if isinstance(outputs, dict) else outputs


def json_rows(live, columns):
    lists = {name: plain(column)[0] for name, column in columns.items() if name != "item"}
    body = {"instances": [lists | {"item": item} for item in columns["item"].tolist()]}
    status, _, reply = live.request("POST", f"/v1/models/{MODEL}:predict", json.dumps(body))
    assert status == 200, reply
    return json.loads(reply)["predictions"]


def kserve_json(live, columns):
    tensors = []
    for name, array in padded(columns).items():
        datatype = "BYTES" if array.dtype == object else "INT64"
        tensors.append({"name": name, "shape": [*array.shape], "datatype": datatype, "data": array.ravel().tolist()})
    status, _, reply = live.request("POST", f"/v2/models/{MODEL}/infer", json.dumps({"inputs": tensors}))
    assert status == 200, reply
    return json.loads(reply)["outputs"][0]["data"]


def padded(columns):
    """Columns as tensors: the user's lists, and their length."""
    made = arrays(columns)
    return made | {"history.lengths": np.array([made["history.item"].shape[1]], np.int64)}


def client_of(scheme, port):
    def ask(live, columns):
        with Client(f"{scheme}://127.0.0.1:{getattr(live, port)}") as client:
            return client.predict(MODEL, padded(columns)).outputs["score"]

    return ask


def predict_rpc(live, columns):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = MODEL
    for name, array in padded(columns).items():
        tensor = request.inputs[name]
        tensor.dtype = DTYPES[array.dtype]
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype == object:
            tensor.string_val.extend(text.encode() for text in array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    with grpc.insecure_channel(f"127.0.0.1:{live.grpc_port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        reply = message("tensorflow.serving.PredictResponse").FromString(call(request.SerializeToString(), timeout=60))
    return np.array(reply.outputs["score"].float_val)


def deeprec(live, columns):
    request = eas.Request()
    for name, array in arrays(columns).items():
        tensor = request.inputs[name]
        number, _, held = eas.TYPES["string" if array.dtype == object else "int64"]
        tensor.dtype = number
        tensor.array_shape.dim.extend(array.shape)
        values = array.ravel().tolist()
        getattr(tensor, held).extend([text.encode() for text in values] if array.dtype == object else values)
    status, _, reply = live.request("POST", f"/v1/models/{MODEL}:processor", request.SerializeToString())
    assert status == 200, reply
    return np.array(eas.Response.FromString(reply).outputs["score"].float_val)


DIALECTS = {
    "JSON columns": json_columns,
    "JSON rows": json_rows,
    "KServe JSON": kserve_json,
    "KServe binary": client_of("http", "http_port"),
    "KServe gRPC": client_of("grpc", "grpc_port"),
    "TensorFlow Serving gRPC": predict_rpc,
    "DeepRec": deeprec,
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_dialect_gives_the_trained_scores(dialect, length, story, live):
    columns, history = user(length)
    trainer = story.trainer_of(3)
    hands = SimpleNamespace(trainer=trainer)
    pooled = np.stack([by_hand(hands, history, item) for item in CANDIDATES.tolist()])
    np.testing.assert_allclose(trainer.dense_inputs(columns)["x"], pooled, atol=1e-5)
    expected = trainer.score(columns)
    if story.dtype == "float32":
        np.testing.assert_allclose(story.run.trainer.score(columns), expected, atol=1e-6)
    np.testing.assert_allclose(np.ravel(DIALECTS[dialect](live, columns)), expected, atol=1e-5)


def test_counts_keep_their_type(story):
    dtypes = {t.name: (t.dim, t.dtype) for t in story.version.manifest.embeddings}
    assert dtypes["seen"] == (2, "float32")
    assert dtypes["pairs"] == (4, story.dtype)


def test_each_generation_and_the_way_back_give_the_scores_of_its_time(story, tmp_path):
    asked = {length: user(length)[0] for length in LENGTHS}
    expected = {step: {n: story.trainer_of(step).score(columns) for n, columns in asked.items()} for step in range(4)}
    assert np.abs(expected[3][20] - expected[0][20]).max() > 1e-3
    shutil.copytree(story.folder / "repository", tmp_path / "repository")
    for step, length in product(range(4), LENGTHS):
        with GenerationScorer(str(tmp_path / "repository"), MODEL, Generation(1, step)) as scorer:
            scores = np.ravel(scorer.score(asked[length], len(CANDIDATES), ["score"]))
            np.testing.assert_allclose(scores, expected[step][length], atol=1e-5)
    with LiveServer(tmp_path / "repository", *OPTIONS, log=tmp_path / "serve.log") as server:
        for step in (3, 1, 0):
            if step < 3:
                status, _ = server.post_json(f"/admin/models/{MODEL}/rollback", {"generation": f"1.{step}"})
                assert status == 200
            until(partial(serves, server, f"1.{step}"))
            for length, columns in asked.items():
                scores = np.ravel(json_columns(server, columns))
                np.testing.assert_allclose(scores, expected[step][length], atol=1e-5)


def test_explanation_names_what_counted_pairs_add(story, live):
    columns, history = user(20)
    trainer, row = story.trainer_of(3), 1
    inputs = {name: plain(column) for name, column in columns.items()}
    status, answer = live.post_json(f"/admin/models/{MODEL}/explain", {"inputs": inputs, "row": row, "vectors": True})
    assert status == 200, answer
    read = answer["sides"][0]["inputs"]["seen"]
    assert read["length"] == len(history)
    (f,) = (f for f in trainer.manifest.features if f.name == "seen")
    counts = trainer.dense_inputs(columns)["x"][row, f.offset : f.offset + f.width]
    assert counts[0] > 0
    np.testing.assert_array_equal(np.sum([one["vector"] for one in read["ids"]], axis=0), counts)
    score = answer["sides"][0]["outputs"]["score"][0]
    assert score == pytest.approx(trainer.score(columns)[row], abs=1e-5)
    assert read["score_change"] != 0
    assert {"pairs", "pairs.2", "aged", "weight"} <= {
        name for name, each in answer["sides"][0]["inputs"].items() if "score_change" in each
    }
