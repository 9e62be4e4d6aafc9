"""Decode and encode KServe v2 (Open Inference Protocol) over HTTP: JSON, and JSON followed by binary tensors.

A binary tensor becomes a numpy view of the body; only one at a misaligned address is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.package import Manifest
from freshet_serving.serving.codecs import wire
from freshet_serving.serving.codecs.kserve_header import (
    DTYPES,
    InferHeader,
    RequestedOutput,
    SharedMemory,
    columns,
    read_header,
)
from freshet_serving.serving.codecs.tensor_types import datatype_of, declared, raw_values
from freshet_serving.serving.codecs.wire import (
    JSON_TYPE,
    MAX_DIGITS,
    Body,
    Headers,
    SizeLimit,
    dump_json,
    header_int,
    header_timeout_s,
    json_limit,
    json_values,
    load_json,
)

HEADER_LENGTH = b"inference-header-content-length"
BINARY_TYPE = (b"content-type", b"application/octet-stream")


class InferOptions(NamedTuple):
    """Reply options of an infer request; `plain` as in kserve_header.InferHeader."""

    outputs: tuple[RequestedOutput, ...]
    id: str = ""
    timeout_s: float | None = None
    plain: bool = False


# A client sends the same header with every request of one size, so parsed headers are cached. Only short headers that
# hold no values are cached, and only a few.
MAX_KEPT = 256
MAX_KEPT_NBYTES = 4096
_kept: dict[bytes, InferHeader] = {}


def decode(
    body: Body,
    headers: Headers,
    manifest: Manifest,
    limits: RequestLimits = DEFAULTS,
    memory: SharedMemory | None = None,
) -> tuple[Mapping[str, Column], InferOptions]:
    """Decode an inflated infer body, JSON and the binary tensors behind it, to the model's inputs."""
    nbytes = header_int(headers, HEADER_LENGTH, len(body))
    if nbytes is None:
        header, at = read_header(load_json(body, limits), manifest, limits), len(body)
    elif nbytes == 0:
        header, at = _raw(body, manifest, limits), 0
    else:
        header, at = _binary_header(bytes(body[:nbytes]), manifest, limits), nbytes
    inputs = columns(header, body, at, memory)
    timeout_s = header.timeout_s
    if b"x-request-timeout-ms" in headers:
        by_header = header_timeout_s(headers)
        timeout_s = by_header if timeout_s is None or by_header is None else min(timeout_s, by_header)
    return inputs, InferOptions(header.outputs, header.id, timeout_s, header.plain)


def parsed_nbytes(nbytes: int, headers: Headers) -> int:
    """Return how many of a body's `nbytes` bytes are JSON according to its headers, which may be wrong."""
    text = headers.get(HEADER_LENGTH, b"")
    return min(nbytes, int(text)) if text.isdigit() and len(text) <= MAX_DIGITS else nbytes


def body_limit(headers: Headers, limits: RequestLimits) -> SizeLimit:
    """Return the size limit for the body that follows these headers; they may declare the length of its JSON."""
    bound, declared = json_limit(limits), header_int(headers, HEADER_LENGTH, limits.max_body_bytes)
    if declared is None:
        return bound
    bound.check(declared)
    return wire.body_limit(limits)


def validate_prefix(text: bytes, manifest: Manifest, limits: RequestLimits) -> None:
    """Raise the error that decode() would raise for the JSON at the start of a binary body."""
    _binary_header(text, manifest, limits)


def _binary_header(text: bytes, manifest: Manifest, limits: RequestLimits) -> InferHeader:
    """Return the parsed header, perhaps from the cache: the engine checks the limits again."""
    header = _kept.get(text)
    if header is not None and header.manifest is manifest:
        return header
    header = read_header(load_json(text, limits), manifest, limits)
    common = not header.id and header.call is None
    if common and len(text) <= MAX_KEPT_NBYTES and all(s.nbytes is not None for s in header.shapes):
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[text] = header
    return header


def _raw(body: Body, manifest: Manifest, limits: RequestLimits) -> InferHeader:
    """Return the header of a raw binary request, whose body is the model's only input and nothing else."""
    (spec, *more_inputs) = manifest.inputs
    if more_inputs or spec.ragged or spec.dtype == "string":
        raise BadInput("Inference-Header-Content-Length: 0 requires a model with one int64 or float32 input")
    datatype = declared(spec).datatype
    row_nbytes = DTYPES[datatype].itemsize * (spec.columns or 1)
    if len(body) % row_nbytes:
        raise BadInput(f"body: expected a multiple of {row_nbytes} bytes, got {len(body)}")
    rows = len(body) // row_nbytes
    shape = [rows, spec.columns] if spec.columns else [rows]
    size = {"binary_data_size": len(body)}
    tensor = {"name": spec.name, "datatype": datatype, "shape": shape, "parameters": size}
    return read_header({"inputs": [tensor], "parameters": {"binary_data_output": True}}, manifest, limits)


def encode(
    outputs: Mapping[str, NDArray[Any]],
    options: InferOptions,
    model: str,
    version: int,
    memory: SharedMemory | None = None,
) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Encode the reply: its body, and its headers except for the length.

    Raises BadInput if an output does not fit its region of shared memory.
    """
    arrays = [(requested, np.ascontiguousarray(outputs[requested.name])) for requested in options.outputs]
    if options.plain and all(array.dtype.kind != "O" for _, array in arrays):
        shapes = tuple([(requested.name, array.dtype, array.shape) for requested, array in arrays])
        header, kinds = _binary_reply(model, version, shapes)
        # Arrays are buffers; NumPy declares them as such from Python 3.12 on.
        return b"".join([header, *[array for _, array in arrays]]), kinds  # type: ignore[list-item]
    tensors: list[dict[str, Any]] = []
    buffers: list[NDArray[Any]] = []
    for requested, array in arrays:
        if requested.span is not None:
            # No parameters: Triton's C++ client would take them for those of a binary tensor.
            into_span(requested, array, memory)
            tensors.append({"name": requested.name, "datatype": datatype_of(array.dtype), "shape": array.shape})
        elif requested.binary:
            buffers.append(raw_values(array))
            tensors.append(_binary_tensor(requested.name, array.dtype, array.shape, buffers[-1].nbytes))
        else:
            data = json_values(array.reshape(-1))
            tensors.append(
                {"name": requested.name, "datatype": datatype_of(array.dtype), "shape": array.shape, "data": data}
            )
    document: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": tensors}
    if options.id:
        document["id"] = options.id
    header = dump_json(document)
    if not buffers:
        return header, (JSON_TYPE,)
    return b"".join([header, *buffers]), _binary_kinds(header)  # type: ignore[list-item]  # As above.


def into_span(requested: RequestedOutput, array: NDArray[Any], memory: SharedMemory | None) -> dict[str, Any]:
    """Write one output to its span of shared memory, and return the parameters for a gRPC reply; raises BadInput."""
    span = requested.span
    assert span is not None, "asked for it"
    if memory is None:
        raise BadInput(f"outputs[{requested.name}].parameters.shared_memory_region: shared memory is not served")
    data = raw_values(array)
    if data.nbytes > span.nbytes:
        where = f"outputs[{requested.name}].parameters.shared_memory_byte_size"
        raise BadInput(f"{where}: expected {data.nbytes}, got {span.nbytes}")
    memory.write(span, data.tobytes())
    return {
        "shared_memory_region": span.region,
        "shared_memory_offset": span.offset,
        "shared_memory_byte_size": data.nbytes,
    }


@lru_cache(maxsize=1024)
def _binary_reply(
    model: str, version: int, tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """Return the JSON header and HTTP headers of a reply with binary tensors only; replies of one size share them."""
    outputs = [_binary_tensor(name, kind, shape, kind.itemsize * math.prod(shape)) for name, kind, shape in tensors]
    header = dump_json({"model_name": model, "model_version": str(version), "outputs": outputs})
    return header, _binary_kinds(header)


def _binary_tensor(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int) -> dict[str, Any]:
    size = {"binary_data_size": nbytes}
    return {"name": name, "datatype": datatype_of(dtype), "shape": shape, "parameters": size}


def _binary_kinds(header: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return BINARY_TYPE, (HEADER_LENGTH, b"%d" % len(header))
