"""Map tensor types to their names on the wire, and convert tensors to the types that the engine computes on.

The engine computes on int64, float32 and strings. An imported model may have declared other types (Input.declared,
Output.dtype): metadata name these, replies use them and requests may use them. An input also accepts types that convert
without loss: any smaller type, or a larger one whose values all fit. Other values are refused with an error that names
the input. A float64 that the model itself declared is rounded, because the engine computes in float32. The int64 of an
input that declares uint64 carries the bits of the value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest, Output, joined, labelled


class TensorType(NamedTuple):
    """One tensor type: its names in numpy, TensorFlow (dt), KServe (datatype) and Triton's configuration (config).

    Attributes:
        number: Its number in TensorFlow's DataType.
        field: The field of a TensorProto that holds its values.
        contents: The field of KServe's InferTensorContents that holds its values.
        dtype: Little-endian numpy type; None for strings.
    """

    name: str
    number: int
    dt: str
    field: str
    datatype: str
    contents: str
    config: str
    dtype: np.dtype[Any] | None


def _type(
    name: str, number: int, dt: str, field: str, datatype: str, contents: str, code: str | None, config: str = ""
) -> TensorType:
    dtype = None if code is None else np.dtype(code)
    return TensorType(name, number, dt, field, datatype, contents, f"TYPE_{config or datatype}", dtype)


ALL = (
    _type("float32", 1, "DT_FLOAT", "float_val", "FP32", "fp32_contents", "<f4"),
    _type("float64", 2, "DT_DOUBLE", "double_val", "FP64", "fp64_contents", "<f8"),
    _type("int32", 3, "DT_INT32", "int_val", "INT32", "int_contents", "<i4"),
    _type("uint8", 4, "DT_UINT8", "int_val", "UINT8", "uint_contents", "u1"),
    _type("int16", 5, "DT_INT16", "int_val", "INT16", "int_contents", "<i2"),
    _type("int8", 6, "DT_INT8", "int_val", "INT8", "int_contents", "i1"),
    _type("string", 7, "DT_STRING", "string_val", "BYTES", "bytes_contents", None, "STRING"),
    _type("int64", 9, "DT_INT64", "int64_val", "INT64", "int64_contents", "<i8"),
    _type("bool", 10, "DT_BOOL", "bool_val", "BOOL", "bool_contents", "?"),
    _type("uint16", 17, "DT_UINT16", "int_val", "UINT16", "uint_contents", "<u2"),
    _type("float16", 19, "DT_HALF", "half_val", "FP16", "", "<f2"),
    _type("uint32", 22, "DT_UINT32", "uint32_val", "UINT32", "uint_contents", "<u4"),
    _type("uint64", 23, "DT_UINT64", "uint64_val", "UINT64", "uint64_contents", "<u8"),
)
BY_NAME = {t.name: t for t in ALL}
BY_NUMBER = {t.number: t for t in ALL}
BY_DATATYPE = {t.datatype: t for t in ALL}
# A float32 represents every whole number up to this one exactly, but not all larger ones.
EXACT = 1 << 24


def declared(spec: Input | Output) -> TensorType:
    return BY_NAME[spec.declared or spec.dtype] if isinstance(spec, Input) else BY_NAME[spec.dtype]


def takes(spec: Input, sent: TensorType) -> bool:
    """Return whether an input accepts tensors of a type, provided that their values fit."""
    if (spec.dtype == "string") != (sent.dtype is None):
        return False
    return sent.dtype is None or spec.dtype == "float32" or sent.dtype.kind != "f"


def converted(spec: Input, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in the engine's type, int64 or float32; raise BadInput if one would change."""
    ours, declared_dtype = np.dtype(spec.dtype), declared(spec).dtype
    assert declared_dtype is not None, "numbers"
    if values.dtype == declared_dtype == np.uint64:
        return values.view(ours)
    if values.dtype != ours and not (values.dtype == declared_dtype or np.can_cast(values.dtype, ours)):
        with np.errstate(over="ignore", invalid="ignore"):
            cast = values.astype(ours)
            if ours.kind == "i":
                exact = values <= np.iinfo(np.int64).max
            else:
                exact = (cast.astype(values.dtype) == values) | (values != values)
        if ours.kind == "f" and values.dtype.kind in "iu":
            exact &= (values <= EXACT) & (values >= -EXACT if values.dtype.kind == "i" else True)
        _refuse(spec, values, exact)
        values = cast
    return _within(spec, values, declared_dtype).astype(ours, copy=False)


def narrowed(name: str, values: Any, sent: TensorType) -> NDArray[Any]:
    """Return the numbers of a message's field in the type that they are sent as; raise BadInput for one beyond it.

    Messages have no field for integers below 32 bits, and numpy wraps what it reads from a wider one.
    """
    assert sent.dtype is not None, "numbers"
    if sent.dtype.kind not in "iu" or sent.dtype.itemsize == 8:
        return np.array(values, sent.dtype)
    return within(Input(name, "int64", declared=sent.name), np.array(values, np.int64)).astype(sent.dtype)


def within(spec: Input, values: NDArray[Any]) -> NDArray[Any]:
    """Return int64 or float32 values unchanged, if the model's declared type can hold them; else raise BadInput.

    The bits of a uint64 all fit.
    """
    declared_dtype = BY_NAME[spec.declared].dtype if spec.declared not in ("", "uint64") else None
    return values if declared_dtype is None else _within(spec, values, declared_dtype)


def _within(spec: Input, values: NDArray[Any], declared_dtype: np.dtype[Any]) -> NDArray[Any]:
    if spec.dtype == "int64" and declared_dtype != np.int64 and values.dtype != declared_dtype and len(values):
        low, high = span(declared_dtype)
        # As Python's integers: numpy compares a boolean with none above 63 bits.
        if int(values.min()) < low or int(values.max()) > high:
            _refuse(spec, values, (values >= low) & (values <= high))
    return values


def _refuse(spec: Input, values: NDArray[Any], fits: NDArray[np.bool_]) -> None:
    flat = np.ravel(fits)
    if not flat.all():
        at = int(np.argmin(flat))
        value, declared_dtype = np.ravel(values)[at], declared(spec).dtype
        low, high = span(declared_dtype) if declared_dtype is not None and declared_dtype.kind in "iub" else (0, 0)
        limits = f"; it holds {low} to {high}" if high else ""
        raise BadInput(f"{spec.name}: expected values that {declared(spec).dt} holds, got {value} (value {at}){limits}")


def span(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the lowest and the highest number of a whole type; those of bool are 0 and 1."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def plain(manifest: Manifest) -> bool:
    """Return whether all outputs are float32 [n, columns], as the engine computes them."""
    return all(o.dims is None and o.dtype == "float32" for o in manifest.outputs)


def as_declared(
    outputs: dict[str, NDArray[np.float32]], manifest: Manifest, signature: str = "", asked: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return what a signature replies with, in the shapes and types that the model declared.

    Args:
        outputs: The engine's outputs, float32 [n, columns] each.
        asked: Names of the outputs that the request asks for: those in replies, or the package's.

    Returns:
        Arrays by name in replies, and by the package's name where it is asked for; strings are arrays of objects.
    """
    if not manifest.signatures and plain(manifest):
        return outputs
    converted_outputs: dict[str, NDArray[Any]] = {}
    array: NDArray[Any]
    for name, spec in manifest.replies(signature).items():
        array = joined(outputs[spec.name]) if spec.exact else outputs[spec.name]
        if spec.dims is not None:
            array = array.reshape(len(array), *spec.dims)
        declared_dtype = declared(spec).dtype
        if declared_dtype is None and array.dtype.kind == "O":
            # Texts of ids.
            converted_outputs[name] = array
        elif declared_dtype is None:
            converted_outputs[name] = labelled(array, manifest.texts[spec.name], spec.unknown)
        else:
            converted_outputs[name] = array if declared_dtype == array.dtype else _cast(array, declared_dtype)
        if spec.name in asked:
            converted_outputs.setdefault(spec.name, converted_outputs[name])
    return converted_outputs


def flat_outputs(manifest: Manifest, signature: str) -> frozenset[str]:
    """Return names in replies of the outputs that leave out their last dimension if a request's tensors do."""
    flat = {name: spec.name for name, spec in manifest.replies(signature).items() if spec.flat}
    return frozenset((*flat, *flat.values()))


def names_of_outputs(manifest: Manifest, signature: str = "") -> list[str]:
    """Return the names that a request may ask for outputs by: those in replies, then others that the package has."""
    replies = manifest.replies(signature)
    return list(dict.fromkeys([*replies, *(spec.name for spec in replies.values())]))


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "b":
        return array > 0.5
    if array.dtype.kind == "i":
        # Ids, which carry the bits of a uint64.
        return array.astype(dtype)
    return np.rint(array).astype(dtype) if dtype.kind in "iu" else array.astype(dtype)


def datatype_of(dtype: np.dtype[Any]) -> str:
    return type_of(dtype).datatype


def type_of(dtype: np.dtype[Any]) -> TensorType:
    """Return the type of an output's array; an array of objects holds strings."""
    return BY_NAME["string" if dtype.kind == "O" else dtype.name]


def raw_values(array: NDArray[Any]) -> NDArray[Any]:
    """Return an output's values as they are sent in bytes: each string follows its length in 4 bytes."""
    if array.dtype.kind != "O":
        return array
    parts = []
    for text in array.ravel().tolist():
        data = text.encode()
        parts += [len(data).to_bytes(4, "little"), data]
    return np.frombuffer(b"".join(parts), np.uint8)


def row_of(spec: Input) -> list[int]:
    """Return the shape of one row of an input that is not ragged."""
    return spec.dims if spec.dims is not None else [spec.columns] if spec.columns else []


def fits(spec: Input, shape: list[int]) -> bool:
    """Return whether a tensor's shape, rows first, fits an input that is not ragged."""
    row = shape[1:]
    return row in ([[spec.columns]] if spec.columns else [[], [1]]) or (spec.dims is not None and row == spec.dims)


def dims_of(spec: Output) -> list[int]:
    return [spec.columns] if spec.dims is None else list(spec.dims)
