"""Read data files from an object store: found by file, folder or glob as on a disk, and read by ranges.

Invariants
- The same files in the same order as a local folder with the same names, so that rows, positions and checkpoints agree.
- A file does not change after it was found: ranges are requested with its etag, and a replaced file raises BadInput.
- Memory is bounded: a requested range and, for a file read from its beginning, the next BLOCK_NBYTES, which are fetched
  while the current ones are parsed.

Cost: a request for each thousand names of the folder above the first pattern, each range that Parquet needs
(STREAM_NBYTES of a column), and each BLOCK_NBYTES of text.
"""

from __future__ import annotations

import glob
import io
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from freshet_serving.models.data.file_order import in_order_of_numbers
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import SCHEMES, storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_NBYTES = 4 << 20
WHAT = "data.path"


class StoredFile:
    """An object with the part of a path's interface that readers need: a name, and open()."""

    def __init__(self, store: Any, key: str, nbytes: int, etag: str) -> None:
        self._store, self._key, self._etag, self.nbytes = store, key, etag, nbytes
        self.name = key.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self._store.address}/{self._key}"

    def read_range(self, start: int, nbytes: int) -> bytes:
        """Return bytes of the file, fewer than requested at its end."""
        nbytes = min(nbytes, self.nbytes - start)
        return self._store.read_range(self._key, start, nbytes, self._etag) if nbytes > 0 else b""

    def open(self, ahead: bool) -> BinaryIO:
        """Open the file, to be read from its beginning on if `ahead`, else by ranges."""
        return io.BufferedReader(ReadAheadFile(self), 1 << 16) if ahead else RangeFile(self)  # type: ignore[return-value]


DataPath = Path | StoredFile


def open_bytes(path: DataPath, ahead: bool = True) -> BinaryIO:
    """Open a data file on disk or in a store; see StoredFile.open for `ahead`."""
    return path.open(ahead) if isinstance(path, StoredFile) else open(path, "rb")


class RangeFile(io.RawIOBase):
    def __init__(self, file: StoredFile) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.nbytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._take(view.nbytes) if self._at < self._file.nbytes else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _take(self, nbytes: int) -> bytes | memoryview:
        return self._file.read_range(self._at, nbytes)


class ReadAheadFile(RangeFile):
    """A stored file read from its beginning on, prefetching one block."""

    def __init__(self, file: StoredFile) -> None:
        super().__init__(file)
        self._pool = ThreadPoolExecutor(1, "freshet-data-ahead")
        self._block, self._first = memoryview(b""), 0
        self._next: Future[bytes] | None = None

    def _take(self, nbytes: int) -> bytes | memoryview:
        offset = self._at - self._first
        if not 0 <= offset < len(self._block):
            after = self._first + len(self._block)
            ready, self._next = self._next, None
            data = ready.result() if ready is not None and self._at == after else self._read(self._at)
            self._block, self._first, offset = memoryview(data), self._at, 0
            if (begin := self._at + len(data)) < self._file.nbytes:
                self._next = self._pool.submit(self._read, begin)
        return self._block[offset : offset + nbytes]

    def _read(self, start: int) -> bytes:
        return self._file.read_range(start, BLOCK_NBYTES)

    def close(self) -> None:
        if not self.closed:
            self._pool.shutdown(cancel_futures=True)
        super().close()


def is_object_url(path: str) -> bool:
    return path.partition("://")[0] in SCHEMES and "://" in path


def stored_files(path: str, suffixes: Sequence[str] = ()) -> list[StoredFile]:
    """Find data files in an object store as models.data.files.find_files does on a disk. Raises BadInput, NotReady."""
    scheme, _, rest = path.partition("://")
    parts = rest.rstrip("/").split("/")
    plain = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    above = parts[: max(1, min(plain, len(parts) - 1))]
    address = f"{scheme}://{'/'.join(above)}"
    store = storage_of(address, WHAT).objects(address, WHAT)
    below = "/".join(parts[len(above) :])
    if below and plain == len(parts) and (head := store.head(below)) is not None:
        return [StoredFile(store, below, head.nbytes, head.etag)]
    magic = plain < len(parts)
    pattern = glob_pattern(below) if magic else None
    files = []
    for entry in store.entries("" if magic else below):
        inside = entry.key if magic or not below else entry.key.removeprefix(f"{below}/")
        if pattern is None:
            hidden = any(part.startswith((".", "_")) for part in inside.split("/"))
            fits = not hidden and (not suffixes or inside.lower().endswith(tuple(suffixes)))
        else:
            fits = pattern.fullmatch(inside) is not None
        if fits:
            files.append(StoredFile(store, entry.key, entry.nbytes, entry.etag))
    if not files:
        kinds = " or ".join(suffixes) if suffixes else "data"
        raise BadInput(f"data.path: expected at least one {kinds} file, got none in {path!r}")
    return sorted(files, key=in_order_of_numbers)


def glob_pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression over keys that matches as glob.glob(recursive=True) does.

    "**" matches any number of folders, and a leading dot is matched only by a dot.
    """
    expression = ""
    parts = text.split("/")
    for n, part in enumerate(parts):
        last = n == len(parts) - 1
        if part == "**":
            expression += r"(?:[^./][^/]*/)*" + (r"[^./][^/]*" if last else "")
            continue
        hidden = "" if part.startswith(".") else r"(?!\.)"
        expression += hidden + _segment(part) + ("" if last else "/")
    return re.compile(expression, re.S)


def _segment(part: str) -> str:
    """Return the pattern of a name with '*', '?' and '[...]'."""
    expression, at = "", 0
    while at < len(part):
        letter = part[at]
        end = part.find("]", at + 2) if letter == "[" else -1
        if letter == "*":
            expression += "[^/]*"
        elif letter == "?":
            expression += "[^/]"
        elif end > 0:
            inside = part[at + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            expression += "[" + ("^" + inside[1:] if inside[0] == "!" else inside) + "]"
            at = end
        else:
            expression += re.escape(letter)
        at += 1
    return expression
