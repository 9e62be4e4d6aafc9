"""KServe's BYTES layout (a 4-byte little-endian length before each element) to Strings.

Positions depend on the lengths before them, so the walk is sequential; compiled when the module is imported
(from Numba's cache after the first time), never on the request path.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from processor.columns import Strings
from processor.errors import BadInput

PREFIX_NBYTES = 4


@nb.njit(
    nb.int64(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.uint8[::1], nb.int64[::1]),
    cache=True,
    nogil=True,
)
def _strip(source, data, offsets):
    """Copies the elements end to end into `data`; returns how many bytes of `source` were read, or -1 - i
    when element i reaches beyond it. data holds len(source) - 4 * elements bytes, offsets elements + 1."""
    at, end = 0, 0
    for i in range(len(offsets) - 1):
        if len(source) - at < 4:
            return -1 - i
        length = (
            np.int64(source[at])
            | np.int64(source[at + 1]) << 8
            | np.int64(source[at + 2]) << 16
            | np.int64(source[at + 3]) << 24
        )
        at += 4
        if length > len(source) - at or length > len(data) - end:
            return -1 - i
        data[end : end + length] = source[at : at + length]
        at += length
        end += length
        offsets[i + 1] = end
    return at


def decode_bytes(source: np.ndarray, count: int, name: str) -> Strings:
    """`count` strings of a BYTES tensor. source: uint8 [nbytes], all of it used. Raises BadInput."""
    if count * PREFIX_NBYTES > len(source):
        raise BadInput(f"{name}: {count} length-prefixed elements wanted, got {len(source)} bytes")
    data = np.empty(len(source) - count * PREFIX_NBYTES, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    read = _strip(source, data, offsets)
    if read < 0:
        raise BadInput(f"{name}: element {-1 - read} reaches beyond the tensor's {len(source)} bytes")
    if read != len(source):
        raise BadInput(f"{name}: {count} elements fill {read} bytes, got {len(source)}")
    return Strings(data, offsets)
