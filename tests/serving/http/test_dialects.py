"""The table of dialects: whatever stands in it is routed, served below ASGI and described."""

import gzip
import json

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.deeprec.codec import Request
from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.serving.codecs.wire import inflate
from freshet_serving.serving.http.dialects import DIALECTS
from freshet_serving.serving.http.openapi import OPERATIONS
from freshet_serving.serving.http.paths import Route, parse
from freshet_serving.serving.http.protocol import PREDICT_SUFFIXES
from tests.processor.engines import processors
from tests.serving.fakes import PACKED
from tests.support import entities
from tests.support.json_values import variants


def eas_request():
    asked = Request()
    for name, dtype, shape in (("ids", 9, (2, 3)), ("floats", 1, (2, 2))):
        asked.inputs[name].dtype = dtype
        asked.inputs[name].array_shape.dim.extend(shape)
    asked.inputs["ids"].int64_val.extend(range(6))
    asked.inputs["floats"].float_val.extend(range(4))
    return asked.SerializeToString()


def infer_request(binary):
    ids, floats = np.arange(6).reshape(2, 3), np.arange(4, dtype=np.float32).reshape(2, 2)
    told = [("ids", "INT64", ids), ("floats", "FP32", floats)]
    if not binary:
        inputs = [{"name": n, "datatype": d, "shape": a.shape, "data": a.ravel().tolist()} for n, d, a in told]
        return json.dumps({"inputs": inputs}).encode(), {}
    inputs = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}} for n, d, a in told
    ]
    text = json.dumps({"inputs": inputs}).encode()
    return text + ids.tobytes() + floats.tobytes(), {b"inference-header-content-length": b"%d" % len(text)}


BODIES = {
    "predict": ("predict", json.dumps({"inputs": {"ids": [[0, 1, 2]] * 2, "floats": [[1, 2]] * 2}}).encode(), {}),
    "with NaN": ("predict", b'{"inputs": {"ids": [[0, 1, 2]], "floats": [[NaN, 2]]}}', {}),
    "processor": ("processor", eas_request(), {}),
    "infer": ("infer", *infer_request(binary=False)),
    "infer, binary": ("infer", *infer_request(binary=True)),
}


@pytest.mark.parametrize(("name", "body", "headers"), BODIES.values(), ids=BODIES)
def test_body_is_decoded_equally_as_bytes_or_read_only_view(name, body, headers):
    decode = DIALECTS[name].decode
    for sent, told in ((body, headers), (gzip.compress(body), {**headers, b"content-encoding": b"gzip"})):
        read = []
        for form in (sent, memoryview(bytearray(sent)).toreadonly()):
            inputs, _ = decode(inflate(form, told), headers, PACKED, DEFAULTS, None)
            read.append({key: np.asarray(inputs[key]) for key in inputs})
        assert read[0].keys() == read[1].keys() == {"ids", "floats"}
        for key, values in read[0].items():
            np.testing.assert_array_equal(values, read[1][key])


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_has_its_paths(dialect):
    model = "/v1/models/m" if dialect.servable else "/v2/models/m"
    for where, route in (("", Route(dialect.name, "m")), ("/versions/3", Route(dialect.name, "m", 3))):
        path = model + where + dialect.suffix
        assert parse(path.encode()) == route
        assert path.encode().endswith(PREDICT_SUFFIXES)
        assert route.method == "POST"
    operation = OPERATIONS[model.removesuffix("m") + "{model}" + dialect.suffix]
    assert (operation.action, operation.summary) == (dialect.name, dialect.summary)


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
