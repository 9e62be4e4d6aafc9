"""Limit what clients may hold of a process: bytes of request bodies, and descriptors.

Bodies that arrive in pieces are refused (503) once all of them together hold the limit. None waits for another to
finish, so halves of bodies cannot block each other, and each has its own deadline. A body that arrives with its head in
one read may exceed the limit by SPARE_NBYTES, so that a client that fills the memory with incomplete bodies does not
keep out the others.

A client's connection is a descriptor. The ports share the process's descriptors, except those reserved for the server's
own files: deltas, mapped memory, logs, the channels between processes.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from freshet_serving.processor.errors import Overloaded

SPARE_NBYTES = 64 << 20
MAX_DESCRIPTORS = 1 << 20
MAX_ADMIN_CONNECTIONS = 128
# Descriptors reserved for files: the larger of MIN_FILES and one in FILES_SHARE.
MIN_FILES, FILES_SHARE = 128, 4


class BodyMemoryFull(Overloaded):
    http_status = 503
    grpc_code = "UNAVAILABLE"


class BodyMemory:
    """Bytes held by the bodies of one event loop, from their first byte to their answer."""

    __slots__ = ("_max_nbytes", "nbytes")

    def __init__(self, max_nbytes: int) -> None:
        self.nbytes, self._max_nbytes = 0, max_nbytes

    def check(self, spare_nbytes: int = 0) -> None:
        """Raise BodyMemoryFull if more than the limit and `spare_nbytes` are held."""
        if self.nbytes > self._max_nbytes + spare_nbytes:
            raise BodyMemoryFull("body: the server's memory for request bodies is full; try again later")


class ConnectionLimits(NamedTuple):
    http: int
    rpc: int
    admin: int

    @classmethod
    def of(cls, descriptors: int) -> ConnectionLimits:
        free = max(descriptors - max(MIN_FILES, descriptors // FILES_SHARE), descriptors // FILES_SHARE)
        return cls(free * 5 // 8, free // 4, min(free // 8, MAX_ADMIN_CONNECTIONS))

    @classmethod
    def here(cls) -> ConnectionLimits:
        """Return the limits of this process, which may raise its descriptor limit to the hard limit."""
        return cls.of(descriptor_limit())


def descriptor_limit() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MAX_DESCRIPTORS)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as permitted: each connection and each mapped buffer is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
