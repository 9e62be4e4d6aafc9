"""Whether rows of one request id are one request, sent again, or several requests that use one id.

Ids are the clients'. A client that had no answer sends the same request again, with the id and the inputs that it had:
then one of the rows counts. Anybody else who knows or guesses an id sends other inputs with it, and of those nobody can
tell whose the outcome is. So rows are compared by their inputs, to the bit; what the model made of them may differ, as
another generation may have answered. Only rows whose id is there more than once are read for it, MOST_ALIKE at most of
one id: no client repeats a request more often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from freshet_serving.models.joining.emitted_rows import RowLocation
from freshet_serving.models.joining.matching import PendingRow

MOST_ALIKE, READ_AT_ONCE = 16, 1024
RECORDERS_OWN = "freshet."

Recorded = Callable[[Sequence[int]], tuple[int, pa.Table | None]]
"""The first rows of these numbers, and how many they are; None where they are gone (RecordingFolder.recorded)."""
Emitted = Callable[[int, Sequence[int]], pa.Table | None]
"""Rows of a file of the joined folder, None where it is gone (JoinedFolder.recorded)."""


def repeat_one_request(rows: Sequence[PendingRow], recorded: Recorded, emitted: Emitted) -> list[bool]:
    """Tell of each row whether all others of its id say the same as its own request does.

    Args:
        rows: that are contested (Matcher.contested).
        recorded: reads rows that wait.
        emitted: reads rows that have left.

    Returns:
        By row; False as well where one of them cannot be read any more, or they are too many.
    """
    few = [
        row
        for row in rows
        if len(row.later or ()) < MOST_ALIKE and not (row.before is not None and row.before.disowned)
    ]
    waiting = _of_waiting({one.number for row in few for one in (row, *(row.later or ()))}, recorded)
    left = _of_emitted({row.before for row in few if row.before is not None}, emitted)
    alike = set()
    for row in few:
        own = {waiting.get(one.number) for one in row.of_one_request}
        others = {waiting.get(one.number) for one in row.of_others}
        others |= {left.get(row.before)} if row.before is not None else set()
        if None not in own and others <= own:
            alike.add(row.number)
    return [row.number in alike for row in rows]


def _of_waiting(numbers: Iterable[int], recorded: Recorded) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    left = sorted(numbers)
    while left:
        count, table = recorded(left[:READ_AT_ONCE])
        if not count:
            break
        if table is not None:
            found |= zip(left[:count], _digests(table))
        left = left[count:]
    return found


def _of_emitted(places: Iterable[RowLocation], emitted: Emitted) -> dict[RowLocation, bytes]:
    by_file: dict[int, list[RowLocation]] = {}
    for place in places:
        by_file.setdefault(place.file, []).append(place)
    found: dict[RowLocation, bytes] = {}
    for file, mine in by_file.items():
        table = emitted(file, [place.row for place in mine])
        if table is not None:
            found |= zip(mine, _digests(table))
    return found


def _digests(table: pa.Table) -> list[bytes]:
    """Of the inputs of each row: NaN is NaN, and a float's last bit counts."""
    inputs = sorted(name for name in table.column_names if not name.startswith(RECORDERS_OWN))
    return [hashlib.blake2b(repr(row).encode(), digest_size=16).digest() for row in table.select(inputs).to_pylist()]
