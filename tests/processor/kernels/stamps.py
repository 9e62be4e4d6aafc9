"""Stamps of keys, as a reader of a table's descriptor finds them."""

import numpy as np

from freshet_serving.processor.kernels.row_stamps import stamps_of


def stamps(descriptor, keys, epoch):
    """The stamp of each key as of an epoch."""
    found = np.empty(len(keys), np.int64)
    stamps_of(np.array(descriptor, np.int64), np.array(keys, np.int64), epoch, found)
    return found.tolist()
