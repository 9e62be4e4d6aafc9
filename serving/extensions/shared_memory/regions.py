"""Access regions of system shared memory that clients have registered: tensors without a copy through a socket.

A region's key is the name of a POSIX shared memory object, one word without dots, so a client can name nothing else in
the file system. Pages are read and written by pread and pwrite, never mapped: if a client shortens its object, a read
comes short, which is an error of the request; a mapping would end the process by SIGBUS.

Invariant: a descriptor is used under the same lock under which it is closed, because requests are also read on other
threads, and its number may belong to another file after that.

Bounds: MAX_REGIONS regions; a request may read only the registered bytes of its region, and for each tensor at most as
many as a body may have.
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
    """A registered part of a shared memory object: nbytes from offset on, by an open descriptor."""

    key: str
    offset: int
    nbytes: int
    fd: int
    writable: bool


class SystemRegions:
    """The implementation of Regions, which documents its methods."""

    def __init__(self, max_read_nbytes: int = DEFAULTS.max_body_bytes) -> None:
        self._regions: dict[str, Region] = {}
        self._max_read_nbytes = max_read_nbytes
        self._open = threading.Lock()

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """As in Triton, a name in use is refused."""
        if not name or len(name) > MAX_NAME_LENGTH:
            raise BadInput(f"name: expected 1 to {MAX_NAME_LENGTH} characters, got {len(name)}")
        if name in self._regions:
            raise BadInput(f"shared memory region {show(name)} is already registered")
        if len(self._regions) >= MAX_REGIONS:
            raise TooLarge(f"shared memory: expected at most {MAX_REGIONS} regions")
        if KEY.fullmatch(key) is None:
            raise BadInput(f"key: expected letters, digits, '_' and '-', got {show(key)}")
        if offset < 0 or nbytes <= 0 or offset + nbytes >= 2**63:
            raise BadInput(f"byte_size: expected above 0, from an offset of 0 or more, got {nbytes} from {offset}")
        fd, writable = _open(key)
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            os.close(fd)
            raise NotFound(f"key: shared memory object {show(key)} does not exist")
        if about.st_size < offset + nbytes:
            os.close(fd)
            raise BadInput(f"byte_size: expected at most the object's {about.st_size} bytes, got {offset + nbytes}")
        self._regions[name] = Region(key, offset, nbytes, fd, writable)

    def unregister(self, name: str = "") -> None:
        with self._open:
            for each in [name] if name else list(self._regions):
                region = self._regions.pop(each, None)
                if region is not None:
                    os.close(region.fd)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        if name and name not in self._regions:
            raise NotFound(f"shared memory region {show(name)} is not registered")
        return [
            {"name": each, "key": region.key, "offset": region.offset, "byte_size": region.nbytes}
            for each, region in self._regions.items()
            if not name or each == name
        ]

    def read(self, span: RegionSpan) -> bytes:
        if span.nbytes > self._max_read_nbytes:
            expected = f"expected at most {self._max_read_nbytes} (max_body_bytes)"
            raise TooLarge(f"shared_memory_byte_size: {expected}, got {span.nbytes}")
        with self._open:
            region = self._inside(span)
            data = os.pread(region.fd, span.nbytes, region.offset + span.offset)
        if len(data) != span.nbytes:
            raise BadInput(f"shared memory region {show(span.region)}: expected {span.nbytes} bytes, got {len(data)}")
        return data

    def write(self, span: RegionSpan, data: bytes) -> None:
        with self._open:
            region = self._inside(span)
            if not region.writable or os.fstat(region.fd).st_size < region.offset + region.nbytes:
                raise BadInput(f"shared memory region {show(span.region)}: cannot be written")
            os.pwrite(region.fd, data, region.offset + span.offset)

    def _inside(self, span: RegionSpan) -> Region:
        region = self._regions.get(span.region)
        if region is None:
            raise BadInput(f"shared memory region {show(span.region)} is not registered")
        if span.offset + span.nbytes > region.nbytes:
            expected = f"expected at most the region's {region.nbytes} bytes"
            raise BadInput(f"shared memory region {show(span.region)}: {expected}, got {span.offset + span.nbytes}")
        return region


def _open(key: str) -> tuple[int, bool]:
    """Return a descriptor and whether it is writable; raise NotFound if there is no such object."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(FOLDER + key.lstrip("/"), mode | flags), mode == os.O_RDWR
        except OSError:
            continue
    raise NotFound(f"key: shared memory object {show(key)} does not exist")
