"""Parse the buckets of a row store: find an id's bucket, and the id's row within the bucket.

Statuses of requested ids: LOST (could not be fetched), FOUND, NOWHERE (the store has no row for it).
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import home
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.pointers import copy_bytes, load_i64_anywhere

LOST, FOUND, NOWHERE = 0, 1, 2
BUCKET_HEADER_NBYTES = 8


@kernel(nb.void(nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64, nb.int64[::1]))
def buckets_of(ids, buckets, out):
    """Write the bucket of each id, int64 [n]."""
    for i in range(len(ids)):
        out[i] = home(ids[i], buckets)


@kernel(
    nb.void(
        nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.int64[::1], nb.int64, nb.int64[::1], nb.int64[::1],
        nb.uint8[:, ::1], nb.uint8[::1],
    ),
    boundscheck=False,
)  # fmt: skip
def unpack(data, starts, tag, ids, bucket, rows, status):
    """Look ids up in the fetched buckets: fills status[i], and rows[i], uint8 [n, bytes], where the status is FOUND.

    Bucket b is data[starts[b]:starts[b + 1]], empty if it was not fetched; bucket[i] is that of id i. One whose first
    four bytes are not the tag, or whose length is wrong, counts as lost.
    """
    source, nbytes = np.int64(data.ctypes.data), rows.shape[1]
    target = np.int64(rows.ctypes.data)
    for i in range(len(ids)):
        status[i] = LOST
        start = starts[bucket[i]]
        size = starts[bucket[i] + 1] - start - BUCKET_HEADER_NBYTES
        if size < 0:
            continue
        header = load_i64_anywhere(source + start)
        count = (header >> 32) & 0xFFFFFFFF
        if header & 0xFFFFFFFF != tag or count * (8 + nbytes) != size:
            continue
        status[i] = NOWHERE
        keys = source + start + BUCKET_HEADER_NBYTES
        for n in range(count):
            if load_i64_anywhere(keys + 8 * n) == ids[i]:
                copy_bytes(target + i * nbytes, keys + 8 * count + n * nbytes, nbytes)
                status[i] = FOUND
                break
