"""A request to begin with: recorded where there is one, else made up of ids that have rows."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictReply, PredictRequest
from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.serving.codecs.tfs_rest import decode
from freshet_serving.serving.extensions.admin.example_requests import ExampleRequests, _made_up_input
from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder
from freshet_serving.serving.front.example_text import text_of
from tests.processor.engines import processors
from tests.serving.extensions.admin.test_model_views import processor  # noqa: F401
from tests.support import entities, looked_up
from tests.support.packages import make_inputs, write_package


@pytest.fixture
def version(processor):  # noqa: F811
    return processor.host.catalogue["small"].pick(1)


def body(told):
    return (
        "{" + f'"inputs": {{{", ".join(json.dumps(i["name"]) + ":" + i["example"] for i in told["inputs"])}}}' + "}"
    ).encode()


def test_generated_example_is_a_request_whose_ids_have_rows(version, processor):  # noqa: F811
    told = ExampleRequests().signature(version)
    inputs, _ = decode(body(told), {}, version.manifest, DEFAULTS)
    processor.process(PredictRequest("small", inputs, version=1))
    assert processor.host.lookups(version)[0].tolist() == [3, 0]


def test_recent_request_is_preferred_over_a_generated_one(version, processor):  # noqa: F811
    processor.process(PredictRequest("small", make_inputs([7, 8], tags=[["a"], ["seen", "b"]]), version=1))
    told = ExampleRequests().signature(version)
    assert told["source"] == "asked lately"
    assert [i["example"] for i in told["inputs"]][:2] == ["[7,8]", '[["a"],["seen","b"]]']


def test_recorded_request_is_preferred_over_others(version, tmp_path):
    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 20, "w0")
    inputs = make_inputs([7, 8])
    reply = PredictReply({"score": np.zeros((2, 1), np.float32)}, Generation(1, 0), "small")
    bound = SparsePlan(version.manifest).bind_inputs(inputs)
    recorder._offer(PredictRequest("small", inputs), version.manifest, bound, 0, reply, 0)
    recorder.close()
    # Newer ones of models whose names begin alike.
    for name in ("smaller-x", "small-v2-x"):
        (tmp_path / "recordings" / f"{name}.parquet").write_bytes(b"PAR1rubbish")
    told = ExampleRequests(str(tmp_path / "recordings")).signature(version)
    assert told["source"] == "recorded"
    assert told["inputs"][0]["example"] == "[7,8]"


def test_example_hides_what_the_server_looks_up(tmp_path):
    looked_up.write_package(tmp_path / "repository")
    with processors(tmp_path / "repository") as build:
        served = build()
        sent = {
            "user": np.array([3]), "f0": np.array([41.5], np.float32), "f1": np.array([1], np.float32),
            "f2": np.zeros(1, np.float32), "f3": np.zeros(1, np.float32), "tags": Ragged.of([["private"]]),
        }  # fmt: skip
        served.process(PredictRequest("small", sent))
        told = ExampleRequests().signature(served.host.catalogue["small"].pick(1))
    assert told["source"] == "asked lately"
    examples = {i["name"]: i["example"] for i in told["inputs"]}
    assert examples["user"] == "[3]"
    assert "41.5" not in examples["f0"]
    assert "private" not in examples["tags"]


def test_example_has_inputs_that_requests_leave_out_to_entities(tmp_path):
    entities.write_package(tmp_path / "repository")
    with processors(tmp_path / "repository") as build:
        served = build()
        served.process(PredictRequest("small", {"user": np.array([3])}))
        version = served.host.catalogue["small"].pick(1)
        told = ExampleRequests().signature(version)
        examples = {i["name"]: i["example"] for i in told["inputs"]}
        assert (told["source"], examples["user"]) == ("asked lately", "[3]")
        inputs, _ = decode(body(told), {}, version.manifest, DEFAULTS)
        assert inputs.keys() == {"user", "tags", "floats"}


def test_examples_too_long_to_show_are_empty(version, monkeypatch):
    monkeypatch.setattr("freshet_serving.serving.front.example_text.MAX_CHARS", 8)
    assert {i["example"] for i in ExampleRequests().signature(version)["inputs"]} == {""}


def test_unreadable_recordings_give_a_generated_example(version, tmp_path):
    (tmp_path / "small-x.parquet").write_bytes(b"PAR1rubbish")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "small-y.parquet")
    assert ExampleRequests(str(tmp_path)).signature(version)["source"] == "made up"
    assert ExampleRequests(str(tmp_path / "none")).signature(version)["source"] == "made up"


def test_example_values_are_exact_json_and_few():
    ids = np.array([2**63 - 1, -(2**63), 2**53 + 1, 4], np.int64)
    assert text_of(ids, Input("user", "int64")) == "[9223372036854775807,-9223372036854775808,9007199254740993]"
    ragged = Ragged(np.arange(100, dtype=np.int64), np.array([0, 90, 95, 100]))
    assert [len(row) for row in json.loads(text_of(ragged, Input("seen", "int64", ragged=True)))] == [24, 5, 5]
    words = Strings.of([b"caf\xc3\xa9", b"\xff\xfe", b"x", b"y"])
    assert json.loads(text_of(words, Input("word", "string"))) == ["café", {"b64": "//4="}, "x"]
    assert json.loads(text_of(words, Input("word", "string", columns=2)))[1] == ["x", "y"]
    floats = np.array([[0.1, np.nan], [np.inf, 2.0]], np.float32)
    assert text_of(floats, Input("f", "float32", columns=2)) == "[[0.1,0.0],[0.0,2.0]]"


def test_lists_of_floats_have_an_example():
    spec = Input("history.watched", "float32", ragged=True)
    assert json.loads(text_of(_made_up_input(spec, None), spec)) == [[0.5, 0.5]] * 3


def test_example_ids_of_a_table_exist(tmp_path, version):
    assert set(version.tables["user"].some_keys(5).tolist()) <= set(range(20))
    assert len(version.tables["user"].some_keys(5)) == 5
    write_package(tmp_path / "empty", users=())
