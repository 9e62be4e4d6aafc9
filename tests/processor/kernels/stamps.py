"""Stamps of keys, as a reader of a table's descriptor finds them."""

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.row_stamps import prefetch_head, stamp_of


@nb.njit(nb.void(nb.int64[::1], nb.int64[::1], nb.int64, nb.int64[::1]))
def write_stamps(table, keys, epoch, found):
    at = np.int64(table.ctypes.data)
    for key in keys:
        prefetch_head(at, key)
    for i in range(len(keys)):
        found[i] = stamp_of(at, keys[i], epoch)


def stamps(descriptor, keys, epoch):
    """The stamp of each key as of an epoch."""
    found = np.empty(len(keys), np.int64)
    write_stamps(np.array(descriptor, np.int64), np.array(keys, np.int64), epoch, found)
    return found.tolist()
