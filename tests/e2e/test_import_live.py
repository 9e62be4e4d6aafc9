"""`freshet import` and its drawings from the command line; SavedModels dropped into a served repository."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.package.delta import Delta, TableDelta, write_delta
from freshet_serving.serving.commands.cli import app
from tests.compiler.imports.foreign import saved, variable
from tests.e2e.servers import ALONE, LiveServer
from tests.support.plugins import environment
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

PATIENCE_S = 120.0


class Model(tf.Module):
    """A table, a hash of a string, a float."""

    def __init__(self):
        self.users = variable(1, 10, 3, name="users")
        self.words = variable(2, 16, 3, name="words")
        self.weights = variable(3, 7, 1, name="weights")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="user"),
            tf.TensorSpec([None], tf.string, name="word"),
            tf.TensorSpec([None, 1], name="price"),
        ]
    )
    def score(self, user, word, price):
        hashed = tf.strings.to_hash_bucket_fast(word, 16)
        parts = [tf.gather(self.users, user), tf.gather(self.words, hashed), price]
        return {"score": tf.sigmoid(tf.concat(parts, 1) @ self.weights)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    module = Model()
    return saved(module, tmp_path_factory.mktemp("source") / "model", module.score)


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return environment(tmp_path_factory.mktemp("plugins"))


REQUEST = {"user": [1, 2], "word": ["a", "b"], "price": [0.5, -0.5]}


def wanted():
    columns = {"user": tf.constant([1, 2], tf.int64), "word": tf.constant(["a", "b"])}
    model = Model()
    return model.score(**columns, price=tf.constant([[0.5], [-0.5]]))["score"].numpy()


def freshet(*arguments):
    """What the command prints, in this process, or the error that it ends with."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return str(result.exception) if result.exception else result.stdout


def statuses(server, model):
    code, _, body = server.get(f"/v1/models/{model}")
    if code != 200:
        return {}
    return {s["version"]: (s["state"], s["status"]["error_message"]) for s in json.loads(body)["model_version_status"]}


class Crossed(tf.Module):
    """A hash bucket of a string and a cross of it with an id."""

    def __init__(self):
        self.words = variable(2, 16, 3, name="words")
        self.crosses = variable(4, 32, 3, name="crosses")
        self.weights = variable(3, 6, 1, name="weights")

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64, name="user"), tf.TensorSpec([None], tf.string, name="word")]
    )
    def score(self, user, word):
        crossed = tf.sparse.cross_hashed([tf.sparse.from_dense(word[:, None]), tf.sparse.from_dense(user[:, None])], 32)
        pooled = tf.nn.safe_embedding_lookup_sparse(self.crosses, crossed, combiner="sum")
        hashed = tf.gather(self.words, tf.strings.to_hash_bucket_fast(word, 16))
        return {"score": tf.concat([hashed, pooled], 1) @ self.weights}


def test_imported_hashes_and_crosses_need_no_tensorflow_and_take_deltas(tmp_path):
    module = Crossed()
    repository = tmp_path / "repository"
    source = saved(module, tmp_path / "model", module.score)
    imported = import_model(source, repository, "crossed", options=ImportOptions(buckets=(8,)))
    words, users = ["a", "b", "", "c"], [1, 2, 3, 0]
    bucket = int(tf.strings.to_hash_bucket_fast("a", 16))

    def reference():
        return module.score(tf.constant(users, tf.int64), tf.constant(words))["score"].numpy()

    assert imported.report["staged"] == []
    with LiveServer(repository, log=tmp_path / "log") as server:
        request = {"user": users, "word": words}
        np.testing.assert_allclose(server.predict("crossed", request)[0], reference(), atol=1e-5)
        rows = np.full((1, 3), 2.5, np.float32)
        change = TableDelta(np.array([bucket], np.int64), rows, np.empty(0, np.int64))
        write_delta(tmp_path / "delta", Delta("crossed", 1, 1, 0, {"words": change}, {}, published_at=1.0))
        status, reply = server.upload("crossed", (tmp_path / "delta").read_bytes())
        assert (status, reply["generation"]) == (200, "1.1")

        module.words.scatter_nd_update([[bucket]], rows)
        scores, generation = server.predict("crossed", request)
        assert generation == "1.1"
        np.testing.assert_allclose(scores, reference(), atol=1e-5)
        workers = json.loads(server.get("/admin/models", admin=True)[2]).get("workers", [])
        everyone = [server.process.pid, *(worker["pid"] for worker in workers)]
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in everyone)
    assert "onnxruntime" in maps
    assert "tensorflow" not in maps


def test_import_command_reports_and_draws_the_split(source, tmp_path):
    repository, drawing = tmp_path / "repository", tmp_path / "split.svg"
    assert "ctr version 1 is in" in freshet("import", source, "--repository", repository, "--name", "ctr")

    seen = freshet("inspect", "--graph", repository / "ctr" / "1", "--out", drawing)

    for line in (
        "StringToHashBucketFast is not allowed in a dense graph",
        "table users (from user) -> x[:, ",
        "the request (from price)",
        "FLOPs a row",
    ):
        assert line in seen
    assert drawing.read_text().startswith("<svg")
    assert freshet("inspect", "--graph", source) == seen
    assert "saved_model.pb is missing" in freshet("import", tmp_path, "--repository", repository, "--name", "ctr")
    assert "expected a file ending in .svg" in freshet(
        "inspect", "--graph", repository / "ctr" / "1", "--out", tmp_path / "split.gif"
    )


def test_savedmodel_in_a_repository_is_imported_and_served(source, env, tmp_path):
    repository = tmp_path / "repository"
    import_model(source, repository, "first")
    broken = shutil.copytree(source, repository / "broken" / "1")
    shutil.rmtree(broken / "variables")
    with LiveServer(repository, "--workers", "2", log=tmp_path / "log", env=env) as server:
        shutil.copytree(source, repository / "ctr" / "3")
        until(lambda: statuses(server, "ctr").get("3", ("", ""))[0] == "AVAILABLE")
        for model, version in (("ctr", "3.0"), ("first", "1.0")):
            scores, generation = server.predict(model, REQUEST)
            assert generation == version
            np.testing.assert_allclose(scores, wanted(), atol=1e-5)
        assert (repository / "ctr" / "3" / "saved_model.pb").is_file()

        until(lambda: statuses(server, "broken").get("1", ("", ""))[0] == "END")
        assert statuses(server, "broken") == {"1": ("END", "source: variables are missing")}
        assert server.get("/v2/health/ready")[0] == 200
        assert not [p for p in (repository / "broken").iterdir() if p.name.endswith(".tmp")]


def test_onnx_file_with_external_data_is_imported_and_served(env, tmp_path):
    """What torch.onnx.export writes: model.onnx and model.onnx.data."""
    onnx = pytest.importorskip("onnx", reason="importing needs the train extra")
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    text = """<ir_version: 8, opset_import: ["" : 18]> g (int64[batch] user) => (float[batch, 4] score) {
        score = Gather <axis: int = 0> ("emb.weight", user)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rows, "emb.weight"))
    folder = tmp_path / "repository" / "torch" / "1"
    folder.mkdir(parents=True)
    with LiveServer(tmp_path / "repository", *ALONE, log=tmp_path / "log", env=env) as server:
        onnx.save(
            proto, folder / "model.onnx", save_as_external_data=True, size_threshold=0, location="model.onnx.data"
        )
        until(lambda: statuses(server, "torch").get("1", ("", ""))[0] == "AVAILABLE")
        scores, generation = server.predict("torch", {"user": [3, 0]})

    assert generation == "1.0"
    np.testing.assert_allclose(scores, rows[[3, 0]])
    assert "table emb.weight (from user)" in freshet("inspect", "--graph", folder / "model.onnx")
