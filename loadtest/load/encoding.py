"""Encodes requests and decodes replies by the protocols' own documents: KServe v2 with binary tensors, TFS REST.

A column of a request is
    numpy int64 or float32, [n] or [n, columns]      one value, or one row of values, per row
    a list of n strings (or of n lists of them)      datatype BYTES
    a list of n lists or arrays of any length        a ragged input, whatever its datatype
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

ROW_SPLITS = ".row_splits"
HEADER_LENGTH = "Inference-Header-Content-Length"
GENERATION = "x-model-generation"
DTYPES: dict[str, np.dtype[Any]] = {"INT64": np.dtype("<i8"), "FP32": np.dtype("<f4")}

Column = Any


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input of a model. datatype: INT64 | FP32 | BYTES. columns 0: shape [n]; k > 0: shape [n, k].
    ragged: rows of any length."""

    name: str
    datatype: str
    columns: int = 0
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """A model as its clients see it; outputs are float32."""

    model: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One predict request, ready to send. protocol: kserve | tfs. number: which of the planned requests it
    asks, -1 for none of them."""

    protocol: str
    path: str
    headers: dict[str, str]
    body: bytes
    rows: int
    number: int = -1


def parse_metadata(document: Mapping[str, Any]) -> Signature:
    """The reply of GET /v2/models/<model>; raises ValueError for an input that this module cannot send."""
    listed = {t["name"]: t for t in document["inputs"]}
    inputs = []
    for name, tensor in listed.items():
        if name.removesuffix(ROW_SPLITS) != name and name.removesuffix(ROW_SPLITS) in listed:
            continue
        datatype, shape = tensor["datatype"], tensor["shape"]
        if datatype not in (*DTYPES, "BYTES") or len(shape) not in (1, 2):
            raise ValueError(f"input {name!r}: INT64, FP32 or BYTES of shape [n] or [n, k] wanted")
        columns = int(shape[1]) if len(shape) == 2 else 0
        inputs.append(InputTensor(name, datatype, columns, name + ROW_SPLITS in listed))
    return Signature(document["name"], tuple(inputs), tuple(o["name"] for o in document["outputs"]))


def encode_kserve(
    signature: Signature, columns: Mapping[str, Column], number: int = -1, header_nbytes: int = 0
) -> Request:
    """An infer request whose inputs, and whose reply's outputs, are binary tensors. header_nbytes: its JSON is filled
    up with spaces to so many, so that requests of different sizes have the same HTTP headers."""
    tensors, buffers, rows = [], [], 0
    for tensor in signature.inputs:
        column = columns[tensor.name]
        rows = max(rows, len(column))
        flat = _flat(tensor, column)
        shape = [len(flat)] if tensor.ragged or not tensor.columns else [len(column), tensor.columns]
        parts = [(tensor.name, tensor.datatype, shape, _buffer(flat))]
        if tensor.ragged:
            splits = np.zeros(len(column) + 1, "<i8")
            np.cumsum([len(row) for row in column], out=splits[1:])
            parts.append((tensor.name + ROW_SPLITS, "INT64", [len(splits)], splits.tobytes()))
        for name, datatype, dims, data in parts:
            tensors.append(
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": dims,
                    "parameters": {"binary_data_size": len(data)},
                }
            )
            buffers.append(data)
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in signature.outputs]
    header = json.dumps({"inputs": tensors, "outputs": outputs}, separators=(",", ":")).encode()
    header = header.ljust(header_nbytes)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    path = f"/v2/models/{signature.model}/infer"
    return Request("kserve", path, headers, b"".join([header, *buffers]), rows, number)


def encode_tfs(signature: Signature, columns: Mapping[str, Column], number: int = -1) -> Request:
    """A predict request in row form: one object of named values per row."""
    named = {t.name: _rows(t, columns[t.name]) for t in signature.inputs}
    instances = [dict(zip(named, row)) for row in zip(*named.values())]
    body = orjson.dumps({"instances": instances})
    path = f"/v1/models/{signature.model}:predict"
    return Request("tfs", path, {"Content-Type": "application/json"}, body, len(instances), number)


def decode_kserve(body: bytes, header_length: str | None, output: str) -> NDArray[np.float32]:
    """One output of an infer reply, flat; raises ValueError when the reply is not as the protocol says."""
    try:
        length = int(header_length) if header_length is not None else len(body)
        at, tensors = length, orjson.loads(body[:length])["outputs"]
        for tensor in tensors:
            nbytes = tensor.get("parameters", {}).get("binary_data_size")
            if nbytes is None:
                values = np.asarray(tensor["data"], np.float32).reshape(-1)
            else:
                values = np.frombuffer(body[at : at + nbytes], "<f4")
                at += nbytes
            if tensor["name"] == output:
                return values
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"reply: an infer reply wanted: {error}") from None
    raise ValueError(f"reply: output {output!r} is missing")


def decode_tfs(body: bytes, output: str) -> NDArray[np.float32]:
    """One output of a predict reply in row form, flat; raises ValueError when the reply is no such thing."""
    try:
        rows = orjson.loads(body)["predictions"]
        if rows and isinstance(rows[0], dict):
            rows = [row[output] for row in rows]
        return np.asarray(rows, np.float32).reshape(-1)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"reply: predictions wanted: {error}") from None


def decode(request: Request, body: bytes, header_length: str | None, output: str) -> NDArray[np.float32]:
    """One output of the reply to `request`, flat; raises ValueError."""
    if request.protocol == "kserve":
        return decode_kserve(body, header_length, output)
    return decode_tfs(body, output)


def _flat(tensor: InputTensor, column: Column) -> Any:
    """Row-major values: an array, or a list of strings."""
    if tensor.datatype == "BYTES":
        nested = tensor.ragged or tensor.columns
        return [value for row in column for value in row] if nested else list(column)
    dtype = DTYPES[tensor.datatype]
    if tensor.ragged:
        return np.concatenate([np.asarray(row, dtype) for row in column]) if column else np.empty(0, dtype)
    return np.ascontiguousarray(column, dtype).reshape(-1)


def _buffer(flat: NDArray[Any] | Sequence[str]) -> bytes:
    """Strings: each as its length (4 bytes, little-endian) and its UTF-8."""
    if isinstance(flat, np.ndarray):
        return flat.tobytes()
    coded = [value.encode() for value in flat]
    return b"".join(struct.pack("<I", len(value)) + value for value in coded)


def _rows(tensor: InputTensor, column: Column) -> list[Any]:
    if isinstance(column, np.ndarray):
        values: list[Any] = column.tolist()
        return values
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in column]
