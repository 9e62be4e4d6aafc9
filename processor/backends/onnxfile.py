"""List the external weights of an ONNX file before any native parser sees it.

An ONNX file is one protobuf message. Only three levels matter here: the model's graph (field 7), the graph's
initialisers (field 5), and of each its dims (1), data type (2), name (8) and location (14). Everything else is skipped,
so the cost is the number of fields on those levels. Every length is checked against its enclosing message: a file
truncated inside its graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from freshet_serving.processor.errors import Corrupt, TooLarge

MAX_NBYTES = 256 << 20
MAX_RANK = 8
FLOAT = 1
EXTERNAL = 1

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def external_weights(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the float32 initialisers whose values are outside the file, in the file's order.

    Raises:
        Corrupt: The bytes are not an ONNX model with one graph, or an external initialiser is not a float32 tensor of a
            definite shape.
        TooLarge: The file is larger than 256 MiB.
    """
    if len(data) > MAX_NBYTES:
        raise TooLarge(f"executable: expected at most {MAX_NBYTES} bytes, got {len(data)}")
    view = memoryview(data)
    graphs = [value for number, value in _fields(view) if number == 7 and isinstance(value, memoryview)]
    if len(graphs) != 1:
        raise Corrupt(f"executable: expected an ONNX model with one graph, got {len(graphs)} graphs")
    weights: dict[str, tuple[int, ...]] = {}
    for number, value in _fields(graphs[0]):
        if number == 5 and isinstance(value, memoryview):
            weight = _external(value)
            if weight is not None:
                if weight[0] in weights:
                    raise Corrupt(f"executable: weight {weight[0][:64]!r} occurs more than once")
                weights[weight[0]] = weight[1]
    return weights


def _external(tensor: memoryview) -> tuple[str, tuple[int, ...]] | None:
    """Return (name, shape) of an initialiser outside the file, None for one inside."""
    name, kind, location = "", 0, 0
    shape: list[int] = []
    for number, value in _fields(tensor):
        if number == 1 and isinstance(value, int):
            shape.append(value)
        elif number == 1 and isinstance(value, memoryview):
            at = 0
            while at < len(value):
                dim, at = _varint(value, at)
                shape.append(dim)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8 and isinstance(value, memoryview):
            name = bytes(value).decode("utf-8", "replace")
        elif number == 14 and isinstance(value, int):
            location = value
    if location != EXTERNAL:
        return None
    if kind != FLOAT or len(shape) > MAX_RANK or not all(0 < dim <= 1 << 31 for dim in shape):
        raise Corrupt(f"executable: weight {name[:64]!r}: expected float32 of a definite shape")
    return name, tuple(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (field number, value): an int for a varint, a view for anything with a length."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire == _LENGTH:
            nbytes, at = _varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            nbytes = 4 if wire == _FIXED32 else 8
        else:
            raise Corrupt("executable: not an ONNX model")
        if nbytes > len(message) - at:
            raise Corrupt("executable: not an ONNX model, or cut short")
        yield tag >> 3, message[at : at + nbytes]
        at += nbytes


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the variable-length integer at `at`, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise Corrupt("executable: not an ONNX model, or cut short")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Corrupt("executable: not an ONNX model")
