"""Split a sequence of length-prefixed byte strings: lay them end to end without their lengths.

Positions depend on the lengths before them, so the walk is sequential.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import kernel

PREFIX_NBYTES = 4


@kernel(nb.int64(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.uint8[::1], nb.int64[::1]))
def strip_lengths(source, data, offsets):
    """Copy the elements of `source`, each after its little-endian length of PREFIX_NBYTES, end to end into `data`.

    offsets[0] is 0; the others, int64 [elements + 1], are written.

    Returns:
        The number of bytes of `source` that were read, or -1 - i if element i reaches beyond it.
    """
    at, end = 0, 0
    for i in range(len(offsets) - 1):
        if len(source) - at < PREFIX_NBYTES:
            return -1 - i
        length = (
            np.int64(source[at])
            | np.int64(source[at + 1]) << 8
            | np.int64(source[at + 2]) << 16
            | np.int64(source[at + 3]) << 24
        )
        at += PREFIX_NBYTES
        if length > len(source) - at or length > len(data) - end:
            return -1 - i
        data[end : end + length] = source[at : at + length]
        at += length
        end += length
        offsets[i + 1] = end
    return at
