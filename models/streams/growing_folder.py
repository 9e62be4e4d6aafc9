"""Read a folder that receives Parquet files while it is read.

Each file is a segment, taken once it is complete: a Parquet file's footer is written last, so a file without one is
checked again when it has changed. Files found together are ordered by name, part-2 before part-10. Hidden files, names
that start with '_' and files without a Parquet suffix are skipped, as in any folder.

A file that was taken must not change. It may be deleted once its rows are trained on; a checkpoint that needs them
again raises an error. Each check of the folder costs a listing, which takes at most a twentieth of the time.

A bad file never blocks those behind it. A file that is not regular (opening a pipe would block forever), cannot be
opened, does not begin like a Parquet file, has a damaged footer or, if other files were taken already, lacks a column,
is set aside: it is reported once, counted, and checked again when it changes. A truncated file may hold rows that
matter: it is the stream's trouble until it is removed. Rows are decoded in a separate process with a memory limit
(models.data.decoding). Damage found then rejects the rows from there to the end of the piece. If the first file of a
stream lacks a column, the configuration is wrong and the run ends.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from freshet_serving.models.data.canonical import CanonicalColumns
from freshet_serving.models.data.decoding import DECODERS
from freshet_serving.models.data.file_order import in_order_of_numbers
from freshet_serving.models.data.files import ParquetFile
from freshet_serving.models.data.formats import PARQUET_SUFFIXES
from freshet_serving.models.data.source import Schema
from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Segment, StreamBacklog, check_places
from freshet_serving.models.streams.stream_rows import RejectedRows, Rows, TableRows
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import open_regular

MAGIC = b"PAR1"
LOOK_S, LOOK_SHARE = 0.1, 20
UNFINISHED_S = 60.0


class GrowingFolder:
    """The Parquet files of a folder, in order of arrival."""

    def __init__(
        self,
        folder: str,
        schema: Schema,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        context: ErrorContext = TRAINING,
        strict: bool = True,
    ) -> None:
        """Set up the reader.

        With `strict`, a folder in which no file has these columns is an error; else they are set aside, as such files
        beside others are.
        """
        self._folder, self._context, self._strict = Path(folder), context, strict
        self._columns = CanonicalColumns(schema, text=False)
        self._now_s, self._sleep = now_s, sleep
        self._taken: dict[str, int] = {}
        # Incomplete files: size and mtime at the last check, and since when.
        self._unfinished: dict[str, tuple[tuple[int, int], float]] = {}
        # Files set aside: their size and mtime then. Below: their total number, and the reason of the last one.
        self._aside: dict[str, tuple[int, int]] = {}
        self._aside_files, self._why_aside = 0, ""
        self._next_s, self._looks = 0.0, 0
        self._changed = ""

    @property
    def identity(self) -> str:
        return "a folder of Parquet files"

    def begin(self, known: Sequence[Segment]) -> None:
        if not self._folder.is_dir():
            raise BadInput(f"{self._context.field}: expected an existing folder, got {str(self._folder)!r}")
        check_places(known, file=str, nbytes=int)
        if any(not _inside(segment.where["file"]) for segment in known):
            raise Corrupt("stream's journal: expected files inside the folder")
        self._taken = {segment.where["file"]: segment.where["nbytes"] for segment in known}

    def poll(self, wait_s: float) -> list[Segment]:
        until_s = self._now_s() + wait_s
        while True:
            if self._now_s() >= self._next_s:
                began_s = self._now_s()
                segments = self._look(began_s)
                self._looks += 1
                self._next_s = self._now_s() + max(LOOK_S, LOOK_SHARE * (self._now_s() - began_s))
                if segments:
                    return segments
            left_s = until_s - self._now_s()
            if left_s <= 0:
                return []
            self._sleep(min(left_s, max(0.001, self._next_s - self._now_s())))

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        name = segment.where["file"]
        path = self._folder / name
        if not path.is_file() or path.stat().st_size != segment.where["nbytes"]:
            raise BadInput(f"{name}: the file was changed or deleted after it was first read")
        file = ParquetFile(path)
        types = self._types(file)
        pieces = list(file.pieces(types, 0))
        for number, (piece, end) in enumerate(zip(pieces, [*(p.first for p in pieces[1:]), segment.rows])):
            row = piece.first
            try:
                for batch in DECODERS.piece(path, list(types), number):
                    yield TableRows(batch, self._columns, name, row)
                    row += batch.num_rows
            except BadInput as error:
                # A damaged page, or one too large: the same rows every time, since the file does not change.
                yield RejectedRows(end - row, str(error), damage=True)

    def can_forget(self, segment: Segment) -> bool:
        if (self._folder / segment.where["file"]).exists():
            return False
        self._taken.pop(segment.where["file"], None)
        return True

    def backlog(self) -> StreamBacklog:
        now_s = self._now_s()
        late = [name for name, (_, since_s) in self._unfinished.items() if now_s - since_s >= UNFINISHED_S]
        unfinished = f"{late[0]}: an incomplete Parquet file that does not grow" if late else ""
        trouble = unfinished or self._changed
        return StreamBacklog(trouble=trouble, aside=self._aside_files, why_aside=self._why_aside, looks=self._looks)

    def close(self) -> None: ...

    def _look(self, now_s: float) -> list[Segment]:
        segments, unfinished = [], {}
        refused: BadInput | None = None
        for path, name in sorted(self._files(), key=lambda file: in_order_of_numbers(file[1])):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                self._set_aside(name, (0, 0), f"{name}: cannot be opened: {error.strerror}")
                continue
            if stat.S_ISDIR(status.st_mode):
                # Partitioned writers name folders so; the files inside are listed separately.
                continue
            seen = status.st_size, status.st_mtime_ns
            if name in self._taken:
                if self._taken[name] != seen[0]:
                    self._changed = f"{name}: changed after it was read: write new rows to new files"
                continue
            if self._aside.get(name) == seen:
                continue
            if self._unfinished.get(name, ((), 0.0))[0] == seen:
                unfinished[name] = self._unfinished[name]
                continue
            try:
                if not _is_whole(path):
                    unfinished[name] = seen, now_s
                    continue
                file = ParquetFile(path)
            except (BadInput, Corrupt) as error:
                self._set_aside(name, seen, str(error))
                continue
            try:
                self._types(file)
            except BadInput as error:
                refused = refused or error
                self._set_aside(name, seen, f"{name}: {error}")
                continue
            self._aside.pop(name, None)
            self._taken[name] = seen[0]
            segments.append(Segment({"file": name, "nbytes": seen[0]}, file.count_rows()))
        self._unfinished = unfinished
        if refused is not None and self._strict and not self._taken:
            # Not one file fits: the configuration is wrong rather than a file.
            raise refused
        return segments

    def set_aside(self, name: str, why: str) -> None:
        """Set aside a file that was taken already, for this reason."""
        self._set_aside(name, (0, self._taken.get(name, 0)), why)

    def _set_aside(self, name: str, seen: tuple[int, int], why: str) -> None:
        if self._aside.get(name) != seen:
            self._aside[name] = seen
            self._aside_files, self._why_aside = self._aside_files + 1, why

    def _files(self) -> Iterator[tuple[Path, str]]:
        for path in self._folder.rglob("*"):
            inner = path.relative_to(self._folder)
            plain = not any(part.startswith((".", "_")) for part in inner.parts)
            if plain and inner.name.lower().endswith(PARQUET_SUFFIXES):
                yield path, inner.as_posix()

    def _types(self, file: ParquetFile) -> dict[str, pa.DataType]:
        return self._columns.check(file.types([name for name, _ in self._columns.wanted]))


def _inside(name: str) -> bool:
    """Return whether a name is one of a file below the folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and "\0" not in name and not name.startswith("/") and ".." not in parts


def _is_whole(path: Path) -> bool:
    """Return whether a file ends like a Parquet file, with a footer length that fits.

    Raises Corrupt if it is not a regular file, or does not begin like a Parquet file.
    """
    try:
        with open_regular(path) as file:
            begins = file.read(4)
            if not MAGIC.startswith(begins):
                raise Corrupt(f"{path.name}: expected a Parquet file, got {begins!r} at its beginning")
            nbytes = file.seek(0, 2)
            if nbytes < 12:
                return False
            file.seek(-8, 2)
            tail = file.read(8)
    except OSError:
        return False
    return tail[4:] == MAGIC and int.from_bytes(tail[:4], "little") <= nbytes - 12
