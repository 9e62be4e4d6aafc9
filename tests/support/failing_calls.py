"""System calls that fail: any one that touches a folder, as on a full disk."""

import builtins
import errno
import os

OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "link", "posix_fallocate")
BY_DESCRIPTOR = ("fsync", "posix_fallocate")


class FailingCalls:
    """Counts the system calls that touch a folder, and has one of them fail.

    count: calls so far. at: the call that fails; None for none. number: the system's number of its error. hit: name of
    the call that failed; "" for none yet. lasting: whether the calls after it that need space fail, too.
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.count, self.at, self.number = str(folder), 0, None, errno.ENOSPC
        self.hit, self.lasting = "", False
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._wrapped("open", builtins.open))

    def begin(self, at, number=errno.ENOSPC, lasting=False):
        """Count anew, and fail at a call."""
        self.count, self.at, self.number, self.hit, self.lasting = 0, at, number, "", lasting

    def _wrapped(self, name, function):
        def call(*arguments, **keywords):
            path = arguments[0] if arguments else ""
            if name in BY_DESCRIPTOR or (isinstance(path, (str, os.PathLike)) and self._ours(path)):
                self.count += 1
                if self.at is not None and (self.count == self.at or (self.lasting and self.count > self.at)):
                    self.hit = self.hit or name
                    where = None if name in BY_DESCRIPTOR else os.fspath(path)
                    raise OSError(self.number, os.strerror(self.number), where)
            return function(*arguments, **keywords)

        return call

    def _ours(self, path):
        return os.path.abspath(os.fspath(path)).startswith(self.folder)
