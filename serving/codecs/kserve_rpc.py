"""Decode and encode KServe v2 infer over gRPC: ModelInferRequest to columns, outputs to ModelInferResponse.

Tensor descriptions are checked like an HTTP header (kserve_header). If a similar request has been seen (templates), raw
tensors are read in place; otherwise the runtime copies them out of the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, PackedColumns
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.features.message_tree import MessageTree
from freshet_serving.processor.package import MAX_RANK, Manifest
from freshet_serving.serving.codecs import user_calls
from freshet_serving.serving.codecs.kserve import into_span
from freshet_serving.serving.codecs.kserve_header import (
    RequestedOutput,
    SharedMemory,
    TypedContents,
    columns,
    read_header,
)
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Placeholder, Templates, cut, fields, filler
from freshet_serving.serving.codecs.tensor_types import ALL, datatype_of, raw_values
from freshet_serving.serving.codecs.wire import show

RAW_INPUT_CONTENTS = 7
CONTENTS = {t.datatype: t.contents for t in ALL if t.contents}
# Parameters that are read, of a request, its inputs and its outputs. gRPC has no binary_data_output or binary_data.
PARAMETERS = (
    "priority", "timeout", "classification", "binary_data_size",
    "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", *user_calls.PARAMETERS,
)  # fmt: skip
Request, Response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
TREE = MessageTree(Request.DESCRIPTOR)
# Triton's clients request this mark with enable_empty_final_response. Here each request has one reply, its last.
ASKS_FINAL, FINAL = "triton_enable_empty_final_response", "triton_final_response"
IS_FINAL: bytes = Response(parameters={FINAL: {"bool_param": True}}).SerializeToString()
"""Appended to a reply to mark it as the last."""


def rows_parameters(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return what is appended to a reply of a stream, which has no metadata: x-unknown-rows becomes unknown_rows."""
    parameters = {
        name.decode().removeprefix("x-").replace("-", "_"): {"string_param": rows.decode()} for name, rows in headers
    }
    return bytes(Response(parameters=parameters).SerializeToString()) if parameters else b""


class InferParams(NamedTuple):
    """Parameters of an infer request.

    Attributes:
        label: Always None; KServe has no labels.
        final: The client expects the last reply to each request of a stream to be marked.
    """

    model: str
    version: int | None
    label: None = None
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    timeout_s: float | None = None
    final: bool = False


class InferDecoder:
    """A request being decoded: params is known before the model is, columns() afterwards."""

    def __init__(self, data: bytes, templates: Templates[InferParams], limits: RequestLimits = DEFAULTS) -> None:
        self._data, self._templates, self._limits = data, templates, limits
        self._message: Any = None
        self._template = templates.find(data)
        if self._template is not None:
            self.params = self._template.params
        else:
            self._parse()

    def columns(
        self, manifest: Manifest, limits: RequestLimits = DEFAULTS, memory: SharedMemory | None = None
    ) -> tuple[Mapping[str, Column], InferParams]:
        template = self._template
        if template is not None:
            if template.manifest is manifest:
                return PackedColumns(self._data, 0, template.places), template.params
            self._parse()
        # Read at most one item more than the model allows: that suffices to detect the excess.
        most = 1 + len(manifest.inputs) + sum(i.ragged for i in manifest.inputs) + 2 * len(manifest.sequences)
        raw = list(self._message.raw_input_contents[:most])
        document = _document(self._message, raw, most, 1 + len(manifest.outputs))
        header = read_header(document, manifest, limits)
        inputs = columns(header, b"".join(raw), 0, memory)
        outputs = header.outputs
        params = self.params._replace(id=header.id, outputs=outputs, timeout_s=header.timeout_s)
        if header.places is not None and raw and not header.id and header.call is None:
            places = {place.name: place for place in header.places.columns}
            spans = [span for number, *span in fields(self._data, 0, len(self._data)) if number == RAW_INPUT_CONTENTS]
            placeholders = {
                place.name: Placeholder(start, r) for place, (start, _), r in zip(header.places.columns, spans, raw)
            }
            self._templates.learn(self._data, params, manifest, places, placeholders)
        return inputs, params

    def _parse(self) -> None:
        TREE.check_limits(self._data, self._limits)
        try:
            self._message = request = Request.FromString(self._data)
        except DecodeError:
            raise BadInput("request: expected a ModelInferRequest") from None
        final = ASKS_FINAL in request.parameters and parameter(request.parameters[ASKS_FINAL]) is True
        self.params = InferParams(request.model_name, version_of(request.model_version), final=final)


def version_of(text: str) -> int | None:
    """Parse a version as KServe's messages name it; "" gives None, the newest. Raises BadInput."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadInput(f"model_version: expected a whole number, got {show(text)}")
    return int(text)


def parameter(value: Any) -> Any:
    choice = value.WhichOneof("parameter_choice")
    return getattr(value, choice) if choice else None


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parameter(parameters[name]) for name in PARAMETERS if name in parameters} if parameters else {}


def _document(request: Any, raw: list[bytes], most: int, most_outputs: int) -> dict[str, Any]:
    """Return the message, with so many inputs and outputs at most, as an HTTP header; raw tensors lie behind it."""
    inputs, behind, raw_count = [], 0, len(request.raw_input_contents)
    for tensor in request.inputs[:most]:
        parameters = _parameters(tensor.parameters)
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape[: MAX_RANK + 1])}
        described["parameters"] = parameters
        if "shared_memory_region" in parameters:
            pass
        elif raw:
            if tensor.HasField("contents"):
                raise BadInput(f"inputs[{tensor.name[:64]}].contents: expected none together with raw_input_contents")
            if behind == len(raw):
                raise BadInput(f"raw_input_contents: expected one per input, got {raw_count}")
            parameters["binary_data_size"] = len(raw[behind])
            behind += 1
        else:
            described["data"] = _typed(tensor)
        inputs.append(described)
    if behind != raw_count:
        raise BadInput(f"raw_input_contents: expected {behind}, one per input, got {raw_count}")
    outputs = [{"name": o.name, "parameters": _parameters(o.parameters)} for o in request.outputs[:most_outputs]]
    parameters = _parameters(request.parameters)
    # Over gRPC all tensors are binary, whatever the client requests.
    parameters["binary_data_output"] = True
    return {"id": request.id, "parameters": parameters, "inputs": inputs, "outputs": outputs}


def _typed(tensor: Any) -> Any:
    """Return the contents field that the datatype names; raise BadInput if another field is set."""
    name = CONTENTS.get(tensor.datatype, "")
    set_fields = [field.name for field, _ in tensor.contents.ListFields()]
    if set_fields and set_fields != [name]:
        where = f"inputs[{tensor.name[:64]}].contents"
        raise BadInput(f"{where}: expected {name or 'raw_input_contents'}, got {', '.join(set_fields)}")
    if not name:
        return []
    return TypedContents(getattr(tensor.contents, name))


def encode(
    outputs: Mapping[str, NDArray[Any]], params: InferParams, version: int, memory: SharedMemory | None = None
) -> bytes:
    """Encode the reply, with raw tensors; raise BadInput if an output does not fit its region of shared memory."""
    arrays = [np.ascontiguousarray(outputs[requested.name]) for requested in params.outputs]
    fixed = all(array.dtype.kind != "O" for array in arrays)
    if fixed and not params.id and all(requested.span is None for requested in params.outputs):
        shapes = tuple([(requested.name, array.dtype, array.shape) for requested, array in zip(params.outputs, arrays)])
        head, tags = _reply(params.model, version, shapes)
        # Arrays are buffers; NumPy declares them as such from Python 3.12 on.
        return b"".join([head, *[part for pair in zip(tags, arrays) for part in pair]])  # type: ignore[list-item]
    reply = Response(model_name=params.model, model_version=str(version), id=params.id)
    for requested, array in zip(params.outputs, arrays):
        output = reply.outputs.add(name=requested.name, datatype=datatype_of(array.dtype), shape=array.shape)
        if requested.span is None:
            reply.raw_output_contents.append(raw_values(array).tobytes())
        else:
            for name, value in into_span(requested, array, memory).items():
                choice = "string_param" if type(value) is str else "int64_param"
                setattr(output.parameters[name], choice, value)
            # Clients expect one entry for each output.
            reply.raw_output_contents.append(b"")
    encoded: bytes = reply.SerializeToString()
    return encoded


@lru_cache(maxsize=1024)
def _reply(
    model: str, version: int, tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a reply without its tensors: the bytes before all of them, and the tag and length before each."""
    reply = Response(model_name=model, model_version=str(version))
    for name, dtype, shape in tensors:
        reply.outputs.add(name=name, datatype=datatype_of(dtype), shape=shape)
    tags = []
    for _, dtype, shape in tensors:
        nbytes = dtype.itemsize * math.prod(shape)
        tensor = filler(nbytes)
        tags.append(cut(Response(raw_output_contents=[tensor]).SerializeToString(), tensor)[0] if nbytes else b"2\0")
    return reply.SerializeToString(), tuple(tags)
