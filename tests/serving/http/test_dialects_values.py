"""Every JSON value in place of every value of a request, in every dialect: an answer or a refusal, nothing else."""

import json

import pytest

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.serving.http.dialects import DIALECTS
from tests.processor.engines import processors
from tests.support import entities
from tests.support.json_values import variants

ROW = {"user": 3, "tags": ["a", "zz"], "floats": [0.5, 1, -2, 0]}
TENSORS = [
    {"name": "user", "shape": [1], "datatype": "INT64", "data": [3]},
    {"name": "floats", "shape": [1, 4], "datatype": "FP32", "data": [0.5, 1, -2, 0], "parameters": {"x": 1}},
]
REQUESTS = {
    "instances": ("predict", {"signature_name": "serving_default", "instances": [ROW, ROW]}),
    "columns": ("predict", {"inputs": {"user": [3], "tags": [["a"]], "floats": [[0.5, 1, -2, 0]]}}),
    "keys alone": ("predict", {"inputs": {"user": [3]}}),
    "classify": ("classify", {"context": {"user": 3}, "examples": [{"tags": ["a"], "floats": [1, 2, 3, 4.5]}]}),
    "regress": ("regress", {"examples": [ROW, ROW]}),
    "kserve": (
        "infer",
        {"id": "a", "parameters": {"timeout": 5}, "inputs": TENSORS, "outputs": [{"name": "score", "parameters": {}}]},
    ),
}


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    entities.write_package(root)
    with processors(root) as build:
        yield build()


@pytest.mark.parametrize("request_of", REQUESTS)
def test_every_value_is_answered_or_refused(processor, request_of):
    name, document = REQUESTS[request_of]
    dialect, manifest = DIALECTS[name], processor.host.model("small").pick().manifest
    assert answer(processor, dialect, manifest, document) == 200
    for changed in variants(document):
        status = answer(processor, dialect, manifest, changed)
        assert 200 <= status < 500, json.dumps(changed)[:300]


def answer(processor, dialect, manifest, document):
    """The status of a reply; an exception that is no refusal is raised."""
    try:
        inputs, options = dialect.decode(json.dumps(document).encode(), {}, manifest, DEFAULTS, None)
        dialect.encode(processor.process(PredictRequest("small", inputs)), options, None)
    except FreshetError as error:
        return error.http_status
    return 200
