"""Files that are mapped without a lease, as on a file system that has none."""

import contextlib


@contextlib.contextmanager
def unleased(*paths):
    """Keep files from being leased while they are mapped: the kernel gives no lease on what is open for writing.

    A test that damages a served file in its own process needs this: the writer would wait for the reader, which is the
    same process. Close it before the version is opened again: a file that is still written to is not read.
    """
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(open(path, "r+b"))
        yield
