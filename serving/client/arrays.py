"""Convert a request's values to KServe v2 tensors, with the datatype and shape that numpy gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Ragged, Strings, exact_array
from freshet_serving.processor.errors import BadInput

Values = Any
"""An array, a (nested) sequence, one value, or Ragged."""

PREFIX_NBYTES = 4


class RequestTensor(NamedTuple):
    """One input of a request.

    Attributes:
        datatype: KServe's name of its type.
        data: Little-endian values in row-major order; each string follows its length in 4 bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def tensors(inputs: Mapping[str, Values]) -> list[RequestTensor]:
    """Convert inputs to tensors.

    Integers become INT64 (UINT64 if one is 2**63 or more), floats FP32 (float16 stays FP16), text and bytes BYTES;
    Ragged becomes two tensors. Raises BadInput for anything else.
    """
    request_tensors = []
    for name, values in inputs.items():
        if isinstance(values, Ragged):
            flat = values.values.tolist() if isinstance(values.values, Strings) else values.values
            splits = np.ascontiguousarray(values.row_splits, "<i8")
            request_tensors += [_tensor(name, np.asarray(flat)), _tensor(f"{name}.row_splits", splits)]
        else:
            request_tensors.append(_tensor(name, _array(name, values)))
    return request_tensors


def of_user(inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Return the values of one user as inputs of one row. Raises BadInput for more than one row."""
    rows: dict[str, Values] = {}
    for name, values in inputs.items():
        if isinstance(values, Ragged):
            rows[name] = values
        else:
            array = _array(name, values)
            rows[name] = array[np.newaxis] if array.ndim < 2 else array
        if len(rows[name]) != 1:
            raise BadInput(f"user[{name}]: expected one row, got {len(rows[name])}")
    return rows


def _array(name: str, values: Values) -> NDArray[Any]:
    try:
        return exact_array(values)
    except ValueError:
        raise BadInput(f"inputs[{name}]: expected rows of one length; use Ragged.of(rows) for others") from None
    except OverflowError:
        raise BadInput(
            f"inputs[{name}]: expected integers from {-(2**63)} to {2**63 - 1}, or from 0 to {2**64 - 1}, got others"
        ) from None


def _tensor(name: str, array: NDArray[Any]) -> RequestTensor:
    shape = array.shape or (1,)
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        return RequestTensor(name, "UINT64", shape, array.astype("<u8").tobytes())
    if array.dtype.kind in "iu":
        return RequestTensor(name, "INT64", shape, array.astype("<i8").tobytes())
    if array.dtype == np.float16:
        return RequestTensor(name, "FP16", shape, array.astype("<f2").tobytes())
    if array.dtype.kind == "f":
        return RequestTensor(name, "FP32", shape, array.astype("<f4").tobytes())
    if array.dtype.kind in "USO":
        return RequestTensor(name, "BYTES", shape, _strings(name, array.reshape(-1).tolist()))
    raise BadInput(f"inputs[{name}]: expected integers, floats or strings, got {array.dtype}")


def _strings(name: str, values: Sequence[Any]) -> bytes:
    parts = []
    for value in values:
        if not isinstance(value, (str, bytes)):
            raise BadInput(f"inputs[{name}]: expected strings, got {type(value).__name__}")
        data = value.encode() if isinstance(value, str) else value
        parts += [len(data).to_bytes(PREFIX_NBYTES, "little"), data]
    return b"".join(parts)
