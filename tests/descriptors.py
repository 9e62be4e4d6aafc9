"""Descriptors that this process holds, counted so that what other tests have left does not count."""

import contextlib
import gc
import os
import resource


def open_fds():
    """How many are open now."""
    return len(os.listdir("/proc/self/fd"))


def settled_fds():
    """How many are open once garbage of other tests is gone: what to compare open_fds() with afterwards."""
    gc.collect()
    return open_fds()


@contextlib.contextmanager
def few_descriptors(count=0):
    """This process may have no more than `count` further descriptors for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.dup(0) for _ in range(count + 1)]
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
