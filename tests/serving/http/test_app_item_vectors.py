"""Replies name the generation of items' vectors where they lag, and only there."""

import json

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.item_vectors import ItemVectors
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.serving.codecs.kserve_rpc import rows_parameters
from freshet_serving.serving.codecs.messages import message
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.towers import MODEL, World, change, write_towers

TOP = {"x-top-items": "3"}
ASKED = (
    (f"/v1/models/{MODEL}:predict", {"inputs": {"user": [1]}}),
    (f"/v2/models/{MODEL}/infer", {"inputs": [{"name": "user", "shape": [1], "datatype": "INT64", "data": [1]}]}),
)


@pytest.mark.parametrize(("path", "document"), ASKED)
def test_header_names_vectors_that_lag(path, document, tmp_path, monkeypatch):
    monkeypatch.setattr(ItemVectors, "advance", lambda self, state: False)
    world = World.first(range(20))
    write_towers(tmp_path, world)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        app = serve(processor.predictor)[0]

        def post(headers=TOP):
            reply = send(app, "POST", path, json.dumps(document).encode(), headers)
            return reply.status, reply.headers.get("x-model-generation"), reply.headers.get("x-item-generation")

        assert post() == (200, "1.0", None)
        for step, dense in ((1, "user"), (2, "item")):
            world, delta = change(world, step, dense=[dense])
            write_delta(tmp_path / "upload", delta)
            processor.apply_delta(MODEL, data=(tmp_path / "upload").read_bytes())
            assert post() == (200, f"1.{step}", None if dense == "user" else "1.1")


def test_streams_name_them_by_a_parameter():
    reply = message("inference.ModelInferResponse").FromString(rows_parameters([(b"x-item-generation", b"1.3")]))
    assert reply.parameters["item_generation"].string_param == "1.3"
