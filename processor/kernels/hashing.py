"""Hash strings to ids, and ids to their initial rows; training and serving get the same bits."""

# mypy: ignore-errors

import numba as nb
import numpy as np
import xxhash

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.xxh3 import SECRET_ADDRESS, hash_column


def hash_strings(strings: Strings, seed: int) -> np.ndarray:
    """Return int64 [n]: xxh3_64 of each string's UTF-8 bytes, as two's complement.

    Args:
        strings: A column of n strings.
        seed: The table's seed.
    """
    hashes, longer = np.empty(len(strings), np.uint64), np.empty(len(strings), np.int64)
    data, offsets = strings.data, strings.offsets
    left = hash_column(data.ctypes.data, offsets, SECRET_ADDRESS, np.uint64(seed), hashes, longer)
    for i in longer[:left].tolist():
        hashes[i] = xxhash.xxh3_64_intdigest(data[offsets[i] : offsets[i + 1]].tobytes(), seed)
    return hashes.view(np.int64)


@nb.njit(nb.uint64(nb.uint64), cache=True, nogil=True, inline="always")
def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@nb.njit(
    nb.void(nb.types.Array(nb.int64, 1, "A", readonly=True), nb.uint64, nb.float32, nb.float32[:, :]),
    cache=True,
    nogil=True,
)
def init_rows(keys, seed, limit, rows):
    """Fill rows with uniform values in [-limit, limit) that depend only on seed, key and column (splitmix64).

    Args:
        keys: int64 [n].
        seed: The table's seed.
        limit: float32, the bound of the values.
        rows: float32 [n, width]; written.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    for i in range(len(keys)):
        state = _mix(np.uint64(keys[i]) + seed * golden)
        for j in range(rows.shape[1]):
            state += golden
            unit = np.float32(_mix(state) >> np.uint64(40)) * np.float32(2.0**-24)
            rows[i, j] = (unit * np.float32(2.0) - np.float32(1.0)) * limit
