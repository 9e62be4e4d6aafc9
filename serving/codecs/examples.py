"""Decode tf.Example, the input of classify and regress: features by name, and a context that all examples share.

A feature is one of the manifest's features, or an input under its own name: a model that packs 26 ids as columns of one
input accepts 26 features of one value, or one of 26 values. A feature that only the context has becomes one row, which
is broadcast: a user with many candidates is sent and looked up once. If both have a feature, the example's value is
used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, first_of, json_kind
from freshet_serving.processor.features.limits import RequestSize
from freshet_serving.processor.package import Input, Manifest, ranks_items
from freshet_serving.serving.codecs.json_columns import is_base64, numbers, strings
from freshet_serving.serving.codecs.tensor_types import declared
from freshet_serving.serving.codecs.wire import show

Values = Sequence[Any]
"""int, float or bytes values, all of one type."""

Example = Mapping[str, Values]
UINT64_MASK = 2**64 - 1
TYPES: dict[str, tuple[type, ...]] = {"int64": (int,), "float32": (float, int), "string": (bytes,)}


def of_json(examples: Any, context: Any, extent: RequestSize | None = None) -> tuple[list[Example], Example]:
    """Return the examples and the context of a JSON body."""
    if type(examples) is not list:
        raise BadInput(f"examples: expected a list, got {json_kind(examples)}")
    if extent is not None:
        extent.add_rows(len(examples), "examples")
    return [_example(e, f"examples[{at}]") for at, e in enumerate(examples)], _example(context, "context")


def of_message(source: Any, extent: RequestSize | None = None) -> tuple[list[Example], Example]:
    """Return the examples and the context of a tensorflow.serving.Input."""
    kind = source.WhichOneof("kind")
    if kind is None:
        raise BadInput("Input is empty.")
    wrapped = getattr(source, kind)
    if extent is not None:
        extent.add_rows(len(wrapped.examples), "examples")
    context = wrapped.context if kind == "example_list_with_context" else None
    return [_features(e) for e in wrapped.examples], _features(context) if context is not None else {}


def columns(
    examples: Sequence[Example], context: Example, manifest: Manifest, extent: RequestSize | None = None
) -> dict[str, Column]:
    if ranks_items(manifest):
        raise BadInput("x-top-items: expected a predict request, got classify or regress, whose replies hold no ids")
    if not examples:
        return {spec.name: _column(spec, [spec.name], False, [], {}, extent) for spec in manifest.inputs}
    if manifest.own_names:
        examples, context = [manifest.by_input(e) for e in examples], manifest.by_input(context)
    named = {spec.name: _sources(spec, examples, context, manifest) for spec in manifest.inputs}
    if manifest.fillers:
        sent = set(context).union(*examples)
        inputs = manifest.expected_inputs({name for name, sources in named.items() if sent.intersection(sources)})
    else:
        inputs = manifest.inputs
    if not inputs:
        raise BadInput("Input is empty.")
    shared = {name: not any(s in e for e in examples for s in sources) for name, sources in named.items()}
    if len(examples) > 1 and all(shared[spec.name] for spec in inputs):
        # Every example has its own result, even if the examples do not differ.
        shared[inputs[0].name] = False
    return {spec.name: _column(spec, named[spec.name], shared[spec.name], examples, context, extent) for spec in inputs}


def regressions(outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return one number per row, float32 [n]. Raises BadInput if the model has no such output."""
    scores = _scores(outputs, "outputs")
    if scores.ndim > 1 and scores.shape[1:] != (1,):
        raise BadInput(f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1], got {scores.shape}")
    return np.asarray(scores, np.float32).reshape(-1)


def classes(outputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return labels and scores of each row's classes, [n, classes] each; labels are "" if the model has none.

    Labels are an output named "classes" of strings, as many as there are scores. Raises BadInput.
    """
    raw_scores = _scores(outputs, "scores")
    scores = np.asarray(raw_scores, np.float32).reshape(len(raw_scores), math.prod(raw_scores.shape[1:]))
    labels = outputs.get("classes")
    if labels is None or labels.dtype.kind != "O" or labels.size != scores.size:
        return np.full(scores.shape, "", object), scores
    return labels.reshape(scores.shape), scores


def _scores(outputs: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    numbers = {n: array for n, array in outputs.items() if array.dtype.kind != "O"}
    if name in numbers:
        return numbers[name]
    if len(numbers) != 1:
        raise BadInput(f"Expected one output of numbers, or one named {name!r}, got {', '.join(outputs)}")
    return first_of(numbers.values())


def _example(value: Any, where: str) -> Example:
    if type(value) is not dict:
        raise BadInput(f"{where}: expected an object of features, got {json_kind(value)}")
    return {name: _values(feature, f"{where}.{name[:64]}") for name, feature in value.items()}


def _values(feature: Any, where: str) -> Values:
    values = feature if type(feature) is list else [feature]
    types = set(map(type, values))
    if type(None) in types:
        # As in training: NaN among numbers, "" among strings.
        missing = "" if types & {str, dict} else math.nan
        values = [missing if v is None else v for v in values]
        types = set(map(type, values))
    if bool in types and types <= {int, bool}:
        # TensorFlow Serving accepts booleans as integers here.
        return [int(v) for v in values]
    if types == {int} or types <= {float, int}:
        return values
    spec = Input(where, "string")
    if types <= {str, dict} and all(type(v) is str or is_base64(v) for v in values):
        return [v.encode() if type(v) is str else v for v in strings(spec, values)]
    odd = [json_kind(v) for v in values if type(v) not in (int, float, str) and not is_base64(v)]
    raise BadInput(f"{where}: expected numbers or strings, got {odd[0] if odd else 'both'}")


def _features(example: Any) -> Example:
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        features[name] = getattr(feature, kind).value if kind else ()
    return features


def _sources(spec: Input, examples: Sequence[Example], context: Example, manifest: Manifest) -> list[str]:
    """Return the features that an input's values come from: one for all of its columns, or one for each."""
    if not spec.columns or spec.name in context or any(spec.name in e for e in examples):
        return [spec.name]
    by_column = {f.column: f.name for f in manifest.features if f.input == spec.name}
    return [by_column.get(column, "") for column in range(spec.columns)]


def _column(
    spec: Input,
    sources: Sequence[str],
    shared: bool,
    examples: Sequence[Example],
    context: Example,
    extent: RequestSize | None,
) -> Column:
    rows = [context] if shared else examples
    # Of the context only these are read for every row: it may have any number of others.
    common = [(source, context.get(source, ())) for source in sources]
    if extent is not None:
        ids = len(rows) * (spec.columns or 1)
        if spec.ragged:
            ids = sum(len(row.get(spec.name, common[0][1])) for row in rows)
        extent.add(spec, len(rows), ids)
        for source, values in common:
            if values and not shared:
                extent.repeat(spec.name, sum(source not in row for row in rows), _nbytes(values))
    if spec.ragged:
        return _ragged(spec, rows, common[0][1])
    width = (spec.columns or 1) // len(sources)
    flat: list[Any] = []
    for row in rows:
        for source, shared_values in common:
            values = row.get(source, shared_values)
            _check(spec, source, values)
            if len(values) != width:
                raise BadInput(
                    f"Feature: {source or spec.name} (data type: {declared(spec).dt}) "
                    + (
                        f"expected {width} values, got {len(values)}"
                        if values
                        else "is required but could not be found."
                    )
                )
            flat += _carried(spec, values)
    if spec.dtype == "string":
        return Strings.of(flat)
    array = numbers(spec, flat)
    return array.reshape(-1, spec.columns) if spec.columns else array


def _ragged(spec: Input, rows: Sequence[Example], shared_values: Values) -> Ragged:
    flat: list[Any] = []
    splits = np.zeros(len(rows) + 1, np.int64)
    for at, row in enumerate(rows):
        values = row.get(spec.name, shared_values)
        _check(spec, spec.name, values)
        flat += _carried(spec, values)
        splits[at + 1] = len(flat)
    return Ragged(Strings.of(flat) if spec.dtype == "string" else numbers(spec, flat), splits)


def _nbytes(values: Values) -> int:
    """Return about how many bytes a copy of the values takes."""
    return 8 * len(values) + sum(len(value) for value in values if type(value) is bytes)


def _carried(spec: Input, values: Values) -> Values:
    """Return values as an input has them: an Int64List, which has no unsigned form, carries the bits of a uint64."""
    if spec.declared == "uint64" and type(values) is not list:
        return [value & UINT64_MASK for value in values]
    return values


def _check(spec: Input, name: str, values: Values) -> None:
    accepted = TYPES[spec.dtype]
    if any(type(v) not in accepted for v in values):
        value_type = first_of(type(v) for v in values if type(v) not in accepted)
        shown = {int: "DT_INT64", float: "DT_FLOAT"}.get(value_type, "DT_STRING")
        raise BadInput(f"Key: {show(name)}. Data types don't match. Expected {declared(spec).dt}, got {shown}")
