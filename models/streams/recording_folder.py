"""Read the recordings of one model as a stream: the files of its servers' recorders, ordered by their first rows.

Servers and workers record side by side, each into its own files. Files found together are ordered by time, so rows of
one moment are close to each other. Files of other models count as empty. A recorder deletes its oldest files: gaps in
the file numbers show those gone before they were read; those gone before their rows' window ended are counted by row.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.data.broadcast_columns import row_nbytes
from freshet_serving.models.data.decoding import DECODERS
from freshet_serving.models.data.source import Schema
from freshet_serving.models.streams.growing_folder import GrowingFolder
from freshet_serving.models.streams.joined_folder import ROWS_NBYTES
from freshet_serving.models.streams.stream import ErrorContext, Segment, check_places
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.stream_rows import RejectedRows, Rows
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import open_regular
from freshet_serving.processor.repository import METADATA, OUTPUT

RECORDINGS = ErrorContext("--recordings", "a join into another --out starts")

_NAME = re.compile(r".*-(?P<recorder>[^-]+)-(?P<at_ms>\d+)-(?P<number>\d+)\.parquet")


@dataclass(slots=True)
class _Numbers:
    """Numbers of a recorder's files: the newest, and how many before it are missing."""

    newest: int
    missing: int = 0


class RecordingFolder(GrowingFolder):
    def __init__(self, folder: str, model: str, schema: Schema) -> None:
        """Open a folder; `model` is "" for the only one in it."""
        super().__init__(folder, schema, context=RECORDINGS)
        self.model = model
        self._recorders: dict[str, _Numbers] = {}
        self.lost_rows = 0

    @property
    def identity(self) -> str:
        return "recordings"

    @property
    def lost_files(self) -> int:
        """Number of files that were deleted before they were read, of known recorders."""
        return sum(max(0, numbers.missing) for numbers in tuple(self._recorders.values()))

    def begin(self, known: Sequence[Segment]) -> None:
        super().begin(known)
        check_places(known, model=str)
        for segment in known:
            self._number(segment.where["file"])
            if segment.rows:
                self.model = self.model or segment.where["model"]
                if self.model != segment.where["model"]:
                    raise BadInput(f"--model: expected {segment.where['model']}, as --out was started with")

    def poll(self, wait_s: float) -> list[Segment]:
        found = sorted(((*self._begins(s), s) for s in super().poll(wait_s)), key=lambda part: part[0])
        if not self.model:
            models = sorted({model for _, model, segment in found if segment.rows and model})
            if len(models) > 1:
                raise BadInput(f"--model: expected one of the folder's: {', '.join(models)}")
            self.model = "".join(models)
        segments = []
        for _, model, segment in found:
            name = segment.where["file"]
            self._number(name)
            if segment.rows and self.model and not model:
                self.set_aside(name, f"{name}: expected a recording, which names its model, got another table")
            rows = segment.rows if model == self.model else 0
            segments.append(Segment({**segment.where, "model": model}, rows))
        return segments

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        if not segment.rows:
            return
        if not (self._folder / segment.where["file"]).is_file():
            self.lost_rows += segment.rows
            return
        yield from super().read(segment)

    def recorded(self, journal: StreamJournal, numbers: Sequence[int]) -> tuple[int, pa.Table | None]:
        """Read the first of these rows, ascending, as long as they have the same columns and about ROWS_NBYTES.

        Return their number, and the rows in the form of models.data.broadcast_columns.take_once; None if they are gone
        or cannot be decoded. Files that cannot be decoded are set aside.
        """
        count, left_nbytes = 0, ROWS_NBYTES
        tables: list[pa.Table] = []
        for first, segment in journal.since(numbers[0]):
            in_file = [number - first for number in numbers[count:] if number < first + segment.rows]
            if not in_file:
                break
            rows = self._rows(segment.where["file"], in_file, left_nbytes)
            if rows is None:
                if not tables:
                    return len(in_file), None
                break
            if tables and not rows.schema.equals(tables[0].schema, check_metadata=True):
                break
            tables.append(rows)
            count += len(rows)
            left_nbytes -= rows.nbytes
            if count == len(numbers) or len(rows) < len(in_file) or left_nbytes <= 0:
                break
        return count, pa.concat_tables(tables).combine_chunks()

    def _rows(self, name: str, rows: Sequence[int], max_nbytes: int) -> pa.Table | None:
        """Read the first of these rows of a file, up to about max_nbytes; None if they cannot be read."""
        path = self._folder / name
        if not path.is_file():
            return None
        try:
            batches: list[pa.RecordBatch] = []
            with contextlib.closing(DECODERS.rows(path, rows)) as decoded:
                for batch in decoded:
                    ends = np.cumsum(sum(map(row_nbytes, batch.columns)))
                    fitting = max(0 if batches else 1, int(np.searchsorted(ends, max_nbytes, side="right")))
                    batches.append(batch.slice(0, fitting))
                    max_nbytes -= int(ends[-1])
                    if fitting < batch.num_rows or max_nbytes <= 0:
                        break
            return pa.Table.from_batches(batches)
        except (BadInput, pa.ArrowException) as error:
            if path.is_file():
                self.set_aside(name, str(error))
            return None

    def _begins(self, segment: Segment) -> tuple[tuple[int, str], str]:
        name = segment.where["file"]
        match = _NAME.fullmatch(name)
        return (int(match["at_ms"]) if match else 0, name), str(_about(self._folder / name).get("model", ""))

    def _number(self, name: str) -> None:
        match = _NAME.fullmatch(name)
        if match is None:
            return
        key, number = f"{PurePosixPath(name).parent}/{match['recorder']}", int(match["number"])
        numbers = self._recorders.get(key)
        if numbers is None or number == 1:
            # First file seen of a recorder, or of one that restarted its numbering.
            self._recorders[key] = _Numbers(number, numbers.missing if numbers else 0)
        elif number > numbers.newest:
            numbers.missing += number - numbers.newest - 1
            numbers.newest = number
        else:
            numbers.missing -= 1


def score_column(table: pa.Table, score: str) -> str:
    """Return the column with the scores of an output, "" for the first with a number a row. Raises BadInput."""
    scalar: list[str] = [name for name in table.column_names if name.startswith(OUTPUT)]
    scalar = [name for name in scalar if pa.types.is_floating(table.schema.field(name).type)]
    if score and OUTPUT + score in scalar:
        return OUTPUT + score
    if score or not scalar:
        names = ", ".join(name.removeprefix(OUTPUT) for name in scalar) or "none"
        raise BadInput(f"--score: expected an output with one number a row, got {score!r}; recorded: {names}")
    return scalar[0]


def first_recording(folder: str) -> pa.Schema:
    """Return the columns of any recording; raise BadInput if there is none."""
    for path in sorted(Path(folder).rglob("*.parquet")):
        if not path.name.startswith((".", "_")) and _about(path):
            with open_regular(path) as file:
                return pq.read_schema(file)
    raise BadInput("--recordings: the folder has no recordings, which determine the type of --key")


def _about(path: Path) -> dict[str, Any]:
    """Return the metadata of a recording; {} for any other file."""
    try:
        with open_regular(path) as file:
            about = json.loads((pq.read_schema(file).metadata or {}).get(METADATA, b"{}"))
    except (OSError, ValueError, pa.ArrowException, Corrupt):
        return {}
    return about if isinstance(about, dict) else {}
