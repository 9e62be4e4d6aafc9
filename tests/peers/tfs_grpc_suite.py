"""TensorFlow Serving over gRPC: what tensorflow_model_server_test.py expects, and clients that send its types."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from freshet_serving.serving.codecs.messages import POOL, message
from tests.peers.expectations import Anything, Expectation, Has, Where

PACKAGE = "tensorflow.serving."
TIMEOUT_S = 30.0


def call(method: str, document: dict[str, Any], reply: str = "", kind: str = "", service: str = "Prediction") -> Any:
    """A call, by its message as JSON; it answers the status, and the reply as JSON."""
    kind = f"{PACKAGE}{kind or method + 'Request'}"

    def ask(server: Any) -> list[Any]:
        made = ParseDict(document, message(kind)(), descriptor_pool=POOL)
        answer = message(f"{PACKAGE}{reply or method + 'Response'}")
        stub = server.channel.unary_unary(
            f"/{PACKAGE}{service}Service/{method}", lambda m: m.SerializeToString(), answer.FromString
        )
        try:
            got = stub(made, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return [error.code().name, {"error": error.details()}]
        return ["OK", MessageToDict(got, preserving_proto_field_name=True, descriptor_pool=POOL)]

    return ask


def tensor(dtype: str, shape: list[int] | None, **values: Any) -> dict[str, Any]:
    dims = {"unknown_rank": True} if shape is None else {"dim": [{"size": str(size)} for size in shape]}
    return {"dtype": f"DT_{dtype}", "tensor_shape": dims, **values}


X = {"x": tensor("FLOAT", [1], float_val=[2.0])}
SPEC = {"name": "default", "signature_name": "serving_default", "version": "123"}
EXAMPLE = {"features": {"feature": {"x": {"float_list": {"value": [2.0]}}}}}
LIST = {"example_list": {"examples": [EXAMPLE]}}
CONTEXT = {"example_list_with_context": {"context": EXAMPLE, "examples": [{}, {}]}}


def predict(name: str, inputs: Any, expected: Any, miss: str = "", spec: Any = None, **more: Any) -> Expectation:
    """A prediction that is answered."""
    document = {"model_spec": spec or {"name": "default"}, "inputs": inputs, **more}
    return Expectation(name, call("Predict", document), ["OK", expected], miss)


def refused(
    name: str, code: str, document: dict[str, Any], miss: str = "", method: str = "Predict", **more: Any
) -> Expectation:
    return Expectation(name, call(method, document, **more), [code, Has({"error": Where(bool)})], miss)


def output(dtype: str, shape: list[int], **values: Any) -> Has:
    # An empty list is left out of a message's JSON.
    dims = tensor("", shape)["tensor_shape"] if shape else {}
    return Has({"outputs": {"y": {"dtype": f"DT_{dtype}", "tensor_shape": dims, **values}}})


def same_type(dtype: str, model: str, field: str, sent: list[Any], back: list[Any], miss: str = "") -> Expectation:
    inputs = {"x": tensor(dtype, [len(sent)], **{field: sent})}
    return predict(
        f"{dtype} comes back as {dtype}", inputs, output(dtype, [len(back)], **{field: back}), miss, {"name": model}
    )


Y = output("FLOAT", [1], float_val=[3.0])
CLASSIFIED = {"classifications": [{"classes": [{"score": 3.0}]}]}
REGRESSED = {"regressions": [{"value": 3.0}]}
TASKS = [
    {"model_spec": {"name": "default", "signature_name": f"{verb}_x_to_y"}, "method_name": f"tensorflow/serving/{verb}"}
    for verb in ("regress", "classify")
]
DEFAULT_TASKS = [{**task, "model_spec": {"name": "default"}} for task in TASKS]
DEFINITIONS = ("serving_default", "regress_x_to_y", "regress_x_to_y2", "classify_x_to_y")


def metadata(name: str, spec: dict[str, Any], keys: tuple[str, ...], miss: str = "") -> Expectation:
    def ask(server: Any) -> list[Any]:
        request = {"model_spec": spec, "metadata_field": ["signature_def"]}
        made = ParseDict(request, message(f"{PACKAGE}GetModelMetadataRequest")(), descriptor_pool=POOL)
        reply = message(f"{PACKAGE}GetModelMetadataResponse")
        stub = server.channel.unary_unary(
            f"/{PACKAGE}PredictionService/GetModelMetadata", lambda m: m.SerializeToString(), reply.FromString
        )
        got = stub(made, timeout=TIMEOUT_S)
        signatures = message(f"{PACKAGE}SignatureDefMap")()
        got.metadata["signature_def"].Unpack(signatures)
        inputs = signatures.signature_def["serving_default"].inputs
        return [got.model_spec.name, sorted(signatures.signature_def), {k: v.dtype for k, v in inputs.items()}]

    return Expectation(name, ask, [spec["name"], sorted(keys), Anything()], miss)


SUITE = [
    Expectation("status", call("GetModelStatus", {"model_spec": {"name": "default"}}, service="Model"), ["OK", {"model_version_status": [{"version": "123", "state": "AVAILABLE", "status": {}}]}]),
    Expectation("status of a version", call("GetModelStatus", {"model_spec": {"name": "default", "version": "123"}}, service="Model"), ["OK", Has({"model_version_status": Anything()})]),
    refused("status of an unknown model", "NOT_FOUND", {"model_spec": {"name": "nobody"}}, method="GetModelStatus", service="Model"),
    refused("status without a model", "INVALID_ARGUMENT", {}, method="GetModelStatus", service="Model"),
    predict("predict with an output filter", X, Y, output_filter=["y"]),
    predict("predict without one", X, Y),
    predict("the reply names what answered", X, Has({"model_spec": SPEC})),
    predict("half_plus_three", X, output("FLOAT", [1], float_val=[4.0]), spec={"name": "half_plus_three"}),
    predict("a version", X, Has({"model_spec": SPEC}), spec={"name": "default", "version": "123"}),
    predict("a label", X, Has({"model_spec": SPEC}), spec={"name": "default", "version_label": "stable"}),
    predict("a signature", X, Has({"model_spec": SPEC}), spec={"name": "default", "signature_name": "serving_default"}),
    predict("tensor_content", {"x": tensor("FLOAT", [1], tensor_content="AAAAQA==")}, Y),
    predict("a value for all", {"x": tensor("FLOAT", [2], float_val=[2.0])}, output("FLOAT", [2], float_val=[3.0, 3.0])),
    predict("a scalar", {"x": tensor("FLOAT", [], float_val=[2.0])}, output("FLOAT", [], float_val=[3.0])),
    predict("an unknown rank", {"x": tensor("FLOAT", None, float_val=[2.0])}, Anything()),
    same_type("INT32", "flat_ints", "int_val", [1, 2], [1, 2]),
    same_type("DOUBLE", "doubles", "double_val", [0.5, 2.0], [0.5, 2.0]),
    same_type("BOOL", "flags", "bool_val", [True, False], [False, True]),
    predict("strings", {"x": tensor("STRING", [1], string_val=["aGVsbG8="])}, output("INT32", [1], int_val=[5]), spec={"name": "strings"}),
    predict("a string output", {"x": tensor("STRING", [1], string_val=["aGVsbG8="])}, {"outputs": {"name": tensor("STRING", [1], string_val=["bG9uZw=="])}, "model_spec": {**SPEC, "name": "named_lengths"}}, spec={"name": "named_lengths"}, output_filter=["name"]),
    Expectation("classify by signature", call("Classify", {"model_spec": {"name": "default", "signature_name": "classify_x_to_y"}, "input": LIST}, kind="ClassificationRequest", reply="ClassificationResponse"), ["OK", Has({"result": CLASSIFIED})]),
    Expectation("regress by signature", call("Regress", {"model_spec": {"name": "default", "signature_name": "regress_x_to_y"}, "input": LIST}, kind="RegressionRequest", reply="RegressionResponse"), ["OK", Has({"result": REGRESSED})]),
    Expectation("classify", call("Classify", {"model_spec": {"name": "default"}, "input": LIST}, kind="ClassificationRequest", reply="ClassificationResponse"), ["OK", {"result": CLASSIFIED, "model_spec": SPEC}]),
    Expectation("regress", call("Regress", {"model_spec": {"name": "default"}, "input": LIST}, kind="RegressionRequest", reply="RegressionResponse"), ["OK", {"result": REGRESSED, "model_spec": SPEC}]),
    Expectation("regress with all in the context", call("Regress", {"model_spec": {"name": "default"}, "input": CONTEXT}, kind="RegressionRequest", reply="RegressionResponse"), ["OK", Has({"result": {"regressions": [{"value": 3.0}, {"value": 3.0}]}})]),
    Expectation("two tasks of two signatures", call("MultiInference", {"tasks": TASKS, "input": LIST}), ["OK", Has({"results": Anything()})]),
    Expectation("two tasks", call("MultiInference", {"tasks": DEFAULT_TASKS, "input": LIST}), ["OK", {"results": [{"model_spec": SPEC, "regression_result": REGRESSED}, {"model_spec": SPEC, "classification_result": CLASSIFIED}]}]),
    metadata("metadata of the signature", {"name": "flags"}, ("serving_default",)),
    metadata("metadata of all signatures", {"name": "default"}, DEFINITIONS),
    refused("no model_spec", "INVALID_ARGUMENT", {"inputs": X}),
    refused("an unknown model", "NOT_FOUND", {"model_spec": {"name": "nobody"}, "inputs": X}),
    refused("an unknown version", "NOT_FOUND", {"model_spec": {"name": "default", "version": "9"}, "inputs": X}),
    refused("an unknown output", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}, "inputs": X, "output_filter": ["z"]}),
    refused("an unknown input", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}, "inputs": {**X, "z": X["x"]}}),
    refused("no input", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}}),
    refused("another type", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}, "inputs": {"x": tensor("STRING", [1], string_val=["aGVsbG8="])}}),
    refused("values that are too many", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}, "inputs": {"x": tensor("FLOAT", [1], float_val=[2.0, 3.0])}}),
    refused("no example", "INVALID_ARGUMENT", {"model_spec": {"name": "default"}, "input": {}}, method="Regress", kind="RegressionRequest", reply="RegressionResponse"),
]  # fmt: skip
