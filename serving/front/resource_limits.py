"""What clients may hold of a process: bytes of bodies, and descriptors.

Bodies: those that come in pieces are refused (503) once all together hold so many bytes; none waits for another to be
done, so half of them cannot wait for the other half, and each has its own deadline. A body that came with its head in
one read is small; it may go SPARE_NBYTES beyond, so that who fills the room with halves does not keep out the rest.

Descriptors: a client's connection is one. The ports share those that the process may have and that are not kept for the
server's own files: deltas, mapped memory, logs, the channels between processes.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from freshet_serving.processor.errors import Overloaded

SPARE_NBYTES = 64 << 20
MAX_DESCRIPTORS = 1 << 20
MAX_ADMIN_CONNECTIONS = 128
# For files: the larger of so many and the share of them all.
MIN_FILES, FILES_SHARE = 128, 4


class BodyMemoryFull(Overloaded):
    """No room for another body."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class BodyMemory:
    """The bytes that bodies hold which came on one event loop, from their first byte to their answer."""

    __slots__ = ("_max_nbytes", "nbytes")

    def __init__(self, max_nbytes: int) -> None:
        self.nbytes, self._max_nbytes = 0, max_nbytes

    def check(self, spare_nbytes: int = 0) -> None:
        """Raises Full once more is held than may be."""
        if self.nbytes > self._max_nbytes + spare_nbytes:
            raise BodyMemoryFull("body: the server has as many bytes of requests in memory as it may; try again later")


class ConnectionLimits(NamedTuple):
    """How many connections each kind of port of a process takes."""

    http: int
    rpc: int
    admin: int

    @classmethod
    def of(cls, descriptors: int) -> ConnectionLimits:
        """descriptors: that the process may have."""
        free = max(descriptors - max(MIN_FILES, descriptors // FILES_SHARE), descriptors // FILES_SHARE)
        return cls(free * 5 // 8, free // 4, min(free // 8, MAX_ADMIN_CONNECTIONS))

    @classmethod
    def here(cls) -> ConnectionLimits:
        """Of this process, which may raise its limit as far as it goes."""
        return cls.of(descriptor_limit())


def descriptor_limit() -> int:
    """How many descriptors this process can be allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MAX_DESCRIPTORS)
