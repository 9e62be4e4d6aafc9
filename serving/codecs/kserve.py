"""KServe v2 (Open Inference Protocol) infer: JSON, and JSON followed by binary tensors; metadata.

A binary tensor becomes a numpy view over the body; only one that starts at an odd address is copied. A ragged
input X travels as X (its values, shape [total]) and X.row_splits (INT64 [n + 1]).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.columns import Column, Packed, Place, Places, Ragged, Strings
from processor.errors import BadInput
from processor.package.manifest import Input, Manifest
from serving.codecs.bytes_tensor import decode_bytes
from serving.codecs.json_columns import numbers, strings
from serving.codecs.wire import (
    MAX_TIMEOUT_S,
    Headers,
    dump_json,
    header_int,
    header_timeout_s,
    json_numbers,
    kind,
    load_json,
    show,
)

HEADER_LENGTH = b"inference-header-content-length"
JSON_TYPE = (b"content-type", b"application/json")
BINARY_TYPE = (b"content-type", b"application/octet-stream")
DATATYPES = {"int64": "INT64", "float32": "FP32", "string": "BYTES"}
DTYPES = {"INT64": np.dtype("<i8"), "FP32": np.dtype("<f4")}
ROW_SPLITS = ".row_splits"
MAX_ID_LENGTH = 256
MAX_RANK = 8


class Options(NamedTuple):
    """How the request wants its answer. outputs: (name, as a binary tensor) in the order asked for."""

    outputs: tuple[tuple[str, bool], ...]
    id: str = ""
    timeout_s: float | None = None


class Shape(NamedTuple):
    """One input of a header: its place in the body when nbytes is not None, else the JSON values that the header held.
    count: elements."""

    spec: Input
    count: int
    nbytes: int | None
    values: Any


class Header(NamedTuple):
    """A checked JSON header. timeout_s: by its own parameters. places: of the tensors behind it, if all are plain."""

    manifest: Manifest
    shapes: tuple[Shape, ...]
    places: Places | None
    outputs: tuple[tuple[str, bool], ...]
    id: str
    timeout_s: float | None


# A client sends the same header with every request of one size, so what it says is read once. Only headers that hold
# no values are kept, and few of them.
MAX_KEPT = 256
MAX_KEPT_NBYTES = 4096
_kept: dict[bytes, Header] = {}


def decode(body: bytes, headers: Headers, manifest: Manifest) -> tuple[Mapping[str, Column], Options]:
    """An infer body (already inflated) as the manifest's inputs; raises BadInput."""
    nbytes = header_int(headers, HEADER_LENGTH, len(body))
    if nbytes is None:
        header, at = _header(load_json(body), manifest), len(body)
    elif nbytes == 0:
        raise BadInput("Inference-Header-Content-Length: a JSON header wanted, got 0: raw binary is not served")
    else:
        header, at = _binary_header(body[:nbytes], manifest), nbytes
    inputs = _packed(header.places, body, at) if header.places else _inputs(header, body, at)
    timeout_s = header.timeout_s
    if b"x-request-timeout-ms" in headers:
        by_header = header_timeout_s(headers)
        timeout_s = by_header if timeout_s is None or by_header is None else min(timeout_s, by_header)
    return inputs, Options(header.outputs, header.id, timeout_s)


def _binary_header(text: bytes, manifest: Manifest) -> Header:
    header = _kept.get(text)
    if header is not None and header.manifest is manifest:
        return header
    header = _header(load_json(text), manifest)
    if len(text) <= MAX_KEPT_NBYTES and not header.id and all(s.nbytes is not None for s in header.shapes):
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[text] = header
    return header


def _header(document: dict[str, Any], manifest: Manifest) -> Header:
    parameters = _parameters(document, "parameters")
    outputs, request_id = _outputs(document, parameters, manifest), _id(document)
    shapes = _shapes(document, manifest)
    return Header(manifest, shapes, _places(shapes), outputs, request_id, _timeout_s(parameters))


def _id(document: dict[str, Any]) -> str:
    value = document.get("id", "")
    if type(value) is not str or len(value) > MAX_ID_LENGTH:
        raise BadInput(f"id: a string of at most {MAX_ID_LENGTH} characters wanted, got {kind(value)}")
    return value


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    value = holder.get("parameters")
    if value is None:
        return {}
    if type(value) is not dict:
        raise BadInput(f"{where}: an object wanted, got {kind(value)}")
    for key in value:
        if key.startswith("shared_memory"):
            raise BadInput(f"{where}.{key[:64]}: shared memory is not served")
    return value


def _timeout_s(parameters: dict[str, Any]) -> float | None:
    timeout_us = parameters.get("timeout")
    if timeout_us is None or (type(timeout_us) is int and timeout_us == 0):
        return None
    if type(timeout_us) is not int or not 0 < timeout_us <= MAX_TIMEOUT_S * 1e6:
        shown = timeout_us if type(timeout_us) in (int, float) else kind(timeout_us)
        raise BadInput(
            f"parameters.timeout: microseconds up to {MAX_TIMEOUT_S * 1e6:.0f} wanted, got {str(shown)[:64]}"
        )
    return timeout_us / 1e6


def _outputs(document: dict[str, Any], parameters: dict[str, Any], manifest: Manifest) -> tuple[tuple[str, bool], ...]:
    default = parameters.get("binary_data_output", False)
    if type(default) is not bool:
        raise BadInput(f"parameters.binary_data_output: a boolean wanted, got {kind(default)}")
    names = [o.name for o in manifest.outputs]
    requested = document.get("outputs")
    if not requested and requested in (None, []):
        return tuple((name, default) for name in names)
    if type(requested) is not list or len(requested) > len(names):
        raise BadInput(f"outputs: a list of at most {len(names)} wanted")
    wanted: dict[str, bool] = {}
    for at, output in enumerate(requested):
        if type(output) is not dict or type(output.get("name")) is not str:
            raise BadInput(f"outputs[{at}]: an object with a name wanted")
        name = output["name"]
        if name not in names or name in wanted:
            raise BadInput(f"outputs[{at}]: one of {', '.join(names)}, each once, wanted, got {show(name)}")
        settings = _parameters(output, f"outputs[{name}].parameters")
        if settings.get("classification"):
            raise BadInput(f"outputs[{name}].parameters.classification: not served")
        binary = settings.get("binary_data", default)
        if type(binary) is not bool:
            raise BadInput(f"outputs[{name}].parameters.binary_data: a boolean wanted, got {kind(binary)}")
        wanted[name] = binary
    return tuple(wanted.items())


def _shapes(document: dict[str, Any], manifest: Manifest) -> tuple[Shape, ...]:
    """What the header says of each input; every input of the model is there, once."""
    specs = {i.name: i for i in manifest.inputs}
    splits = {i.name + ROW_SPLITS: Input(i.name + ROW_SPLITS, "int64") for i in manifest.inputs if i.ragged}
    tensors = document.get("inputs")
    if type(tensors) is not list or len(tensors) > len(specs) + len(splits):
        wanted = f"a list of at most {len(specs) + len(splits)} tensors"
        raise BadInput(f"inputs: {wanted} wanted, got {len(tensors) if type(tensors) is list else kind(tensors)}")
    shapes: dict[str, Shape] = {}
    for index, tensor in enumerate(tensors):
        if type(tensor) is not dict or type(tensor.get("name")) is not str:
            raise BadInput(f"inputs[{index}]: an object with a name wanted")
        name = tensor["name"]
        spec = specs.get(name) or splits.get(name)
        if spec is None or name in shapes:
            raise BadInput(f"inputs[{index}]: one of {', '.join(specs)}, each once, wanted, got {show(name)}")
        shapes[name] = _shape(tensor, spec)
    for name in (*specs, *splits):
        if name not in shapes:
            raise BadInput(f"inputs: {name} is missing")
    return tuple(shapes.values())


def _places(shapes: Iterable[Shape]) -> Places | None:
    """Where the tensors lie behind the header, when all of them do and none is of strings or ragged."""
    places, offset = [], 0
    for spec, count, nbytes, _ in shapes:
        if nbytes is None or spec.ragged or spec.dtype == "string" or spec.name.endswith(ROW_SPLITS):
            return None
        places.append(
            Place(spec.name, DTYPES[DATATYPES[spec.dtype]], count // (spec.columns or 1), spec.columns, offset)
        )
        offset += nbytes
    return Places(tuple(places), offset)


def _packed(places: Places, body: bytes, at: int) -> Packed:
    if at + places.nbytes != len(body):
        raise BadInput(f"inputs: {places.nbytes} bytes of binary tensors wanted, got {len(body) - at}")
    return Packed(body, at, places)


def _inputs(header: Header, body: bytes, at: int) -> dict[str, Column]:
    values: dict[str, Any] = {}
    ragged = False
    for spec, count, nbytes, given in header.shapes:
        if nbytes is None:
            column = given
        else:
            if nbytes > len(body) - at:
                wanted = f"0 to {len(body) - at} wanted, as is left of the body"
                raise BadInput(f"inputs[{spec.name}].parameters.binary_data_size: {wanted}")
            column = _binary(spec, body, at, nbytes, count)
            at += nbytes
        values[spec.name] = column.reshape(-1, spec.columns) if spec.columns and spec.dtype != "string" else column
        ragged = ragged or spec.ragged
    if at != len(body):
        raise BadInput(f"inputs: binary tensors end at byte {at} of the body, got {len(body)} bytes")
    if not ragged:
        return values
    return {
        i.name: Ragged(values[i.name], _row_splits(i.name, values)) if i.ragged else values[i.name]
        for i in header.manifest.inputs
    }


def _row_splits(name: str, values: dict[str, Any]) -> NDArray[np.int64]:
    splits: NDArray[np.int64] = values[name + ROW_SPLITS]
    total = len(values[name])
    if not len(splits) or splits[0] != 0 or splits[-1] != total or (splits[1:] < splits[:-1]).any():
        raise BadInput(f"inputs[{name}{ROW_SPLITS}]: values ascending from 0 to {total} wanted")
    return splits


def _shape(tensor: dict[str, Any], spec: Input) -> Shape:
    """One tensor of the header; values that it holds are read."""
    where = f"inputs[{spec.name}]"
    datatype = DATATYPES[spec.dtype]
    if tensor.get("datatype") != datatype:
        got = tensor.get("datatype")
        raise BadInput(f"{where}.datatype: {datatype} wanted, got {show(got) if type(got) is str else kind(got)}")
    count = _count(tensor.get("shape"), spec, where)
    nbytes = _parameters(tensor, f"{where}.parameters").get("binary_data_size")
    if nbytes is None:
        flat = _flat(tensor.get("data"), where)
        if len(flat) != count:
            raise BadInput(f"{where}.data: {count} values wanted, got {len(flat)}")
        return Shape(spec, count, None, Strings.of(strings(spec, flat)) if datatype == "BYTES" else numbers(spec, flat))
    if "data" in tensor:
        raise BadInput(f"{where}: data or binary_data_size wanted, got both")
    wanted = None if datatype == "BYTES" else count * DTYPES[datatype].itemsize
    if type(nbytes) is not int or nbytes < 0:
        most = "the length of the body" if wanted is None else str(wanted)
        raise BadInput(f"{where}.parameters.binary_data_size: 0 to {most} wanted, got {kind(nbytes)}")
    if wanted not in (None, nbytes):
        raise BadInput(f"{where}.parameters.binary_data_size: {wanted} wanted, got {nbytes}")
    return Shape(spec, count, nbytes, None)


def _count(shape: Any, spec: Input, where: str) -> int:
    """Elements of a shape that fits the input. Python's integers do not overflow; the body's length bounds
    them."""
    wanted = f"[n, {spec.columns}]" if spec.columns else "[n]"
    whole = type(shape) is list and 0 < len(shape) <= MAX_RANK and set(map(type, shape)) == {int}
    if not whole or min(shape) < 0 or max(shape) >= 2**31:
        raise BadInput(f"{where}.shape: {wanted} wanted, as a list of whole numbers")
    if spec.columns:
        fits = len(shape) == 2 and shape[1] == spec.columns
    else:
        fits = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1 and not spec.ragged)
    if not fits:
        raise BadInput(f"{where}.shape: {wanted} wanted, got {shape}")
    return int(shape[0]) * (spec.columns or 1)


def _binary(spec: Input, body: bytes, at: int, nbytes: int, count: int) -> Any:
    if spec.dtype == "string":
        return decode_bytes(np.frombuffer(body, np.uint8, nbytes, at), count, f"inputs[{spec.name}]")
    dtype = DTYPES[DATATYPES[spec.dtype]]
    if not nbytes:
        return np.empty(0, dtype)
    view = np.frombuffer(body, dtype, count, at)
    # Kernels are compiled for aligned arrays; the JSON before the tensor has any length.
    return view if view.flags.aligned else view.copy()


def _flat(data: Any, where: str) -> list[Any]:
    """Row-major values of a flat or nested list; two levels at most, as no input has more dimensions."""
    if type(data) is not list:
        raise BadInput(f"{where}.data: a list wanted, got {kind(data)}")
    if not data or type(data[0]) is not list:
        return data
    if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
        raise BadInput(f"{where}.data: rows of one length wanted")
    return [value for row in data for value in row]


def encode(
    outputs: Mapping[str, NDArray[np.float32]], options: Options, model: str, version: int
) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """The reply's body, and its headers but for the length. outputs: float32 [n, columns] each."""
    arrays = [(name, binary, np.ascontiguousarray(outputs[name], "<f4")) for name, binary in options.outputs]
    if not options.id and all(binary for _, binary in options.outputs):
        shapes = tuple([(name, array.shape, array.nbytes) for name, _, array in arrays])
        header, kinds = _binary_reply(model, version, shapes)
        return b"".join([header, *[array for _, _, array in arrays]]), kinds
    tensors: list[dict[str, Any]] = []
    for name, binary, array in arrays:
        if binary:
            tensors.append(_binary_tensor(name, array.shape, array.nbytes))
        else:
            data = json_numbers(array.reshape(-1))
            tensors.append({"name": name, "datatype": "FP32", "shape": array.shape, "data": data})
    document: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": tensors}
    if options.id:
        document["id"] = options.id
    header = dump_json(document)
    buffers = [array for _, binary, array in arrays if binary]
    return (b"".join([header, *buffers]), _binary_kinds(header)) if buffers else (header, (JSON_TYPE,))


@lru_cache(maxsize=1024)
def _binary_reply(
    model: str, version: int, tensors: tuple[tuple[str, tuple[int, ...], int], ...]
) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The JSON header and the HTTP headers of a reply whose tensors are all binary: the same for all of one size."""
    outputs = [_binary_tensor(*tensor) for tensor in tensors]
    header = dump_json({"model_name": model, "model_version": str(version), "outputs": outputs})
    return header, _binary_kinds(header)


def _binary_tensor(name: str, shape: tuple[int, ...], nbytes: int) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": nbytes}}


def _binary_kinds(header: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return BINARY_TYPE, (HEADER_LENGTH, b"%d" % len(header))


def encode_metadata(manifest: Manifest, model: str, versions: Iterable[int]) -> bytes:
    """The model metadata reply; a ragged input is listed as its two tensors."""
    inputs: list[dict[str, Any]] = []
    for i in manifest.inputs:
        inputs.append({"name": i.name, "datatype": DATATYPES[i.dtype], "shape": [-1, i.columns] if i.columns else [-1]})
        if i.ragged:
            inputs.append({"name": i.name + ROW_SPLITS, "datatype": "INT64", "shape": [-1]})
    outputs = [{"name": o.name, "datatype": "FP32", "shape": [-1, o.columns]} for o in manifest.outputs]
    return dump_json(
        {
            "name": model,
            "versions": [str(v) for v in versions],
            "platform": "freshet",
            "inputs": inputs,
            "outputs": outputs,
        }
    )
