"""Kept requests of a model as bytes: the columns that it reads, in a form that another version, and a file, can hold.

A replica keeps rows of recent requests (processor.versions.sample). What leaves it are copies of those rows, of the
inputs that the model reads and of no other: not of keys by which features were only looked up. They are scored under
another version (request_scoring), by this process or a worker, and kept over a restart (kept_file).

One safetensors file. Tensors, for request n and the input with number i of the metadata's `inputs`:
    n.i.values                   numbers
    n.i.data, n.i.offsets        strings: uint8 bytes end to end, int64 starts
    n.i.row_splits               of ragged inputs, in addition: int64 starts of rows among the values
Metadata: format, inputs (JSON list of names), rows (JSON list: rows of each request).

Invariants
- At most MOST_ROWS rows and MOST_NBYTES bytes, both when written and when read.
- Nothing that is read is trusted: offsets of strings and rows are checked here, because kernels do not check them
  again; dtypes, names and shapes are checked where a request is bound, as those of any request.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, take_rows
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import Tensors, parse_tensors, write_tensors
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.sample import MOST_ROWS, SampleRows

FORMAT = "freshet-kept-requests/1"
MOST_NBYTES = 4 << 20
HEADER_NBYTES = 128
"""Most bytes of a tensor's entry in the header of the file."""
MAX_INPUTS = 4096
WHERE = "kept requests"


class KeptRequest(NamedTuple):
    """Some rows of a request; inputs of one row are of all rows."""

    inputs: Mapping[str, Column]
    rows: int


def kept_requests(sample: Sequence[SampleRows], names: Collection[str]) -> list[KeptRequest]:
    """Return copies of the sampled rows, of the inputs that the model reads, where inputs were kept."""
    requests_kept = []
    for bound, rows, inputs in sample:
        if inputs is not None:
            first = np.arange(rows)
            columns = {
                name: take_rows(column, first if len(column) == bound.rows else np.arange(len(column)))
                for name, column in inputs.items()
                if name in names
            }
            requests_kept.append(KeptRequest(columns, rows))
    return requests_kept


def dump_requests(requests: Sequence[KeptRequest]) -> bytes:
    """Return as many of the requests as MOST_ROWS and MOST_NBYTES allow, newest last; b"" if there is none."""
    names = sorted({name for request in requests for name in request.inputs})
    tensors: dict[str, NDArray[Any]] = {}
    rows, nbytes = list[int](), 0
    for request in requests[::-1]:
        tensors_of = _tensors(request, names, len(rows))
        nbytes += sum(array.nbytes + HEADER_NBYTES for array in tensors_of.values())
        if nbytes > MOST_NBYTES or sum(rows) + request.rows > MOST_ROWS:
            break
        tensors |= tensors_of
        rows.append(request.rows)
    if not rows:
        return b""
    file = io.BytesIO()
    # Large elements first, so that all are aligned.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    write_tensors(file, tensors, {"format": FORMAT, "inputs": json.dumps(names), "rows": json.dumps(rows)})
    return file.getvalue()


def parse_requests(data: bytes) -> list[KeptRequest]:
    """Return the requests that dump_requests() wrote; raise Corrupt."""
    # The names of inputs come on top.
    if len(data) > 2 * MOST_NBYTES:
        raise Corrupt(f"{WHERE}: expected at most {2 * MOST_NBYTES} bytes, got {len(data)}")
    tensors = parse_tensors(np.frombuffer(data, np.uint8), WHERE)
    try:
        names, rows = (json.loads(tensors.metadata[key]) for key in ("inputs", "rows"))
        sound = tensors.metadata["format"] == FORMAT and len(names) <= MAX_INPUTS and len(rows) <= MOST_ROWS
        sound = sound and all(type(name) is str for name in names) and all(type(n) is int and n > 0 for n in rows)
        if not sound or sum(rows) > MOST_ROWS:
            raise ValueError
    except (KeyError, ValueError, TypeError, RecursionError):
        raise Corrupt(f"{WHERE}: expected {FORMAT!r} with inputs and at most {MOST_ROWS} rows") from None
    columns = [{name: _column(tensors, f"{n}.{i}") for i, name in enumerate(names)} for n in range(len(rows))]
    return [
        KeptRequest({name: column for name, column in columns_of.items() if column is not None}, count)
        for columns_of, count in zip(columns, rows)
    ]


def without_user(data: bytes, user: ErasedUser) -> tuple[bytes, int]:
    """Return requests that are known not to be of a user, and how many others there were; 1 if none can be read."""
    try:
        requests = parse_requests(data) if data else []
    except Corrupt:
        return b"", 1
    others = [request for request in requests if user.sent_in(request.inputs) is False]
    erased = len(requests) - len(others)
    return (dump_requests(others) if erased else data), erased


def _tensors(request: KeptRequest, names: Sequence[str], number: int) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    for i, name in enumerate(names):
        column = request.inputs.get(name)
        if column is None:
            continue
        prefix = f"{number}.{i}"
        if isinstance(column, Ragged):
            tensors[f"{prefix}.row_splits"] = np.ascontiguousarray(column.row_splits, np.int64)
            column = column.values
        if isinstance(column, Strings):
            first, last = int(column.offsets[0]), int(column.offsets[-1])
            tensors[f"{prefix}.data"] = column.data[first:last]
            tensors[f"{prefix}.offsets"] = np.ascontiguousarray(column.offsets - first, np.int64)
        else:
            # Codecs pass on wider numbers as they were sent; the plan reads them as these.
            kind = np.float32 if column.dtype.kind == "f" else np.int64
            tensors[f"{prefix}.values"] = np.ascontiguousarray(column.astype(kind, copy=False))
    return tensors


def _column(tensors: Tensors, prefix: str) -> Column | None:
    """Return one input of one request; None if the request leaves it out."""
    arrays = tensors.arrays
    values: Any = arrays.get(f"{prefix}.values")
    if (data := arrays.get(f"{prefix}.data")) is not None:
        if data.dtype != np.uint8 or data.ndim != 1:
            raise Corrupt(f"{WHERE}: expected the bytes of strings")
        values = Strings(data, _starts(arrays.get(f"{prefix}.offsets"), data.size))
    if (splits := arrays.get(f"{prefix}.row_splits")) is None:
        return values  # type: ignore[no-any-return]
    if values is None:
        raise Corrupt(f"{WHERE}: an input has rows and no values")
    return Ragged(values, _starts(splits, len(values)))


def _starts(offsets: NDArray[Any] | None, size: int) -> NDArray[np.int64]:
    sound = offsets is not None and offsets.dtype == np.int64 and offsets.ndim == 1 and offsets.size > 0
    if not sound or offsets is None or offsets[0] != 0 or offsets[-1] != size or (offsets[1:] < offsets[:-1]).any():
        raise Corrupt(f"{WHERE}: expected ascending offsets from 0 to {size}")
    return offsets
