"""Runs a piece of work short of memory, descriptors, threads or room on disk; at every point in turn.

A point is a call that may fail for want of something. Two kinds of injectors count them, and fail one of them or all
from one on: Calls (functions of NumPy and of the system, by name, on any build of Python), and Objects (every object
that Python itself asks memory for, where the interpreter brings _testcapi).
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import errno
import itertools
import os

import numpy as np

try:
    import _testcapi
except ImportError:
    _testcapi = None

MAKING = ("empty", "zeros", "concatenate", "array", "ascontiguousarray", "arange", "full", "frombuffer", "unique")
ASKING = (
    "open", "fsync", "link", "rename", "replace", "unlink", "stat", "mkdir", "scandir", "read", "write", "pwrite",
    "preadv", "dup", "memfd_create", "ftruncate", "posix_fallocate",
)  # fmt: skip
OUTCOMES = {MemoryError: lambda: MemoryError("injected"), OSError: lambda: OSError(errno.ENOMEM, "injected")}


class Calls:
    """Fails the calls with numbers from `first` on, `count` of them (None: all that follow)."""

    def __init__(self, first, error=MemoryError, count=1):
        self.first, self.make, self.count = first, OUTCOMES[error], count
        self.error, self.seen, self.fired = error, 0, 0
        self._ticket = itertools.count()

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        for owner, names in ((np, MAKING), (os, ASKING), (builtins, ("open",)), (_thread, ("start_new_thread",))):
            for name in names:
                # Arrays are short of memory, and nothing else; system calls of whatever they say.
                make = OUTCOMES[MemoryError] if owner is np else self.make
                self._patch(owner, name, make)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _patch(self, owner, name, make):
        plain = getattr(owner, name)

        def counted(*args, **kwargs):
            number = next(self._ticket)
            self.seen = number + 1
            if number >= self.first and (self.count is None or number < self.first + self.count):
                self.fired += 1
                raise make()
            return plain(*args, **kwargs)

        setattr(owner, name, counted)
        self._stack.callback(setattr, owner, name, plain)


class Objects:
    """Fails Python's own requests for memory: the same numbers. Whether any was failed nobody can say but the work."""

    available = _testcapi is not None

    def __init__(self, first, count=1):
        self.first, self.stop = first, 0 if count is None else first + count

    def __enter__(self):
        _testcapi.set_nomemory(self.first, self.stop)
        return self

    def __exit__(self, *_):
        _testcapi.remove_mem_hooks()
