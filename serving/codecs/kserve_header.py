"""Check the tensor descriptions of KServe v2 requests against the model, and read the tensors as columns.

The header is a parsed JSON document, for gRPC one built from the message, with TypedContents as `data`. Tensors lie
behind the header (`binary_data_size`), in it (`data`), or in a region of shared memory (`shared_memory_region`). A
ragged input X travels as X (its values, shape [total]) and X.row_splits (INT64 [n + 1]), or as X__values and
X__offsets; columns of a sequence may share such a tensor (sequence_tensors).

Strings use KServe's BYTES layout: a 4-byte little-endian length before each element.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import BufferLayout, Column, ColumnLayout, PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.features.limits import DEFAULTS, FREE_NBYTES, RequestLimits, RequestSize
from freshet_serving.processor.features.sequences import unpadded
from freshet_serving.processor.kernels.length_prefixed import PREFIX_NBYTES, strip_lengths
from freshet_serving.processor.package import MAX_RANK, Input, Manifest, expected_lists
from freshet_serving.serving.codecs.json_columns import numbers, strings
from freshet_serving.serving.codecs.sequence_tensors import LENGTHS, ROW_SPLITS, ListTensors, list_tensors
from freshet_serving.serving.codecs.tensor_types import (
    ALL,
    BY_DATATYPE,
    converted,
    declared,
    fits,
    names_of_outputs,
    narrowed,
    row_of,
    takes,
)
from freshet_serving.serving.codecs.user_calls import ID, UserInputs, of_parameters, readable
from freshet_serving.serving.codecs.wire import MAX_TIMEOUT_S, Body, show

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import UserCall


def decode_bytes(source: NDArray[np.uint8], count: int, name: str) -> Strings:
    """Decode the strings of a BYTES tensor; raise BadInput unless `count` of them fill it exactly."""
    if count * PREFIX_NBYTES > len(source):
        raise BadInput(f"{name}: expected {count} length-prefixed elements, got {len(source)} bytes")
    data = np.empty(len(source) - count * PREFIX_NBYTES, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    read = strip_lengths(source, data, offsets)
    if read < 0:
        raise BadInput(f"{name}: element {-1 - read} extends beyond the tensor's {len(source)} bytes")
    if read != len(source):
        raise BadInput(f"{name}: {count} elements fill {read} bytes, got {len(source)}")
    return Strings(data, offsets)


DATATYPES = {"int64": "INT64", "float32": "FP32", "string": "BYTES"}
DTYPES: dict[str, np.dtype[Any]] = {
    **{t.datatype: t.dtype for t in ALL if t.dtype is not None},
    "BF16": np.dtype("<u2"),
}
# Types that JSON cannot represent.
HALVES = ("FP16", "BF16")
MAX_ID_LENGTH = 256


class RegionSpan(NamedTuple):
    region: str
    offset: int
    nbytes: int


class SharedMemory(Protocol):
    def read(self, span: RegionSpan) -> bytes:
        """Read a span; raise BadInput outside of a registered region, TooLarge beyond max_body_bytes."""

    def write(self, span: RegionSpan, data: bytes) -> None:
        """Write no more bytes than a span has; raise BadInput if its region is unknown, too small or not writable."""


class RequestedOutput(NamedTuple):
    """One requested output: returned as a binary tensor or as JSON, or in shared memory if it has a span."""

    name: str
    binary: bool
    span: RegionSpan | None = None


class TensorHeader(NamedTuple):
    """Description of one input in a header.

    Attributes:
        nbytes: Bytes that it takes behind the header; None if `values` or `span` holds the tensor.
        places: Elements of a row of a padded list input; 0 for other tensors.
    """

    spec: Input
    elements: int
    datatype: str
    nbytes: int | None
    values: Any
    span: RegionSpan | None = None
    places: int = 0


class TypedContents(NamedTuple):
    """Contents of a typed message, not yet checked: numbers, or strings."""

    values: Sequence[Any]


class InferHeader(NamedTuple):
    """A checked header.

    Attributes:
        manifest: The manifest that it was checked against.
        places: Layout of the tensors behind the header; None unless all of them can be read in place.
        timeout_s: From the header's own parameters.
        shares: An output is requested in shared memory.
        plain: The reply has binary tensors only and no id.
        lists: The tensors beside the model's list inputs.
        call: What the request says about a kept user; None for nothing.
    """

    manifest: Manifest
    shapes: tuple[TensorHeader, ...]
    places: BufferLayout | None
    outputs: tuple[RequestedOutput, ...]
    id: str
    timeout_s: float | None
    shares: bool
    plain: bool
    lists: ListTensors
    call: UserCall | None = None


def read_header(document: dict[str, Any], manifest: Manifest, limits: RequestLimits = DEFAULTS) -> InferHeader:
    parameters = _parameters(document, "parameters")
    _check_priority(parameters.get("priority", 0))
    call = of_parameters(parameters) if ID in parameters else None
    if call is not None:
        manifest = readable(manifest)
    outputs, request_id, lists = _outputs(document, parameters, manifest), _id(document), list_tensors(manifest)
    shapes = _shapes(document, manifest, lists, RequestSize(limits))
    shares = any(output.span is not None for output in outputs)
    plain = not request_id and all(output.binary and output.span is None for output in outputs)
    places, timeout_s = _places(shapes), _timeout_s(parameters)
    return InferHeader(manifest, shapes, places, outputs, request_id, timeout_s, shares, plain, lists, call)


def columns(header: InferHeader, body: Body, at: int, memory: SharedMemory | None) -> Mapping[str, Column]:
    """Return the inputs of a request, whose binary tensors are body[at:]; UserInputs of one about a kept user."""
    inputs = _columns(header, body, at, memory)
    return inputs if header.call is None else UserInputs(inputs, header.call)


def _columns(header: InferHeader, body: Body, at: int, memory: SharedMemory | None) -> Mapping[str, Column]:
    if header.shares and memory is None:
        raise BadInput("outputs: shared memory is not served")
    if header.places is not None and isinstance(body, bytes):
        if at + header.places.nbytes != len(body):
            expected = f"{header.places.nbytes} bytes of binary tensors"
            raise BadInput(f"inputs: expected {expected}, got {len(body) - at}")
        return PackedColumns(body, at, header.places)
    values: dict[str, Any] = {}
    ragged = False
    texts = sum(shape.nbytes or 0 for shape in header.shapes if shape.datatype == "BYTES")
    # Strings are copied; the numbers beside them would keep all of the body until the reply.
    outlive = len(body) > FREE_NBYTES and 2 * texts > len(body)
    for shape in header.shapes:
        spec = shape.spec
        if shape.span is not None:
            column = _of_span(shape, memory)
        elif shape.nbytes is None:
            column = shape.values
        else:
            if shape.nbytes > len(body) - at:
                expected = f"expected 0 to {len(body) - at}, the bytes left in the body"
                raise BadInput(f"inputs[{spec.name}].parameters.binary_data_size: {expected}")
            column = _binary(shape, body, at, shape.nbytes)
            if outlive and shape.datatype != "BYTES":
                column = column.copy()
            at += shape.nbytes
        values[spec.name] = column.reshape(-1, spec.columns) if spec.columns and spec.dtype != "string" else column
        ragged = ragged or spec.ragged
    if at != len(body):
        raise BadInput(f"inputs: binary tensors end at byte {at} of the body, got {len(body)} bytes")
    if not ragged:
        return values
    places = {shape.spec.name: shape.places for shape in header.shapes}
    return {
        i.name: _lists(i.name, values, header.lists, places[i.name]) if i.ragged else values[i.name]
        for i in header.manifest.expected_inputs(values)
    }


def _id(document: dict[str, Any]) -> str:
    value = document.get("id", "")
    if type(value) is not str or len(value) > MAX_ID_LENGTH:
        raise BadInput(f"id: expected a string of at most {MAX_ID_LENGTH} characters, got {json_kind(value)}")
    return value


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    value = holder.get("parameters")
    if value is None:
        return {}
    if type(value) is not dict:
        raise BadInput(f"{where}: expected an object, got {json_kind(value)}")
    return value


def _check_priority(priority: Any) -> None:
    # Priority levels belong to a model's configuration in Triton; there are none here: requests are ordered by
    # deadline.
    if type(priority) is not int or not 0 <= priority < 2**64:
        raise BadInput(f"parameters.priority: expected a whole number from 0 to {2**64 - 1}, got {json_kind(priority)}")


def _timeout_s(parameters: dict[str, Any]) -> float | None:
    timeout_us = parameters.get("timeout")
    if timeout_us is None or (type(timeout_us) is int and timeout_us == 0):
        return None
    if type(timeout_us) is not int or not 0 < timeout_us <= MAX_TIMEOUT_S * 1e6:
        shown = timeout_us if type(timeout_us) in (int, float) else json_kind(timeout_us)
        raise BadInput(
            f"parameters.timeout: expected microseconds up to {MAX_TIMEOUT_S * 1e6:.0f}, got {str(shown)[:64]}"
        )
    return timeout_us / 1e6


def _outputs(document: dict[str, Any], parameters: dict[str, Any], manifest: Manifest) -> tuple[RequestedOutput, ...]:
    default = parameters.get("binary_data_output", False)
    if type(default) is not bool:
        raise BadInput(f"parameters.binary_data_output: expected a boolean, got {json_kind(default)}")
    requested = document.get("outputs")
    if not requested and requested in (None, []):
        return tuple([RequestedOutput(name, default) for name in manifest.replies()])
    names = names_of_outputs(manifest)
    if type(requested) is not list or len(requested) > len(names):
        raise BadInput(f"outputs: expected a list of at most {len(names)}")
    by_name: dict[str, RequestedOutput] = {}
    for at, output in enumerate(requested):
        if type(output) is not dict or type(output.get("name")) is not str:
            raise BadInput(f"outputs[{at}]: expected an object with a name")
        name = output["name"]
        if name not in names or name in by_name:
            raise BadInput(f"outputs[{at}]: expected one of {', '.join(names)}, each once, got {show(name)}")
        where = f"outputs[{name}].parameters"
        settings = _parameters(output, where)
        if settings.get("classification"):
            raise BadInput(f"{where}.classification: not served")
        binary = settings.get("binary_data", default)
        if type(binary) is not bool:
            raise BadInput(f"{where}.binary_data: expected a boolean, got {json_kind(binary)}")
        by_name[name] = RequestedOutput(name, binary, _span(settings, where))
    return tuple(by_name.values())


def _span(parameters: dict[str, Any], where: str) -> RegionSpan | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if type(region) is not str:
        raise BadInput(f"{where}.shared_memory_region: expected a string, got {json_kind(region)}")
    numbers = []
    for name, default in (("shared_memory_offset", 0), ("shared_memory_byte_size", None)):
        value = parameters.get(name, default)
        if type(value) is not int or not 0 <= value < 2**63:
            raise BadInput(f"{where}.{name}: expected a whole number from 0 to {2**63 - 1}, got {json_kind(value)}")
        numbers.append(value)
    return RegionSpan(region, *numbers)


def _shapes(
    document: dict[str, Any], manifest: Manifest, lists: ListTensors, extent: RequestSize
) -> tuple[TensorHeader, ...]:
    """Return the description of each input; each must occur once unless it may be left out."""
    specs = {i.name: i for i in manifest.inputs}
    tensors = document.get("inputs")
    if type(tensors) is not list:
        raise BadInput(
            f"inputs: expected a list of at most {len(specs) + len(lists.specs)} tensors, got {json_kind(tensors)}"
        )
    names = [tensor.get("name") for tensor in tensors if type(tensor) is dict] if lists.sequence else []
    sent = {name for name in names if type(name) is str}
    shapes: dict[str, TensorHeader] = {}
    for index, tensor in enumerate(tensors):
        if type(tensor) is not dict or type(tensor.get("name")) is not str:
            raise BadInput(f"inputs[{index}]: expected an object with a name")
        name = tensor["name"]
        if name not in specs:
            name = lists.others.get(name, name)
        spec = specs.get(name) or lists.specs.get(name)
        if spec is None:
            # Use Triton's wording, which its clients know.
            unexpected = f"unexpected inference input {show(name)} for model {manifest.model!r}"
            raise BadInput(f"{unexpected}: inputs[{index}]: expected one of {', '.join(specs)}, each once")
        if name in shapes:
            raise BadInput(f"inputs[{index}]: expected one of {', '.join(specs)}, each once, got {show(name)}")
        shapes[name] = _shape(tensor, spec, extent, spec.ragged and lists.padded(name, sent))
    for name in (*specs, *(lists.beside(name, shapes) for name in lists.own)):
        if name not in shapes and not _left_out(name, manifest, shapes):
            raise BadInput(f"inputs: {name} is missing{expected_lists(name, manifest.sequences)}")
    lists.check_shared(shapes)
    return tuple(shapes.values())


def _left_out(name: str, manifest: Manifest, shapes: Container[str]) -> bool:
    """Return whether a request may lack a tensor: another part fills the input, and the request has nothing of it."""
    owner = name if name in manifest.fillers else name.removesuffix(ROW_SPLITS)
    return owner in manifest.fillers and owner not in shapes and owner + ROW_SPLITS not in shapes


def _lists(name: str, values: dict[str, Any], tensors: ListTensors, places: int) -> Ragged:
    beside = tensors.beside(name, values)
    if not beside.endswith(LENGTHS):
        return Ragged(values[name], _row_splits(name, beside, values))
    counts = values[beside]
    if len(values[name]) != places * len(counts):
        rows = len(values[name]) // places if places else 0
        raise BadInput(f"inputs[{name}].shape: expected a row for each of the {len(counts)} in {beside}, got {rows}")
    return unpadded(values[name], places, counts, f"inputs[{beside}]")


def _places(shapes: Iterable[TensorHeader]) -> BufferLayout | None:
    """Return the layout of the tensors behind the header, or None unless all lie there and can be read in place."""
    places, offset = [], 0
    for shape in shapes:
        spec = shape.spec
        if shape.nbytes is None or shape.datatype != DATATYPES[spec.dtype]:
            return None
        if spec.ragged or spec.dtype == "string" or spec.declared or spec.name.endswith(ROW_SPLITS):
            return None
        rows = shape.elements // (spec.columns or 1)
        places.append(ColumnLayout(spec.name, DTYPES[shape.datatype], rows, spec.columns, offset))
        offset += shape.nbytes
    return BufferLayout(tuple(places), offset)


def _row_splits(name: str, beside: str, values: dict[str, Any]) -> NDArray[np.int64]:
    splits: NDArray[np.int64] = values[beside]
    total = len(values[name])
    if not len(splits) or splits[0] != 0 or splits[-1] != total or (splits[1:] < splits[:-1]).any():
        raise BadInput(f"inputs[{beside}]: expected values ascending from 0 to {total}")
    return splits


def _shape(tensor: dict[str, Any], spec: Input, extent: RequestSize, padded: bool) -> TensorHeader:
    where = f"inputs[{spec.name}]"
    expected, datatype = declared(spec).datatype, tensor.get("datatype")
    if padded:
        rows, places = _matrix(tensor.get("shape"), where)
        count = rows * places
        extent.add(spec, rows, count)
    else:
        count, places = _count(tensor.get("shape"), spec, where), 0
    if padded:
        pass
    elif spec.name.endswith(ROW_SPLITS):
        extent.add_rows(count - 1, spec.name)
    else:
        extent.add(spec, 0 if spec.ragged else count // (spec.columns or 1), count)
    if not count and datatype in DATATYPES.values():
        # Clients cannot infer the type of an empty tensor.
        datatype = expected
    tensor_type = BY_DATATYPE.get(datatype) if type(datatype) is str else None
    if not (takes(spec, tensor_type) if tensor_type is not None else spec.dtype == "float32" and datatype == "BF16"):
        shown = show(datatype) if type(datatype) is str else json_kind(datatype)
        raise BadInput(f"{where}.datatype: expected {expected}, got {shown}")
    assert type(datatype) is str, "it is one of ours"
    parameters = _parameters(tensor, f"{where}.parameters")
    nbytes, span = parameters.get("binary_data_size"), _span(parameters, f"{where}.parameters")
    if (nbytes is not None) + (span is not None) + ("data" in tensor) > 1:
        raise BadInput(f"{where}: expected one of data, binary_data_size and shared_memory_region, got more")
    exact = None if datatype == "BYTES" else count * DTYPES[datatype].itemsize
    if span is not None:
        if exact is not None and exact > span.nbytes:
            raise BadInput(f"{where}.parameters.shared_memory_byte_size: expected {exact}, got {span.nbytes}")
        return TensorHeader(spec, count, datatype, None, None, span, places)
    if nbytes is None:
        values = _values(tensor.get("data"), spec, count, datatype, where)
        return TensorHeader(spec, count, datatype, None, values, None, places)
    if type(nbytes) is not int or nbytes < 0:
        most = "the length of the body" if exact is None else str(exact)
        raise BadInput(f"{where}.parameters.binary_data_size: expected 0 to {most}, got {json_kind(nbytes)}")
    if exact not in (None, nbytes):
        raise BadInput(f"{where}.parameters.binary_data_size: expected {exact}, got {nbytes}")
    return TensorHeader(spec, count, datatype, nbytes, None, None, places)


def _values(data: Any, spec: Input, count: int, datatype: str, where: str) -> Any:
    if datatype in HALVES:
        raise BadInput(f"{where}.data: {datatype} must be sent as a binary tensor")
    typed = type(data) is TypedContents
    flat = data.values if typed else _flat(data, where, len(row_of(spec)))
    if len(flat) != count:
        raise BadInput(f"{where}.data: expected {count} values, got {len(flat)}")
    if datatype == "BYTES":
        return Strings.of(flat if typed else strings(spec, flat))
    sent = BY_DATATYPE[datatype]
    if typed:
        return converted(spec, narrowed(spec.name, flat, sent))
    assert sent.dtype is not None, "numbers"
    if sent.dtype.kind == "f" or sent is declared(spec):
        return numbers(spec, flat)
    # Values have to fit the type that the request names, as they do in binary.
    whole = numbers(Input(spec.name, "int64", declared=sent.name), flat)
    array = whole.view(np.uint64) if sent.name == "uint64" else whole.astype(sent.dtype)
    # For floats they are rounded, as other numbers of JSON are.
    return array.astype(np.float32) if spec.dtype == "float32" else converted(spec, array)


def _matrix(shape: Any, where: str) -> tuple[int, int]:
    whole = type(shape) is list and len(shape) == 2 and set(map(type, shape)) == {int}
    if not whole or min(shape) < 0 or max(shape) >= 2**31:
        raise BadInput(f"{where}.shape: expected [n, L] beside the sequence's lengths, as whole numbers")
    return shape[0], shape[1]


def _count(shape: Any, spec: Input, where: str) -> int:
    """Return the number of elements of a shape that fits the input; Python's integers do not overflow."""
    expected = f"[{', '.join(['n', *map(str, row_of(spec))])}]"
    whole = type(shape) is list and 0 < len(shape) <= MAX_RANK and set(map(type, shape)) == {int}
    if not whole or min(shape) < 0 or max(shape) >= 2**31:
        raise BadInput(f"{where}.shape: expected {expected} as a list of whole numbers")
    if not (len(shape) == 1 if spec.ragged else fits(spec, shape)):
        raise BadInput(f"{where}.shape: expected {expected}, got {shape}")
    return int(shape[0]) * (spec.columns or 1)


def _of_span(shape: TensorHeader, memory: SharedMemory | None) -> Any:
    if memory is None:
        raise BadInput(f"inputs[{shape.spec.name}].parameters.shared_memory_region: shared memory is not served")
    assert shape.span is not None, "asked for it"
    span = shape.span
    if shape.datatype == "BYTES":
        return _binary(shape, memory.read(span), 0, span.nbytes)
    exact = shape.elements * DTYPES[shape.datatype].itemsize
    return _binary(shape, memory.read(span._replace(nbytes=exact)), 0, exact)


def _binary(shape: TensorHeader, body: Body, at: int, nbytes: int) -> Any:
    name = shape.spec.name
    if shape.datatype == "BYTES":
        return decode_bytes(np.frombuffer(body, np.uint8, nbytes, at), shape.elements, f"inputs[{name}]")
    dtype = DTYPES[shape.datatype]
    view = np.frombuffer(body, dtype, shape.elements, at) if nbytes else np.empty(0, dtype)
    if shape.datatype == "BF16":
        return (view.astype(np.uint32) << 16).view(np.float32)
    view = converted(shape.spec, view)
    # Kernels are compiled for aligned arrays, but the JSON before the tensor may have any length.
    return view if view.flags.aligned else view.copy()


def _flat(data: Any, where: str, depth: int) -> list[Any]:
    """Return the row-major values of a flat or nested list; `depth` is the number of dimensions of a row."""
    if type(data) is not list:
        raise BadInput(f"{where}.data: expected a list, got {json_kind(data)}")
    if not data or type(data[0]) is not list:
        return data
    if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
        raise BadInput(f"{where}.data: expected rows of one length")
    flat = list(chain.from_iterable(data))
    return _flat(flat, where, depth - 1) if depth > 1 else flat
