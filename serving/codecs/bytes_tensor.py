"""KServe's BYTES layout (a 4-byte little-endian length before each element) to Strings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.length_prefixed import PREFIX_NBYTES, strip_lengths


def decode_bytes(source: NDArray[np.uint8], count: int, name: str) -> Strings:
    """`count` strings of a BYTES tensor. source: uint8 [nbytes], all of it used. Raises BadInput."""
    if count * PREFIX_NBYTES > len(source):
        raise BadInput(f"{name}: {count} length-prefixed elements wanted, got {len(source)} bytes")
    data = np.empty(len(source) - count * PREFIX_NBYTES, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    read = strip_lengths(source, data, offsets)
    if read < 0:
        raise BadInput(f"{name}: element {-1 - read} reaches beyond the tensor's {len(source)} bytes")
    if read != len(source):
        raise BadInput(f"{name}: {count} elements fill {read} bytes, got {len(source)}")
    return Strings(data, offsets)
