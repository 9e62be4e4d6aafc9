"""Find what each feature and history of a model reads of one row of a bound request: keys to look up, or numbers.

Keys are those that the fused kernel looks up, in its order: they are read where bind() has left them. The values that
the client sent are recovered through the transforms that work value by value (a hash bucket of a string is shown as the
string); after any other transform, after a stage, and where an entity filled the input, the key itself is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.input_reader import BoundInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import FLOATS, HASHES, Feature, Input, Manifest, codes_a_value

VALUE_BY_VALUE = {
    "farm", "murmur", "sip", "text", "lower", "upper", "strip", "bucketize", "int32", "within", "float32", "whole",
    "rows", *HASHES,
}  # fmt: skip
"""Transforms whose value number i is made of value number i of their only input."""
MAX_TEXT = 256


@dataclass(slots=True)
class FeatureValues:
    """The values that a feature reads of a row.

    Attributes:
        input: The request's input if it is known, else the feature's.
        keys: int64, the keys to look up.
        asked: The value that the client sent for each key.
        length: Number of values of the row, looked up or not.
        codes: Keys per value.
        numbers: float32, the values of float kinds.
    """

    feature: Feature
    input: str
    keys: NDArray[np.int64]
    asked: list[str] = field(default_factory=list)
    length: int = 0
    codes: int = 1
    numbers: NDArray[np.float32] | None = None


def feature_values(
    manifest: Manifest, plan: SparsePlan, inputs: Mapping[str, Column], bound: BoundRequest, row: int
) -> list[FeatureValues]:
    """Return what every feature reads of a row, in the manifest's order, then every sequence's column; all aligned."""
    roots = {i.name: (i, 1) for i in manifest.inputs if i.name in inputs}
    for t in manifest.transforms:
        if t.op in VALUE_BY_VALUE and len(t.inputs) == 1 and t.inputs[0] in roots:
            spec, codes = roots[t.inputs[0]]
            roots[t.name] = spec, codes * codes_a_value(t)
    count = len(manifest.features) + sum(len(s.columns) for s in manifest.sequences)
    return [
        _values(feature, planned, bound.keep[planned[pool.SOURCE]], row, roots.get(feature.input), inputs)
        for feature, planned in zip(manifest.lookups[:count], plan.lookups)
    ]


def _values(
    feature: Feature,
    planned: NDArray[np.int64],
    source: BoundInput,
    row: int,
    root: tuple[Input, int] | None,
    inputs: Mapping[str, Column],
) -> FeatureValues:
    row = 0 if source.rows == 1 else row
    spec, codes = root or (None, 1)
    name = feature.input if spec is None else spec.name
    if source.splits is None:
        start = row * source.stride + max(feature.column, 0)
        stop = start + (feature.width if feature.kind == FLOATS else 1)
        length = stop - start
    else:
        start, stop = source.splits[row : row + 2].tolist()
        length, most = stop - start, int(planned[pool.MAX_LENGTH])
        stop = min(stop, start + most) if most else stop
    values = source.values.reshape(-1)[start:stop]
    if not feature.table:
        return FeatureValues(feature, name, np.empty(0, np.int64), length=length, numbers=values)
    if spec is None:
        asked = [str(key) for key in values.tolist()]
    else:
        asked = [_text(inputs[name], spec, at // codes) for at in range(start, stop)]
    each = int(planned[pool.CODES])
    return FeatureValues(feature, name, values, asked, length // each, each)


def _text(column: Any, spec: Input, at: int) -> str:
    if isinstance(column, Ragged):
        column = column.values
    if not isinstance(column, Strings):
        return str(spec.as_sent(column).reshape(-1)[at])
    first, last = column.offsets[at : at + 2].tolist()
    return column.data[first : min(last, first + 4 * MAX_TEXT)].tobytes().decode("utf-8", "backslashreplace")[:MAX_TEXT]
