"""TensorFlow Serving's REST: predict, in row form (instances) and column form (inputs), classify and regress."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits, RequestSize
from freshet_serving.processor.package import Input, Manifest
from freshet_serving.serving.codecs import examples
from freshet_serving.serving.codecs.json_columns import column, has_booleans, is_base64
from freshet_serving.serving.codecs.wire import (
    SIGNATURE,
    Body,
    Headers,
    dump_json,
    header_timeout_s,
    json_number,
    json_numbers,
    load_json,
    show,
)

MAX_IGNORED = 10


class PredictOptions(NamedTuple):
    """The options of a predict request, how it wants its answer. row: `predictions` rather than `outputs`. method: or
    `results`, of classify or regress. ignored: inputs that were sent and that the model does not have, for a header."""

    row: bool
    timeout_s: float | None = None
    method: str = "predict"
    ignored: bytes = b""


def decode(
    body: Body, headers: Headers, manifest: Manifest, limits: RequestLimits = DEFAULTS
) -> tuple[dict[str, Column], PredictOptions]:
    """A predict body (already inflated) as the manifest's inputs; raises BadInput with TensorFlow Serving's wording,
    and TooLarge."""
    document = load_json(body, limits)
    _check_signature(document)
    timeout_s, plain, extent = header_timeout_s(headers), not has_booleans(body), RequestSize(limits)
    if "instances" in document:
        if "inputs" in document:
            raise BadInput("Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
        return _rows(document["instances"], manifest.inputs, plain, extent), PredictOptions(True, timeout_s)
    if "inputs" not in document:
        raise BadInput("Missing 'inputs' or 'instances' key")
    given = document["inputs"]
    inputs = _columns(given, manifest.inputs, plain, extent)
    ignored = _ignored(given, inputs) if type(given) is dict and len(given) > len(inputs) else b""
    return inputs, PredictOptions(False, timeout_s, ignored=ignored)


def _ignored(given: dict[str, Any], inputs: Mapping[str, Column]) -> bytes:
    """The names that TensorFlow Serving passes over in this form, as a header may hold them."""
    names = islice((name for name in given if name not in inputs), MAX_IGNORED)
    return ", ".join([quote(name[:64]) for name in names]).encode()


def _check_signature(document: dict[str, Any]) -> None:
    name = document.get("signature_name", SIGNATURE)
    if type(name) is not str:
        raise BadInput("Not formatted correctly. 'signature_name' key must be a string value.")
    check_signature(name)


def check_signature(name: str) -> None:
    """Raises BadInput when it is not the one signature there is, or none."""
    if name not in (SIGNATURE, ""):
        raise BadInput(f"Serving signature name: {show(name)} not found in signature def, wanted {SIGNATURE!r}")


def _rows(instances: Any, inputs: list[Input], plain: bool, extent: RequestSize) -> dict[str, Column]:
    if type(instances) is not list:
        raise BadInput(f"Expecting 'instances' to be a list/array, got {json_kind(instances)}")
    if not instances:
        raise BadInput("No values in 'instances' array")
    extent.add_rows(len(instances), "'instances'")
    if type(instances[0]) is not dict or is_base64(instances[0]):
        if len(inputs) > 1:
            raise BadInput(
                "instances is a plain list, but expecting list of objects as multiple inputs are required: "
                + ", ".join(i.name for i in inputs)
            )
        for at, element in enumerate(instances):
            if type(element) is dict and not is_base64(element):
                raise BadInput(f"Expecting value/list but got object at item {at} of input list")
        return {inputs[0].name: _of_instances(inputs[0], instances, plain, extent)}
    names = {i.name for i in inputs}
    if set(map(type, instances)) != {dict} or set(map(len, instances)) != {len(names)}:
        _refuse_rows(instances, names)
    try:
        values = [list(map(itemgetter(i.name), instances)) for i in inputs]
    except KeyError:
        _refuse_rows(instances, names)
    return {i.name: _of_instances(i, given, plain, extent) for i, given in zip(inputs, values)}


def _refuse_rows(instances: list[Any], names: set[str]) -> NoReturn:
    """Says what is wrong with the first row that is not an object of these keys."""
    for at, element in enumerate(instances):
        if type(element) is not dict or is_base64(element):
            raise BadInput(f"Expecting object but got list at item {at} of input list")
        if element.keys() != names:
            raise BadInput(
                f"Failed to process element: {at} of 'instances' list. JSON object with keys "
                f"{show(','.join(islice(element, 64)))}: keys must be equal to: {','.join(sorted(names))}"
            )
    raise AssertionError("a row is wrong")


def _of_instances(spec: Input, values: list[Any], plain: bool, extent: RequestSize) -> Column:
    try:
        return column(spec, values, plain, extent)
    except BadInput as error:
        raise BadInput(f"Failed to process 'instances' list. Error: {error}") from None


def _columns(values: Any, inputs: list[Input], plain: bool, extent: RequestSize) -> dict[str, Column]:
    if type(values) is not dict or is_base64(values):
        if len(inputs) > 1:
            raise BadInput(
                "inputs is a plain value/list, but expecting an object as multiple inputs are required: "
                + ", ".join(i.name for i in inputs)
            )
        return {inputs[0].name: column(inputs[0], values, plain, extent)}
    for spec in inputs:
        if spec.name not in values:
            raise BadInput(f"Missing named input: {spec.name} in 'inputs' object.")
    return {spec.name: column(spec, values[spec.name], plain, extent) for spec in inputs}


def decode_examples(
    body: Body, headers: Headers, manifest: Manifest, method: str, limits: RequestLimits = DEFAULTS
) -> tuple[dict[str, Column], PredictOptions]:
    """A classify or regress body (already inflated) as the manifest's inputs; raises BadInput, TooLarge."""
    document = load_json(body, limits)
    _check_signature(document)
    if "examples" not in document:
        raise BadInput(f"When method is {method}, key 'examples' is expected and was not found")
    extent = RequestSize(limits)
    given, context = examples.of_json(document["examples"], document.get("context", {}), extent)
    return examples.columns(given, context, manifest, extent), PredictOptions(True, header_timeout_s(headers), method)


def encode_results(outputs: Mapping[str, NDArray[np.float32]], options: PredictOptions) -> bytes:
    """The reply of classify, [label, score] for each class of each example, or of regress, one number for each."""
    if options.method == "regress":
        return dump_json({"results": json_numbers(np.ascontiguousarray(examples.regressions(outputs)))})
    rows = examples.classes(outputs)
    return dump_json({"results": [[["", json_number(score)] for score in row] for row in rows]})


def encode(outputs: Mapping[str, NDArray[Any]], options: PredictOptions) -> bytes:
    """The reply's JSON: `predictions` or `outputs`; bare values when the model has one output.

    outputs: [n, ...] each, of the same n.
    """
    key = "predictions" if options.row else "outputs"
    arrays = {name: json_numbers(np.ascontiguousarray(array)) for name, array in outputs.items()}
    if len(outputs) == 1:
        return dump_json({key: next(iter(arrays.values()))})
    if not options.row:
        return dump_json({key: arrays})
    rows = zip(*([json_numbers(row) for row in np.ascontiguousarray(array)] for array in outputs.values()))
    return dump_json({key: [dict(zip(outputs, row)) for row in rows]})
