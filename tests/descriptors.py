"""Descriptors that this process holds, counted so that what other tests have left does not count."""

import gc
import os


def open_fds():
    """How many are open now."""
    return len(os.listdir("/proc/self/fd"))


def settled_fds():
    """How many are open once garbage of other tests is gone: what to compare open_fds() with afterwards."""
    gc.collect()
    return open_fds()
