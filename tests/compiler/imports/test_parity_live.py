"""Imported models over HTTP give what TensorFlow gives."""

import json

import numpy as np
import pytest

from freshet_serving.processor.package.delta import Delta, TableDelta, write_delta
from freshet_serving.processor.repository.version import VersionReader, table_file
from tests.compiler.imports.foreign import MODELS, variable
from tests.e2e.servers import ALONE, LiveServer
from tests.support.plugins import environment

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SIZES = (1, 7, 64, 300)


@pytest.fixture(scope="module")
def server(imported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    with LiveServer(imported[0], *ALONE, log=folder / "log", env=environment(folder / "plugins")) as running:
        yield running


def written(delta, folder):
    write_delta(folder / "delta", delta)
    return (folder / "delta").read_bytes()


def predict(server, name, request):
    status, _, body = server.request("POST", f"/v1/models/{name}:predict", json.dumps({"inputs": request}).encode())
    assert status == 200, (name, body)
    outputs = json.loads(body)["outputs"]
    return outputs if isinstance(outputs, dict) else {"": outputs}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_http_scores_equal_tensorflow(model, foreign, imported, server):
    reference = model.reference(foreign[model.name])
    random = np.random.default_rng(len(model.name))
    for rows in SIZES:
        request = model.request(random, rows)
        wanted, got = reference(request), predict(server, model.name, request)
        assert len(got) == len(wanted)
        for name, values in got.items():
            expected = wanted[name or next(iter(wanted))].reshape(rows, -1)
            np.testing.assert_allclose(np.reshape(values, (rows, -1)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_expressible_tables_and_dense_graphs_leave_tensorflow(model, imported):
    _, packages = imported
    manifest = VersionReader(packages[model.name].folder).manifest
    sides = packages[model.name].report["sides"]

    assert len(manifest.embeddings) == model.tables
    assert (manifest.stage is not None) == model.stage
    assert sides["dense"]
    assert not any("whole model runs in TensorFlow" in note for note in packages[model.name].report["notes"])


def test_delta_of_an_imported_table_changes_only_its_keys(imported, server, tmp_path):
    reader = VersionReader(imported[1]["partitioned"].folder)
    table = reader.manifest.tables[0]
    rows = np.concatenate([variable(i, n, 4, name="part").numpy() for i, n in enumerate((6, 6, 5))])
    rows[3] = 2.5
    before = predict(server, "partitioned", {"user": [3, 4], "item": [5, 6]})[""]
    change = TableDelta(np.array([3], np.int64), np.full((1, table.dim), 2.5, np.float32), np.empty(0, np.int64))
    delta = Delta("partitioned", 1, 1, 0, {table.name: change}, {}, published_at=1.0)

    status, reply = server.upload("partitioned", written(delta, tmp_path))

    assert (status, reply["generation"]) == (200, "1.1")
    after = predict(server, "partitioned", {"user": [3, 4], "item": [5, 6]})[""]
    logits = np.concatenate([rows[[3, 4]], rows[[5, 6]]], 1) @ reader.dense()["weights"]
    np.testing.assert_allclose(after, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert before[1] == after[1]
    assert before[0] != after[0]


def test_delta_of_imported_dense_weights_uses_variable_names(imported, server, tmp_path):
    dense = VersionReader(imported[1]["dense"].folder).dense()
    name = next(n for n, a in dense.items() if a.shape == (3,))
    request = {"values": np.ones((2, 8)).tolist()}
    before = predict(server, "dense", request)[""]
    changed = {name: dense[name] + np.array([1, 0, -1], np.float32)}

    status, reply = server.upload("dense", written(Delta("dense", 1, 1, 0, {}, changed, published_at=1.0), tmp_path))

    assert (status, reply["generation"]) == (200, "1.1")
    assert predict(server, "dense", request)[""][0][0] > before[0][0]


@pytest.mark.parametrize(
    ("name", "request_of"),
    [
        ("attention", lambda i: {"item": [i, 5], "history": [[i, 5, 6, 0, 0, 0], [i, 5, 6, 0, 0, 0]]}),
        ("sparse", lambda i: {"ids": [[i, 5], [6]]}),
        ("safe", lambda i: {"ids": [[i, 5], [6]]}),
    ],
)
def test_two_ids_score_equally_after_copying_a_row(name, request_of, imported, server, tmp_path):
    reader, one, other = VersionReader(imported[1][name].folder), 3, 9
    assert reader.manifest.copies == {}
    before = [predict(server, name, request_of(i))[""] for i in (one, other)]
    tables = {}
    for table in reader.manifest.tables:
        stored = reader.tensors(table_file(table.name))
        row = stored["rows"][stored["keys"] == other]
        if not len(row):
            # Computed rows, such as masks: both keys have the default.
            assert one not in stored["keys"]
            continue
        tables[table.name] = TableDelta(np.array([one], np.int64), np.array(row, np.float32), np.empty(0, np.int64))

    status, reply = server.upload(name, written(Delta(name, 1, 1, 0, tables, {}, published_at=1.0), tmp_path))

    assert (status, reply["generation"]) == (200, "1.1")
    after = [predict(server, name, request_of(i))[""] for i in (one, other)]
    assert np.abs(np.subtract(*before)).max() > 1e-4
    np.testing.assert_allclose(*after, atol=1e-6)


def test_inputs_refused_by_the_model_are_client_errors(server):
    body = json.dumps({"inputs": {"examples": ["no example"]}}).encode()
    status, _, reply = server.request("POST", "/v1/models/parsed:predict", body)

    assert status == 400
    assert "the model refuses these inputs" in json.loads(reply)["error"]
    assert server.get("/v2/health/ready")[0] == 200
