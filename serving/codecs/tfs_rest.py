"""Decode and encode TensorFlow Serving's REST API: predict (row and column format), classify and regress."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits, RequestSize
from freshet_serving.processor.package import Input, Manifest, expected_lists
from freshet_serving.serving.codecs import examples, user_calls
from freshet_serving.serving.codecs.json_columns import column, has_booleans, is_base64
from freshet_serving.serving.codecs.tensor_types import flat_outputs
from freshet_serving.serving.codecs.wire import (
    IGNORED_INPUTS,
    JSON_TYPE,
    Body,
    Headers,
    dump_json,
    header_timeout_s,
    json_number,
    json_values,
    load_json,
    show,
)

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.request import PredictReply

RawHeaders = tuple[tuple[bytes, bytes], ...]

MAX_IGNORED = 10
NONE: frozenset[str] = frozenset()


class PredictOptions(NamedTuple):
    """Reply options of a predict request.

    Attributes:
        row: Reply with `predictions` (row format) instead of `outputs` (column format).
        timeout_s: From the request's header.
        method: "predict", or "classify" or "regress", whose replies hold `results`.
        ignored: Names of inputs that were sent but that the model does not have, as a header value.
        signature: The signature that replies.
        flat: Names of outputs that leave out their last dimension, as the request's values do.
    """

    row: bool
    timeout_s: float | None = None
    method: str = "predict"
    ignored: bytes = b""
    signature: str = ""
    flat: frozenset[str] = NONE


def decode(
    body: Body, headers: Headers, manifest: Manifest, limits: RequestLimits = DEFAULTS, regions: Any = None
) -> tuple[dict[str, Column], PredictOptions]:
    """Decode an inflated predict body to the model's inputs; messages use TensorFlow Serving's wording.

    `regions` is not used: only other dialects have shared memory.
    """
    document = load_json(body, limits)
    sent = document.get("instances") or document.get("inputs")
    first = sent[0] if sent and type(sent) is list else sent
    if type(first) is dict and user_calls.ID in first:
        call = user_calls.take_from_document(document, manifest)
        if call is not None:
            inputs, options = _decode(document, body, headers, user_calls.readable(manifest), limits)
            return user_calls.UserInputs(inputs, call), options
    return _decode(document, body, headers, manifest, limits)


def _decode(
    document: dict[str, Any], body: Body, headers: Headers, manifest: Manifest, limits: RequestLimits
) -> tuple[dict[str, Column], PredictOptions]:
    signature = _signature(document, manifest)
    timeout_s, plain, extent = header_timeout_s(headers), not has_booleans(body), RequestSize(limits)
    if "instances" in document:
        if "inputs" in document:
            raise BadInput("Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
        rows = document["instances"]
        inputs = _rows(rows, manifest, plain, extent)
        flat = NONE if manifest.plain else flat_outputs(manifest, signature)
        if flat and any(list in map(type, row.values()) if type(row) is dict else type(row) is list for row in rows):
            flat = NONE
        return inputs, PredictOptions(True, timeout_s, signature=signature, flat=flat)
    if "inputs" not in document:
        raise BadInput("Missing 'inputs' or 'instances' key")
    sent = document["inputs"]
    inputs = _columns(sent, manifest, plain, extent)
    by_input = manifest.by_input(sent) if type(sent) is dict else dict.fromkeys(inputs, sent)
    ignored = _ignored(by_input, inputs) if len(by_input) > len(inputs) else b""
    flat = NONE if manifest.plain else flat_outputs(manifest, signature)
    # Inputs that are ignored may hold anything.
    if flat and any(list in map(type, by_input[name]) for name in inputs):
        flat = NONE
    return inputs, PredictOptions(False, timeout_s, ignored=ignored, signature=signature, flat=flat)


def _ignored(columns: Mapping[str, Any], inputs: Mapping[str, Column]) -> bytes:
    names = islice((name for name in columns if name not in inputs), MAX_IGNORED)
    return ", ".join([quote(name[:64]) for name in names]).encode()


def _signature(document: dict[str, Any], manifest: Manifest) -> str:
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise BadInput("Not formatted correctly. 'signature_name' key must be a string value.")
    if name:
        manifest.replies(name)
    return name


def _rows(instances: Any, manifest: Manifest, plain: bool, extent: RequestSize) -> dict[str, Column]:
    if type(instances) is not list:
        raise BadInput(f"Expecting 'instances' to be a list/array, got {json_kind(instances)}")
    if not instances:
        return {i.name: _of_instances(i, [], plain, extent) for i in manifest.inputs}
    extent.add_rows(len(instances), "'instances'")
    inputs = manifest.inputs
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
    if manifest.own_names:
        instances = [manifest.by_input(instance) if type(instance) is dict else instance for instance in instances]
    inputs = manifest.expected_inputs(instances[0]) if manifest.fillers else inputs
    names = {i.name for i in inputs}
    if set(map(type, instances)) != {dict} or set(map(len, instances)) != {len(names)}:
        _refuse_rows(instances, names, manifest)
    try:
        values = [list(map(itemgetter(i.name), instances)) for i in inputs]
    except KeyError:
        _refuse_rows(instances, names, manifest)
    return {i.name: _of_instances(i, column, plain, extent) for i, column in zip(inputs, values)}


def _refuse_rows(instances: list[Any], names: set[str], manifest: Manifest) -> NoReturn:
    for at, element in enumerate(instances):
        if type(element) is not dict or is_base64(element):
            raise BadInput(f"Expecting object but got list at item {at} of input list")
        if element.keys() != names:
            lists = [(name, expected_lists(name, manifest.sequences)) for name in sorted(names - element.keys())]
            hint = next((f"; {name}{expected}" for name, expected in lists if expected), "")
            raise BadInput(
                f"Failed to process element: {at} of 'instances' list. JSON object with keys "
                f"{show(','.join(islice(element, 64)))}: keys must be equal to: {','.join(sorted(names))}{hint}"
            )
    raise AssertionError("a row is wrong")


def _of_instances(spec: Input, values: list[Any], plain: bool, extent: RequestSize) -> Column:
    try:
        return column(spec, values, plain, extent)
    except BadInput as error:
        raise BadInput(f"Failed to process 'instances' list. Error: {error}") from None


def _columns(values: Any, manifest: Manifest, plain: bool, extent: RequestSize) -> dict[str, Column]:
    inputs = manifest.inputs
    if type(values) is not dict or is_base64(values):
        if len(inputs) > 1:
            raise BadInput(
                "inputs is a plain value/list, but expecting an object as multiple inputs are required: "
                + ", ".join(i.name for i in inputs)
            )
        return {inputs[0].name: column(inputs[0], values, plain, extent)}
    if manifest.own_names:
        values = manifest.by_input(values)
    if manifest.fillers:
        inputs = manifest.expected_inputs(values)
    for spec in inputs:
        if spec.name not in values:
            expected = expected_lists(spec.name, manifest.sequences) or "."
            raise BadInput(f"Missing named input: {spec.name} in 'inputs' object{expected}")
    return {spec.name: column(spec, values[spec.name], plain, extent) for spec in inputs}


def decode_examples(
    body: Body, headers: Headers, manifest: Manifest, method: str, limits: RequestLimits = DEFAULTS
) -> tuple[dict[str, Column], PredictOptions]:
    """Decode an inflated body of `method`, classify or regress, to the model's inputs."""
    document = load_json(body, limits)
    signature = _signature(document, manifest)
    if "examples" not in document:
        raise BadInput(f"When method is {method}, key 'examples' is expected and was not found")
    extent = RequestSize(limits)
    parsed, context = examples.of_json(document["examples"], document.get("context", {}), extent)
    options = PredictOptions(True, header_timeout_s(headers), method, signature=signature)
    return examples.columns(parsed, context, manifest, extent), options


def encode_results(outputs: Mapping[str, NDArray[Any]], options: PredictOptions) -> bytes:
    """Encode a classify or regress reply.

    Classify gives a list of [label, score] for each example, one pair per class; regress gives one number per example.
    """
    if options.method == "regress":
        return dump_json({"results": json_values(np.ascontiguousarray(examples.regressions(outputs)))})
    labels, scores = examples.classes(outputs)
    rows = [[[label, json_number(s)] for label, s in zip(*row)] for row in zip(labels, scores)]
    return dump_json({"results": rows})


def encode(outputs: Mapping[str, NDArray[Any]], options: PredictOptions) -> bytes:
    """Encode a predict reply as JSON with `predictions` or `outputs`; bare values if the model has one output."""
    key = "predictions" if options.row else "outputs"
    if options.flat:
        outputs = {name: array.reshape(-1) if name in options.flat else array for name, array in outputs.items()}
    arrays = {name: json_values(np.ascontiguousarray(array)) for name, array in outputs.items()}
    if len(outputs) == 1:
        (values,) = arrays.values()
        return dump_json({key: values})
    if not options.row:
        return dump_json({key: arrays})
    rows = zip(*(_rows_of(np.ascontiguousarray(array)) for array in outputs.values()))
    return dump_json({key: [dict(zip(outputs, row)) for row in rows]})


def encode_reply(reply: PredictReply, options: PredictOptions, regions: Any = None) -> tuple[bytes, RawHeaders]:
    named = ((IGNORED_INPUTS, options.ignored),) if options.ignored else ()
    return encode(reply.outputs, options), (JSON_TYPE, *named)


def _rows_of(array: NDArray[Any]) -> list[Any]:
    rows: list[Any] = array.tolist() if array.dtype.kind == "O" else [json_values(row) for row in array]
    return rows
