"""Decide if rows with one request id are one request sent again, or several requests that share the id.

Clients choose ids. A client without a reply sends the same request again, with the same id and inputs; then one of the
rows counts. Any other client that knows or guesses an id sends other inputs with it, and the outcome cannot be
attributed. So rows are compared by their inputs, bit by bit; outputs may differ, since another generation may have
answered. Only rows whose id occurs more than once are read, at most MOST_ALIKE of one id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from freshet_serving.models.data.broadcast_columns import shared_rows
from freshet_serving.models.streams.emitted_rows import RowLocation
from freshet_serving.models.streams.matching import PendingRow

MOST_ALIKE, READ_AT_ONCE = 16, 1024
RECORDERS_OWN = "freshet."

Recorded = Callable[[Sequence[int]], tuple[int, pa.Table | None]]
"""Reads the first rows of these numbers; returns their count, and the rows or None (RecordingFolder.recorded)."""
Emitted = Callable[[int, Sequence[int]], pa.Table | None]
"""Reads rows of a file of the joined folder; None if the file is gone (JoinedFolder.recorded)."""


def repeat_one_request(rows: Sequence[PendingRow], recorded: Recorded, emitted: Emitted) -> list[bool]:
    """Return for each contested row if all rows of its id have the same inputs as its own request.

    False also if one of its rows, waiting or emitted, can no longer be read, or there are too many.
    """
    # Too many rows of one id, and a row whose emitted predecessor was disowned, need no reading: they do not repeat.
    comparable = [
        row
        for row in rows
        if len(row.later or ()) < MOST_ALIKE and not (row.before is not None and row.before.disowned)
    ]
    waiting_digests = _waiting_digests(
        {pending.number for row in comparable for pending in (row, *(row.later or ()))}, recorded
    )
    emitted_digests = _emitted_digests({row.before for row in comparable if row.before is not None}, emitted)
    repeated_numbers = set()
    for row in comparable:
        # A row repeats if all that others of its id sent is what its own request sent. None: a row that is gone.
        request_inputs = {waiting_digests.get(pending.number) for pending in row.of_one_request}
        other_inputs = {waiting_digests.get(pending.number) for pending in row.of_others}
        other_inputs |= {emitted_digests.get(row.before)} if row.before is not None else set()
        if None not in request_inputs and other_inputs <= request_inputs:
            repeated_numbers.add(row.number)
    return [row.number in repeated_numbers for row in rows]


def _waiting_digests(numbers: Iterable[int], recorded: Recorded) -> dict[int, bytes]:
    """Return the digests of the inputs of waiting rows, by number; rows that are gone are left out."""
    digests: dict[int, bytes] = {}
    unread = sorted(numbers)
    while unread:
        count, table = recorded(unread[:READ_AT_ONCE])
        if not count:
            break
        if table is not None:
            digests |= zip(unread[:count], _digests(table))
        unread = unread[count:]
    return digests


def _emitted_digests(places: Iterable[RowLocation], emitted: Emitted) -> dict[RowLocation, bytes]:
    """Return the digests of the inputs of emitted rows, by location; those of files that are gone are left out."""
    by_file: dict[int, list[RowLocation]] = {}
    for place in places:
        by_file.setdefault(place.file, []).append(place)
    digests: dict[RowLocation, bytes] = {}
    for file, places_of_file in by_file.items():
        table = emitted(file, [place.row for place in places_of_file])
        if table is not None:
            digests |= zip(places_of_file, _digests(table))
    return digests


def _digests(table: pa.Table) -> list[bytes]:
    """Return a digest of each row's inputs: NaN equals NaN, and floats are compared to the last bit."""
    # A list that all rows of a request share is read once.
    inputs = sorted(name for name in table.column_names if not name.startswith(RECORDERS_OWN))
    columns = [[_digest(repr(value).encode()) for value in table[name].to_pylist()] for name in inputs]
    sources = [shared_rows(table, name).tolist() for name in inputs]
    return [
        _digest(b"".join(column[source[row]] for column, source in zip(columns, sources))) for row in range(len(table))
    ]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
