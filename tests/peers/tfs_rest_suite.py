"""TensorFlow Serving over REST: what its server test, its handler's test, json_tensor_test and api_rest.md expect."""

from __future__ import annotations

import math
import sys
from typing import Any

from tests.peers.expectations import ERROR, Anything, Expectation, Has, Where, row

DEFAULT = "/v1/models/default"
STATUS = {
    "model_version_status": [
        {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
}
KSERVE_STATUS = "the status has `name` and `ready` besides, which KServe's v1 clients read"
FINITE = "an infinite input is refused by name: tables and networks of rankings are not made for it"
EMPTY = "a request for no candidates is answered with no scores"
ROUNDED = "whole numbers beyond 2^24 are rounded to float32 as other JSON numbers are"
BOUNDED = "bodies are bounded by what they would be parsed into, under whatever key"
MAX = sys.float_info.max


def post(name: str, model: str, body: Any, document: Any, miss: str = "") -> Expectation:
    """A prediction that is answered."""
    return row(name, "POST", f"/v1/models/{model}:predict", body, 200, document, miss)


def bad(name: str, model: str, body: Any, miss: str = "", verb: str = "predict") -> Expectation:
    """One that is refused."""
    return row(name, "POST", f"/v1/models/{model}:{verb}", body, 400, ERROR, miss)


def wrong(name: str, method: str, path: str, status: int = 400) -> Expectation:
    return row(name, method, path, {"instances": [1]} if method == "POST" else None, status, ERROR)


B64 = [{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}]
NAMED = [
    {"int_tensor": [1, 2], "str_tensor": ["foo", "ba"], "float_tensor": [1.0, 0.5], "dbl_tensor": 8.0},
    {"int_tensor": [3, 4], "str_tensor": ["b", "quux"], "float_tensor": [2.0, 4.0], "dbl_tensor": 9.5},
]
MADE = [
    {"ints": [1, 2], "lengths": [3, 2], "floats": [1.0, 0.5], "doubles": 8.0},
    {"ints": [3, 4], "lengths": [1, 4], "floats": [2.0, 4.0], "doubles": 9.5},
]
COLUMNS = {key: [one[key] for one in NAMED] for key in NAMED[0]}


def _first(**changed: Any) -> dict[str, Any]:
    """A body of two rows, the second with other values."""
    return {"instances": [NAMED[0], {**NAMED[1], **changed}]}


SERVER = [
    row("classify by signature", "POST", f"{DEFAULT}:classify", {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]}, 200, {"results": [[["", 3.0]]]}),
    row("regress by signature", "POST", f"{DEFAULT}:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}, 200, {"results": [3.0]}),
    post("predict rows", "default", {"instances": [2.0, 3.0, 4.0]}, {"predictions": [3.0, 3.5, 4.0]}),
    post("predict columns", "default", {"inputs": [2.0, 3.0, 4.0]}, {"outputs": [3.0, 3.5, 4.0]}),
    post("predict half_plus_three", "half_plus_three", {"instances": [2.0]}, {"predictions": [4.0]}),
    row("status", "GET", DEFAULT, None, 200, STATUS, KSERVE_STATUS),
    row("metadata of all signatures", "GET", f"{DEFAULT}/metadata", None, 200, Has({"metadata": Has({"signature_def": Has({"signature_def": Has({"serving_default": Anything(), "regress_x_to_y": Anything(), "classify_x_to_y": Anything()})})})})),
    row("Prometheus metrics", "GET", "/monitoring/prometheus/metrics", None, 200, Where(lambda text: text.startswith("# HELP"))),
]  # fmt: skip

HANDLER = [
    wrong("GET of no API", "GET", "/v1/foo"),
    wrong("POST of no API", "POST", "/v1/foo"),
    wrong("GET without a model", "GET", "/v1/models"),
    wrong("POST without a model", "POST", "/v1/models"),
    wrong("GET of predict", "GET", f"{DEFAULT}:predict"),
    wrong("GET of a misspelled version", "GET", "/v1/models/foo/version/50:predict"),
    wrong("POST of a misspelled version", "POST", "/v1/models/foo/version/50:regress"),
    wrong("POST of a version that is a word", "POST", "/v1/models/foo/versions/HELLO:regress"),
    wrong("POST of a version beyond int64", "POST", f"/v1/models/foo/versions/{2**64 - 1}:regress"),
    wrong("POST of metadata", "POST", f"{DEFAULT}/metadata"),
    wrong("POST of a version and a label", "POST", f"{DEFAULT}/versions/123/labels/stable:predict"),
    wrong("POST of an unknown label", "POST", f"{DEFAULT}/labels/nobody:predict"),
    wrong("POST to an unknown model", "POST", "/v1/models/foo:predict", 404),
    wrong("POST to a version of an unknown model", "POST", "/v1/models/foo/versions/50:predict", 404),
    wrong("POST to an unknown version", "POST", f"{DEFAULT}/versions/99:predict", 404),
    wrong("GET of an unknown model's status", "GET", "/v1/models/foo", 404),
    wrong("GET of an unknown version's status", "GET", f"{DEFAULT}/versions/99", 404),
    wrong("GET of an unknown model's metadata", "GET", "/v1/models/foo/metadata", 404),
    bad("an empty body", "default", b""),
    bad("a body that is no JSON", "default", b"instances = [1, 2]"),
    bad("strings for floats", "default", {"instances": ["1", "2"]}),
    post("a matrix for a vector", "default", {"instances": [[1.0, 2.0], [3.0, 4.0]]}, {"predictions": [[2.5, 3.0], [3.5, 4.0]]}, "a model of [None] takes one value a row"),
    row("predict of a version", "POST", f"{DEFAULT}/versions/123:predict", {"instances": [1.0, 2.0]}, 200, {"predictions": [2.5, 3.0]}),
    row("predict of a version and signature", "POST", f"{DEFAULT}/versions/123:predict", {"signature_name": "serving_default", "instances": [3.0, 4.0]}, 200, {"predictions": [3.5, 4.0]}),
    row("predict of a version in columns", "POST", f"{DEFAULT}/versions/123:predict", {"signature_name": "serving_default", "inputs": [3.0, 4.0]}, 200, {"outputs": [3.5, 4.0]}),
    row("predict of a label", "POST", f"{DEFAULT}/labels/stable:predict", {"instances": [3.0]}, 200, {"predictions": [3.5]}),
    row("regress of the newest", "POST", f"{DEFAULT}:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 80.0}]}, 200, {"results": [42.0]}),
    row("classify of a version", "POST", f"{DEFAULT}/versions/123:classify", {"signature_name": "classify_x_to_y", "examples": [{"x": 10.0}]}, 200, {"results": [[["", 7.0]]]}),
    row("status of a version", "GET", f"{DEFAULT}/versions/123", None, 200, STATUS, KSERVE_STATUS),
    row("metadata names the model", "GET", f"{DEFAULT}/versions/123/metadata", None, 200, Has({"model_spec": {"name": "default", "signature_name": "", "version": "123"}})),
]  # fmt: skip

TENSORS = [
    post("int32 rows", "ints", {"instances": [[1, 2], [3, 4], [5, 6]]}, {"predictions": [[1, 2], [3, 4], [5, 6]]}),
    post("int32 scalars", "flat_ints", {"instances": [1, 2, 3, 4, 5]}, {"predictions": [1, 2, 3, 4, 5]}),
    post("int32 scalars in columns", "flat_ints", {"inputs": [1, 2, 3]}, {"outputs": [1, 2, 3]}),
    post("whole and other numbers for floats", "default", {"instances": [1, 2.0, 3, 5.003, 0.007, 0.0]}, {"predictions": [2.5, 3.0, 3.5, 4.5015, 2.0035, 2.0]}),
    post("whole and other numbers for doubles", "doubles", {"instances": [1.0, 2, 3, 0.662, 0]}, {"predictions": [1.0, 2.0, 3.0, 0.662, 0.0]}),
    post("base64 scalars", "strings", {"instances": B64}, {"predictions": [5, 5]}),
    post("base64 in objects", "strings", {"instances": [{"x": one} for one in B64]}, {"predictions": [5, 5]}),
    post("base64 in columns", "strings", {"inputs": {"x": B64}}, {"outputs": [5, 5]}),
    post("booleans", "flags", {"instances": [True, False]}, {"predictions": [False, True]}),
    post("four named inputs of four types", "named", {"instances": NAMED}, {"predictions": MADE}),
    post("the same in columns", "named", {"inputs": COLUMNS}, {"outputs": {key: [one[key] for one in MADE] for key in MADE[0]}}),
    post("NaN in named inputs", "named", _first(float_tensor=[math.nan, 1.0]), {"predictions": [MADE[0], {**MADE[1], "floats": [math.nan, 1.0]}]}),
    post("Infinity in named inputs", "named", _first(float_tensor=[math.inf, 1.0]), {"predictions": [MADE[0], {**MADE[1], "floats": [math.inf, 1.0]}]}, FINITE),
    post("one named input in columns", "ints", {"inputs": {"x": [[1, 2], [3, 4]]}}, {"outputs": [[1, 2], [3, 4]]}),
    post("one unnamed input in columns", "ints", {"inputs": [[1, 2], [3, 4]]}, {"outputs": [[1, 2], [3, 4]]}),
    post("three dimensions in rows", "nested", {"instances": [[[1, 2], [3, 4], [5, 6]]]}, {"predictions": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]}),
    post("three dimensions in columns", "nested", {"inputs": [[[1, 2], [3, 4], [5, 6]]]}, {"outputs": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]}),
    post("an input that the model has not, in columns", "ints", {"inputs": {"x": [[1, 2]], "z": 1}}, {"outputs": [[1, 2]]}),
    post("another key beside instances", "ints", {"instances": [[1, 2]], "more": {"a": 1}}, {"predictions": [[1, 2]]}),
    post("digits of floats", "floats", {"instances": [[9000000, 999999, 0.5], [0.0003, 0.00003, 555557.5]]}, {"predictions": [[9e6, 999999.0, 0.5], [0.0003, 3e-05, 555557.5]]}),
    post("NaN in a reply", "floats", {"instances": [[math.nan, 3.0, 1.0]]}, {"predictions": [[math.nan, 3.0, 1.0]]}),
    post("infinities in a reply", "floats", {"instances": [[math.inf, 3.0, -math.inf]]}, {"predictions": [[math.inf, 3.0, -math.inf]]}, FINITE),
    post("half a million lists under another key", "ints", b'{"instances": [[1, 2]], "more": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", {"predictions": [[1, 2]]}, BOUNDED),
]  # fmt: skip

TENSOR_ERRORS = [
    bad("a signature_name that is a number", "ints", {"signature_name": 5, "instances": [[1, 2]]}),
    bad("an unknown signature", "ints", {"signature_name": "nobody", "instances": [[1, 2]]}),
    bad("instances and inputs", "ints", {"instances": [[1, 2]], "inputs": [[1, 2]]}),
    bad("neither", "ints", {"rows": [[1, 2]]}),
    bad("instances that are no list", "ints", {"instances": 1}),
    bad("no instance", "ints", {"instances": []}, EMPTY),
    bad("rows of two lengths", "ints", {"instances": [[1, 2], [3, 4], [5, 6, 7]]}),
    bad("rows of two depths", "ints", {"instances": [[1, 2], [3, 4], [[5, 6]]]}),
    bad("a scalar and a list", "ints", {"instances": [1, [1]]}),
    bad("numbers and strings", "ints", {"instances": [[1, 2], ["a", "b"]]}),
    bad("a float for an int32", "flat_ints", {"instances": [1.0]}),
    bad("an int32 beyond its range", "flat_ints", {"instances": [2**31]}),
    bad("a boolean for an int32", "flat_ints", {"instances": [True]}),
    bad("a double for a float", "default", {"instances": [MAX]}),
    bad("a whole number that a float rounds", "default", {"instances": [16777217]}, ROUNDED),
    bad("a string for a boolean", "flags", {"instances": ["true"]}),
    bad("named rows of two depths", "named", _first(int_tensor=[[7, 8], [9, 0]])),
    bad("named rows of two lengths", "named", _first(int_tensor=[7, 8, 9])),
    bad("a list among objects", "named", {"instances": [NAMED[0], [1, 20, 30]]}),
    bad("an object among lists", "strings", {"instances": ["baz", {"x": "bat"}]}),
    bad("a row that lacks an input", "named", {"instances": [{"int_tensor": [1, 2]}]}),
    bad("columns that lack an input", "named", {"inputs": {"int_tensor": [[1, 2]]}}),
    bad("base64 that is none", "strings", {"instances": [{"b64": "a"}]}),
]  # fmt: skip

CLASSIFY = [
    row("regress without a signature", "POST", f"{DEFAULT}:regress", {"examples": [{"x": 2.0}, {"x": [3.0]}]}, 200, {"results": [3.0, 3.5]}),
    row("classify without a signature", "POST", f"{DEFAULT}:classify", {"examples": [{"x": 2.0}, {"x": [3.0]}]}, 200, {"results": [[["", 3.0]], [["", 3.5]]]}),
    row("everything in the context", "POST", f"{DEFAULT}:regress", {"context": {"x": 2.0}, "examples": [{}, {}]}, 200, {"results": [3.0, 3.0]}),
    row("NaN in an example", "POST", f"{DEFAULT}:regress", {"examples": [{"x": math.nan}]}, 200, {"results": [math.nan]}),
    row("integers and booleans in an example", "POST", "/v1/models/flat_ints:regress", {"examples": [{"x": [1]}, {"x": [True]}]}, 200, {"results": [1, 1]}),
]  # fmt: skip
CLASSIFY += [
    bad(f"{verb}: {name}", "default", body, verb=verb)
    for verb in ("classify", "regress")
    for name, body in (
        ("a signature_name that is a list", {"signature_name": ["hello"], "examples": [{"x": 1.0}]}),
        ("examples that are an object", {"examples": {"x": 1.0}}),
        ("an example that is a list", {"examples": [[{"x": 1.0}]]}),
        ("an object in a feature", {"examples": [{"x": [10, {"test": 10}]}]}),
        ("an integer beyond int64", {"examples": [{"x": [20, 18446744073709551603]}]}),
    )
]
STRING_OUTPUT = [
    row("a string output is in the metadata", "GET", "/v1/models/named_lengths/metadata", None, 200, Has({"metadata": Has({"signature_def": Has({"signature_def": Has({"serving_default": Has({"outputs": Has({"name": Anything()})})})})})})),
]  # fmt: skip

SUITE = [*SERVER, *HANDLER, *TENSORS, *TENSOR_ERRORS, *CLASSIFY, *STRING_OUTPUT]
