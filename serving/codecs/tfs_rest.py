"""TensorFlow Serving's REST predict: row form (instances) and column form (inputs), in and out, status and
metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.columns import Column
from processor.errors import BadInput
from processor.package.manifest import Input, Manifest
from serving.codecs.json_columns import DT_NAMES, column, is_base64
from serving.codecs.wire import Headers, dump_json, header_timeout_s, json_numbers, kind, load_json, show

SIGNATURE = "serving_default"
JSON_TYPE = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Options:
    """How the request wants its answer. row: `predictions` rather than `outputs`."""

    row: bool
    timeout_s: float | None = None


def decode(body: bytes, headers: Headers, manifest: Manifest) -> tuple[dict[str, Column], Options]:
    """A predict body (already inflated) as the manifest's inputs; raises BadInput with TensorFlow Serving's
    wording."""
    document = load_json(body)
    _check_signature(document)
    timeout_s = header_timeout_s(headers)
    if "instances" in document:
        if "inputs" in document:
            raise BadInput("Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
        return _rows(document["instances"], manifest.inputs), Options(True, timeout_s)
    if "inputs" not in document:
        raise BadInput("Missing 'inputs' or 'instances' key")
    return _columns(document["inputs"], manifest.inputs), Options(False, timeout_s)


def _check_signature(document: dict[str, Any]) -> None:
    name = document.get("signature_name", SIGNATURE)
    if type(name) is not str:
        raise BadInput("Not formatted correctly. 'signature_name' key must be a string value.")
    if name not in (SIGNATURE, ""):
        raise BadInput(f"Serving signature name: {show(name)} not found in signature def, wanted {SIGNATURE!r}")


def _rows(instances: Any, inputs: list[Input]) -> dict[str, Column]:
    if type(instances) is not list:
        raise BadInput(f"Expecting 'instances' to be a list/array, got {kind(instances)}")
    if not instances:
        raise BadInput("No values in 'instances' array")
    if type(instances[0]) is not dict or is_base64(instances[0]):
        if len(inputs) > 1:
            raise BadInput(
                "instances is a plain list, but expecting list of objects as multiple inputs are required: "
                + ", ".join(i.name for i in inputs)
            )
        for at, element in enumerate(instances):
            if type(element) is dict and not is_base64(element):
                raise BadInput(f"Expecting value/list but got object at item {at} of input list")
        return {inputs[0].name: _of_instances(inputs[0], instances)}
    names = {i.name for i in inputs}
    for at, element in enumerate(instances):
        if type(element) is not dict or is_base64(element):
            raise BadInput(f"Expecting object but got list at item {at} of input list")
        if element.keys() != names:
            raise BadInput(
                f"Failed to process element: {at} of 'instances' list. JSON object with keys "
                f"{show(','.join(element))}: keys must be equal to: {','.join(sorted(names))}"
            )
    return {i.name: _of_instances(i, [element[i.name] for element in instances]) for i in inputs}


def _of_instances(spec: Input, values: list[Any]) -> Column:
    try:
        return column(spec, values)
    except BadInput as error:
        raise BadInput(f"Failed to process 'instances' list. Error: {error}") from None


def _columns(values: Any, inputs: list[Input]) -> dict[str, Column]:
    if type(values) is not dict or is_base64(values):
        if len(inputs) > 1:
            raise BadInput(
                "inputs is a plain value/list, but expecting an object as multiple inputs are required: "
                + ", ".join(i.name for i in inputs)
            )
        return {inputs[0].name: column(inputs[0], values)}
    for spec in inputs:
        if spec.name not in values:
            raise BadInput(f"Missing named input: {spec.name} in 'inputs' object.")
    return {spec.name: column(spec, values[spec.name]) for spec in inputs}


def encode(outputs: Mapping[str, NDArray[np.float32]], options: Options) -> bytes:
    """The reply's JSON: `predictions` or `outputs`; bare values when the model has one output.

    outputs: float32 [n, columns] each, of the same n.
    """
    key = "predictions" if options.row else "outputs"
    arrays = {name: json_numbers(np.ascontiguousarray(array)) for name, array in outputs.items()}
    if len(outputs) == 1:
        return dump_json({key: next(iter(arrays.values()))})
    if not options.row:
        return dump_json({key: arrays})
    rows = zip(*([json_numbers(row) for row in np.ascontiguousarray(array)] for array in outputs.values()))
    return dump_json({key: [dict(zip(outputs, row)) for row in rows]})


def encode_status(versions: Iterable[tuple[int, str, str]]) -> bytes:
    """The status reply. versions: (version, state, error message or "")."""
    statuses = [
        {
            "version": str(version),
            "state": state,
            "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
        }
        for version, state, error in versions
    ]
    return dump_json({"model_version_status": statuses})


def encode_metadata(manifest: Manifest, model: str, version: int) -> bytes:
    """The metadata reply: one predict signature, nested as TensorFlow Serving nests it."""
    inputs = {i.name: _tensor_info(i.name, DT_NAMES[i.dtype], _dims(i)) for i in manifest.inputs}
    outputs = {o.name: _tensor_info(o.name, "DT_FLOAT", [-1, o.columns]) for o in manifest.outputs}
    signature = {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict"}
    return dump_json(
        {
            "model_spec": {"name": model, "signature_name": "", "version": str(version)},
            "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
        }
    )


def _dims(spec: Input) -> list[int]:
    if spec.ragged:
        return [-1, -1]
    return [-1, spec.columns] if spec.columns else [-1]


def _tensor_info(name: str, dtype: str, dims: list[int]) -> dict[str, Any]:
    shape = {"dim": [{"size": str(d), "name": ""} for d in dims], "unknown_rank": False}
    return {"dtype": dtype, "tensor_shape": shape, "name": name}
