"""The Open Inference Protocol's REST text: endpoints, required members, types, order, errors."""

from __future__ import annotations

from typing import Any

from tests.peers.expectations import ERROR, Anything, Expectation, Has, Where, row

MODEL = "/v2/models/default"
INFER = f"{MODEL}/infer"
NAMED = "/v2/models/named/infer"
TEXT = Where(lambda value: isinstance(value, str) and bool(value))
TEXTS = Where(lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value))
# The text names no status for a model that is not there: Triton's is 400.
NOT_READY = Where(lambda status: 400 <= status < 500)
PLATFORM = Where(lambda value: isinstance(value, str) and "_" in value.strip("_"))


def tensor(name: str, datatype: str, shape: list[int], data: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


X = tensor("x", "FP32", [2], [2.0, 4.0])
Y = tensor("y", "FP32", [2], [3.0, 4.0])
INPUTS = [
    tensor("int_tensor", "INT32", [1, 2], [1, 2]), tensor("str_tensor", "BYTES", [1, 2], ["foo", "ba"]),
    tensor("float_tensor", "FP32", [1, 2], [1.0, 0.5]), tensor("dbl_tensor", "FP64", [1], [8.0]),
]  # fmt: skip
OUTPUTS = {
    "ints": tensor("ints", "INT32", [1, 2], [1, 2]), "lengths": tensor("lengths", "INT32", [1, 2], [3, 2]),
    "floats": tensor("floats", "FP32", [1, 2], [1.0, 0.5]), "doubles": tensor("doubles", "FP64", [1], [8.0]),
}  # fmt: skip


def infer(name: str, body: Any, document: Any, path: str = INFER, **more: Any) -> Expectation:
    return row(name, "POST", path, body, 200, document, **more)


def bad(name: str, body: Any, path: str = INFER, status: int = 400) -> Expectation:
    return row(name, "POST", path, body, status, ERROR)


def outputs(*wanted: Any) -> Has:
    return Has({"outputs": list(wanted)})


def _asked_for(document: Any) -> bool:
    """Its outputs are those that were asked for; the text names no order."""
    return sorted(o["name"] for o in document["outputs"]) == ["floats", "ints"]


HEALTH = [
    row("server live", "GET", "/v2/health/live", None, 200, {"live": True}),
    row("server ready", "GET", "/v2/health/ready", None, 200, {"ready": True}),
    row("model ready", "GET", f"{MODEL}/ready", None, 200, {"name": "default", "ready": True}),
    row("model version ready", "GET", f"{MODEL}/versions/123/ready", None, 200, {"name": "default", "ready": True}),
    row("an unknown model is not ready", "GET", "/v2/models/nobody/ready", None, NOT_READY, ERROR),
    row("an unknown version is not ready", "GET", f"{MODEL}/versions/9/ready", None, NOT_READY, ERROR),
]
METADATA = [
    row("server metadata", "GET", "/v2", None, 200, {"name": TEXT, "version": TEXT, "extensions": TEXTS}),
    row("model metadata", "GET", MODEL, None, 200, {"name": "default", "versions": ["123"], "platform": PLATFORM, "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}),
    row("model metadata of a version", "GET", f"{MODEL}/versions/123", None, 200, Has({"name": "default", "inputs": Anything()})),
    row("platform is project_format", "GET", MODEL, None, 200, Has({"platform": PLATFORM})),
    row("datatypes of the model", "GET", "/v2/models/named", None, 200, Has({"inputs": Where(lambda given: sorted((i["name"], i["datatype"], tuple(i["shape"])) for i in given) == [("dbl_tensor", "FP64", (-1,)), ("float_tensor", "FP32", (-1, 2)), ("int_tensor", "INT32", (-1, 2)), ("str_tensor", "BYTES", (-1, 2))])})),
    row("metadata of a boolean", "GET", "/v2/models/flags", None, 200, Has({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [-1]}], "outputs": [{"name": "y", "datatype": "BOOL", "shape": [-1]}]})),
    row("metadata of an unknown model", "GET", "/v2/models/nobody", None, 404, ERROR),
    row("metadata of an unknown version", "GET", f"{MODEL}/versions/9", None, 404, ERROR),
]  # fmt: skip
ANSWERED = [
    infer("outputs of a request", {"inputs": [X]}, outputs(Y)),
    infer("the reply names the model", {"inputs": [X]}, Has({"model_name": "default"})),
    infer("the reply names the version", {"inputs": [X]}, Has({"model_version": "123"})),
    infer("a version that is asked for", {"inputs": [X]}, Has({"model_version": "123", "outputs": [Y]}), f"{MODEL}/versions/123/infer"),
    infer("the id comes back", {"id": "42", "inputs": [X]}, Has({"id": "42"})),
    infer("no id, none back", {"inputs": [X]}, Where(lambda document: "id" not in document)),
    infer("parameters of a request", {"parameters": {"note": "x", "n": 1, "b": True}, "inputs": [X]}, outputs(Y)),
    infer("parameters of an input", {"inputs": [{**X, "parameters": {"note": "x"}}]}, outputs(Y)),
    infer("an output that is asked for", {"inputs": [X], "outputs": [{"name": "y"}]}, outputs(Y)),
    infer("parameters of an output", {"inputs": [X], "outputs": [{"name": "y", "parameters": {"note": "x"}}]}, outputs(Y)),
    infer("all outputs without any asked for", {"inputs": INPUTS}, Has({"outputs": Where(lambda given: {o["name"]: o for o in given} == OUTPUTS)}), NAMED),
    infer("some outputs and no others", {"inputs": INPUTS, "outputs": [{"name": "floats"}, {"name": "ints"}]}, Where(_asked_for), NAMED),
    infer("inputs in another order", {"inputs": INPUTS[::-1]}, Has({"outputs": Anything()}), NAMED),
    infer("nested data", {"inputs": [tensor("x", "INT32", [2, 2], [[1, 2], [3, 4]])]}, outputs(tensor("y", "INT32", [2, 2], [1, 2, 3, 4])), "/v2/models/ints/infer"),
    infer("flat data", {"inputs": [tensor("x", "INT32", [2, 2], [1, 2, 3, 4])]}, outputs(tensor("y", "INT32", [2, 2], [1, 2, 3, 4])), "/v2/models/ints/infer"),
    infer("BOOL", {"inputs": [tensor("x", "BOOL", [2], [True, False])]}, outputs(tensor("y", "BOOL", [2], [False, True])), "/v2/models/flags/infer"),
    infer("INT32", {"inputs": [tensor("x", "INT32", [1], [7])]}, outputs(tensor("y", "INT32", [1], [7])), "/v2/models/flat_ints/infer"),
    infer("FP64", {"inputs": [tensor("x", "FP64", [1], [0.5])]}, outputs(tensor("y", "FP64", [1], [0.5])), "/v2/models/doubles/infer"),
    infer("BYTES", {"inputs": [tensor("x", "BYTES", [2], ["a", "bcd"])]}, outputs(tensor("y", "INT32", [2], [1, 3])), "/v2/models/strings/infer"),
    infer("FP32 as whole numbers", {"inputs": [tensor("x", "FP32", [2], [2, 4])]}, outputs(Y)),
]  # fmt: skip
REFUSED = [
    bad("an unknown model", {"inputs": [X]}, "/v2/models/nobody/infer", 404),
    bad("an unknown version", {"inputs": [X]}, f"{MODEL}/versions/9/infer", 404),
    bad("no JSON", b"{"),
    bad("no object", b"[1]"),
    bad("no inputs", {}),
    bad("inputs that are no list", {"inputs": X}),
    bad("an input without a name", {"inputs": [{key: X[key] for key in ("datatype", "shape", "data")}]}),
    bad("an input without a datatype", {"inputs": [{key: X[key] for key in ("name", "shape", "data")}]}),
    bad("an input without a shape", {"inputs": [{key: X[key] for key in ("name", "datatype", "data")}]}),
    bad("an input without data", {"inputs": [{key: X[key] for key in ("name", "datatype", "shape")}]}),
    bad("an unknown input", {"inputs": [{**X, "name": "z"}]}),
    bad("an unknown datatype", {"inputs": [{**X, "datatype": "FLOAT"}]}),
    bad("a shape that the data do not fill", {"inputs": [{**X, "shape": [3]}]}),
    bad("a negative shape", {"inputs": [{**X, "shape": [-1]}]}),
]
SUITE = [*HEALTH, *METADATA, *ANSWERED, *REFUSED]
