"""Regions of system shared memory that clients have registered: tensors without a copy through a socket.

Off unless turned on. A region's key is the name of a POSIX shared memory object, one word without dots; nothing else of
the file system can be named. Its pages are read and written by pread and pwrite, never mapped: a client that shortens
its object after it was registered makes a read come short, which is an error of the request; a mapping would end the
process by SIGBUS. Unregistering closes the descriptor; a request that is being decoded has copied what it needs.

Invariant: a descriptor is used under the lock under which it would be closed, for requests are read on other threads
too, and its number may be another file's after that.

Bounded: MAX_REGIONS regions; what a request may read is its own region's registered bytes, of each tensor as many as
of a body.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from typing import Any, NamedTuple

from freshet_serving.processor.errors import BadInput, NotFound, TooLarge
from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.serving.codecs.kserve_header import RegionSpan
from freshet_serving.serving.codecs.wire import show

FOLDER = "/dev/shm/"
KEY = re.compile(r"/?[A-Za-z0-9_-]{1,128}")
MAX_NAME_LENGTH = 256
MAX_REGIONS = 1024


class Region(NamedTuple):
    """A registered piece of a shared memory object: nbytes from offset on, by an open descriptor."""

    key: str
    offset: int
    nbytes: int
    fd: int
    writable: bool


class Regions:
    """The regions that clients have registered, by name. Registered from one event loop, read from its threads too."""

    def __init__(self, max_read_nbytes: int = DEFAULTS.max_body_bytes) -> None:
        self._regions: dict[str, Region] = {}
        self._max_read_nbytes = max_read_nbytes
        self._open = threading.Lock()

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Raises BadInput, NotFound, TooLarge. The same name twice is refused, as Triton does it."""
        if not name or len(name) > MAX_NAME_LENGTH:
            raise BadInput(f"name: 1 to {MAX_NAME_LENGTH} characters wanted, got {len(name)}")
        if name in self._regions:
            raise BadInput(f"shared memory region {show(name)} is already registered")
        if len(self._regions) >= MAX_REGIONS:
            raise TooLarge(f"shared memory: at most {MAX_REGIONS} regions wanted")
        if KEY.fullmatch(key) is None:
            raise BadInput(f"key: letters, digits, '_' and '-' wanted, got {show(key)}")
        if offset < 0 or nbytes <= 0 or offset + nbytes >= 2**63:
            raise BadInput(f"byte_size: above 0 wanted, from an offset of 0 or more, got {nbytes} from {offset}")
        fd, writable = _open(key)
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            os.close(fd)
            raise NotFound(f"key: no shared memory object {show(key)}")
        if about.st_size < offset + nbytes:
            os.close(fd)
            raise BadInput(f"byte_size: at most the {about.st_size} bytes of the object wanted, got {offset + nbytes}")
        self._regions[name] = Region(key, offset, nbytes, fd, writable)

    def unregister(self, name: str = "") -> None:
        """Unregisters one region, or with no name all of them; one that is not there is no error."""
        with self._open:
            for known in [name] if name else list(self._regions):
                region = self._regions.pop(known, None)
                if region is not None:
                    os.close(region.fd)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """The status of one region, or with no name of all of them; raises NotFound."""
        if name and name not in self._regions:
            raise NotFound(f"shared memory region {show(name)} is not registered")
        return [
            {"name": known, "key": region.key, "offset": region.offset, "byte_size": region.nbytes}
            for known, region in self._regions.items()
            if not name or known == name
        ]

    def read(self, span: RegionSpan) -> bytes:
        """Raises BadInput, TooLarge."""
        if span.nbytes > self._max_read_nbytes:
            wanted = f"at most {self._max_read_nbytes} wanted (max_body_bytes)"
            raise TooLarge(f"shared_memory_byte_size: {wanted}, got {span.nbytes}")
        with self._open:
            region = self._inside(span)
            data = os.pread(region.fd, span.nbytes, region.offset + span.offset)
        if len(data) != span.nbytes:
            raise BadInput(
                f"shared memory region {show(span.region)}: {span.nbytes} bytes wanted, {len(data)} are left"
            )
        return data

    def write(self, span: RegionSpan, data: bytes) -> None:
        """data: no longer than the span. Raises BadInput."""
        with self._open:
            region = self._inside(span)
            if not region.writable or os.fstat(region.fd).st_size < region.offset + region.nbytes:
                raise BadInput(f"shared memory region {show(span.region)}: it cannot be written")
            os.pwrite(region.fd, data, region.offset + span.offset)

    def _inside(self, span: RegionSpan) -> Region:
        region = self._regions.get(span.region)
        if region is None:
            raise BadInput(f"shared memory region {show(span.region)} is not registered")
        if span.offset + span.nbytes > region.nbytes:
            wanted = f"at most the region's {region.nbytes} bytes"
            raise BadInput(
                f"shared memory region {show(span.region)}: {wanted} wanted, got {span.offset + span.nbytes}"
            )
        return region


def _open(key: str) -> tuple[int, bool]:
    """A descriptor, and whether it can be written; raises NotFound."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(FOLDER + key.lstrip("/"), mode | flags), mode == os.O_RDWR
        except OSError:
            continue
    raise NotFound(f"key: no shared memory object {show(key)}")
