"""Replies name the generation of a user's part that is older than theirs, and only there, over HTTP and gRPC."""

import json
from types import SimpleNamespace

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.sessions import predictor
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.serving.codecs.kserve_rpc import rows_parameters
from freshet_serving.serving.codecs.messages import message
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.serving.rpc.live import Live
from tests.serving.rpc.test_user_calls import infer
from tests.support.ranked import MODEL, write_ranked

EVENTS = {"history.item": [1, 2], "history.row_splits": [0, 2], "item": [5, 6]}
ASKED = (
    (f"/v1/models/{MODEL}:predict", {"inputs": {"history.item": [[1, 2]], "item": [5, 6]}}),
    (
        f"/v2/models/{MODEL}/infer",
        {"inputs": [{"name": n, "shape": [2], "datatype": "INT64", "data": column} for n, column in EVENTS.items()]},
    ),
)


@pytest.fixture(params=[None, 0])
def processor(request, tmp_path, monkeypatch):
    """A processor whose requests were all answered with a user's part of this step; None for their own."""
    monkeypatch.setattr(predictor, "UserBounds", lambda steps, age_s: SimpleNamespace(step=request.param))
    write_ranked(tmp_path)
    policies = {MODEL: ModelPolicy.parse({"user_state": {"steps": 1}}, "model")}
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1, policies=policies)) as processor:
        processor.expected = None if request.param is None else "1.0"
        yield processor


@pytest.mark.parametrize(("path", "document"), ASKED)
def test_header_names_an_older_user_part(path, document, processor):
    reply = send(serve(processor.predictor)[0], "POST", path, json.dumps(document).encode(), {})
    assert reply.status == 200
    assert reply.headers.get("x-state-generation") == processor.expected


def test_metadata_and_parameters_name_an_older_user_part(processor):
    with Live(processor.predictor) as live:
        _, call = live.infer.with_call(infer([1, 2], [5, 6]))
    assert dict(call.trailing_metadata()).get("x-state-generation") == processor.expected
    reply = message("inference.ModelInferResponse").FromString(rows_parameters([(b"x-state-generation", b"1.3")]))
    assert reply.parameters["state_generation"].string_param == "1.3"
