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
    if count:
        # Garbage of other tests holds descriptors, which would become free inside.
        gc.collect()
    gc.disable()
    opened = [os.dup(0) for _ in range(count + 1)]
    for fd in opened:
        os.close(fd)
    # Other threads may close theirs inside; 0, 1 and 2 stay open.
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1] if count else 3, hard))
    try:
        yield
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fds_of(path):
    """How many are open on this very file: whatever other threads and tests open and close does not count."""
    file, count = os.stat(path), 0
    for fd in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is gone by now.
        with contextlib.suppress(OSError):
            count += os.path.samestat(os.fstat(int(fd)), file)
    return count
