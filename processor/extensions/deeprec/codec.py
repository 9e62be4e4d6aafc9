"""Convert DeepRec's PredictRequest and PredictResponse (predict.proto, as PAI-EAS clients send it) to columns and back.

Tensors are dense, as that message has no others: a ragged input is sent as [n, k], every row with k values. Protobuf is
imported here and nowhere else in processor/; its definitions are in a pool of their own, so that callers may have
theirs in the same process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits, RequestSize
from freshet_serving.processor.features.message_tree import MessageTree
from freshet_serving.processor.package import Input, Manifest, expected_lists

SIGNATURE = "serving_default"
MAX_RANK = 8
# For each of our types: ArrayDataType, its name, and the field that holds the values.
TYPES: dict[str, tuple[int, str, str]] = {
    "int64": (9, "DT_INT64", "int64_val"),
    "float32": (1, "DT_FLOAT", "float_val"),
    "string": (7, "DT_STRING", "string_val"),
}

_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString(Path(__file__).with_name("predict.binpb").read_bytes()).file:
    _pool.AddSerializedFile(_file.SerializeToString())
Request: Any = GetMessageClass(_pool.FindMessageTypeByName("tensorflow.eas.PredictRequest"))
Response: Any = GetMessageClass(_pool.FindMessageTypeByName("tensorflow.eas.PredictResponse"))
_tree = MessageTree(Request.DESCRIPTOR)


def decode(
    data: bytes | memoryview, manifest: Manifest, limits: RequestLimits = DEFAULTS
) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return a serialized PredictRequest as the model's inputs, and the requested outputs, none for all."""
    _tree.check_limits(data, limits)
    try:
        request = Request.FromString(data)
    except DecodeError:
        raise BadInput("request: expected a PredictRequest") from None
    if request.signature_name not in (SIGNATURE, ""):
        raise BadInput(f"signature_name: expected {SIGNATURE}, got {request.signature_name[:64]!r}")
    names = {i.name for i in manifest.inputs}
    arrays = manifest.by_input(request.inputs)
    for name in arrays:
        if name not in names:
            raise BadInput(f"inputs: expected one of {', '.join(sorted(names))}, got {name[:64]!r}")
    inputs = manifest.expected_inputs(arrays)
    for spec in inputs:
        if spec.name not in arrays:
            raise BadInput(f"inputs: {spec.name} is missing{expected_lists(spec.name, manifest.sequences)}")
    outputs = list(manifest.replies())
    filtered = tuple(request.output_filter[: len(outputs) + 1])
    for name in filtered:
        if name not in outputs or filtered.count(name) > 1:
            raise BadInput(f"output_filter: expected one of {', '.join(outputs)}, each at most once, got {name[:64]!r}")
    extent = RequestSize(limits)
    return {spec.name: _column(spec, arrays[spec.name], extent) for spec in inputs}, filtered


def encode(outputs: Mapping[str, NDArray[Any]], names: Sequence[str] = (), whole: bool = False) -> bytes:
    """Return a serialized PredictResponse of the named outputs, of all if none is named.

    Arrays are [n, ...]: numbers, sent as float32, `whole` int64 as int64, or strings as objects.
    """
    response = Response()
    for name in names or outputs:
        array, values = response.outputs[name], outputs[name]
        sent = "string" if values.dtype.kind == "O" else "int64" if whole and values.dtype == np.int64 else "float32"
        number, _, field = TYPES[sent]
        array.dtype = number
        array.array_shape.dim.extend(values.shape)
        flat = values.ravel()
        texts = [text.encode() for text in flat.tolist()] if values.dtype.kind == "O" else None
        getattr(array, field).extend(np.asarray(flat, sent) if texts is None else texts)
    data: bytes = response.SerializeToString()
    return data


def _column(spec: Input, array: Any, extent: RequestSize) -> Column:
    number, named, field = TYPES[spec.dtype]
    if array.dtype != number:
        raise BadInput(f"{spec.name}: expected {named}, got data type {array.dtype}")
    shape, values = list(array.array_shape.dim[: MAX_RANK + 1]), getattr(array, field)
    if len(shape) > MAX_RANK or any(not 0 <= size < 2**31 for size in shape) or math.prod(shape) != len(values):
        raise BadInput(f"{spec.name}: expected a shape of {len(values)} values, got {shape}")
    extent.add(spec, shape[0] if shape else 1, len(values))
    flat = Strings.of(values) if spec.dtype == "string" else np.array(values, spec.dtype)
    if spec.ragged:
        if len(shape) != 2:
            raise BadInput(f"{spec.name}: expected shape [n, k], got {shape}")
        return Ragged(flat, np.arange(shape[0] + 1, dtype=np.int64) * shape[1])
    if not shape or shape[1:] not in ([[spec.columns]] if spec.columns else [[], [1]]):
        shape_text = f"[n, {spec.columns}]" if spec.columns else "[n]"
        raise BadInput(f"{spec.name}: expected shape {shape_text}, got {shape}")
    return flat.reshape(shape[0], spec.columns) if spec.columns and isinstance(flat, np.ndarray) else flat
