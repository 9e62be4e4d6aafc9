"""Recognise the rows that a run has learned, so that no run continues at a position of other data.

A position counts rows of the data: in a replaced table, rows would be skipped or learned again. So a checkpoint has
digests of the data's first rows and of those before its position, by column: columns may be added and dropped.

Not recognised: changes elsewhere. Followed streams have a journal (models.streams.stream_journal), shuffled passes and
histories only the digests of the first rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput

ROWS = 64
LABEL, TIME, WEIGHT = "label", "time", "weight"
REMEDY = (
    "add new rows behind the learned ones (as further files of a folder, say), train anew with --new-version"
    " --from-scratch, or set another model.name"
)


class LearnedRows:
    """The rows that a run has learned: digests by column of the first ROWS rows, and of the last [start, end)."""

    def __init__(self, state: dict[str, Any], joined: Iterable[str] = ()) -> None:
        """Continue with a checkpoint's state, changed in place; `joined` columns are not the data's own."""
        self.state = state
        self._joined = frozenset(joined)

    def learned(self, batch: Batch) -> None:
        """Store digests of the last rows of a batch learned in the order of the data."""
        if len(batch):
            last = batch.slice(max(0, len(batch) - ROWS), len(batch))
            self.state["last"] = {"start": last.start, "end": last.end, "digests": self._digests(last)}

    def recognise(self, source: Source, position: int, rows: int | None) -> None:
        """Raise BadInput unless a source begins with the `position` rows that were learned; store its first ones."""
        if position:
            self._check(source, position, rows)
        self._begin(source)

    def _check(self, source: Source, position: int, rows: int | None) -> None:
        if rows is not None and rows < position:
            raise BadInput(
                f"data.path: expected the {position:,} rows that were learned and perhaps more, got fewer, {rows:,}:"
                f" {REMEDY}"
            )
        first, last = self.state.get("first"), self.state.get("last")
        if first:
            self._compare(source, 0, int(first["rows"]), first["digests"])
        if last and last["end"] <= position:
            self._compare(source, int(last["start"]), int(last["end"]), last["digests"])

    def _begin(self, source: Source) -> None:
        if "first" not in self.state:
            for batch in _own(source).batches(ROWS):
                self.state["first"] = {"rows": len(batch), "digests": self._digests(batch)}
                break

    def _compare(self, source: Source, start: int, end: int, digests: dict[str, str]) -> None:
        for batch in _own(source).batches(end - start, start):
            now = self._digests(batch)
            if other := sorted(name for name in digests.keys() & now.keys() if digests[name] != now[name]):
                raise BadInput(
                    f"data.path: expected the rows that were learned, got other ones: column {other[0]!r} differs in"
                    f" rows {start:,} to {end - 1:,}; {REMEDY}"
                )
            break

    def _digests(self, batch: Batch) -> dict[str, str]:
        """Return digests of the data's own columns, labels, times and weights, without lists."""
        columns: dict[str, Any] = {LABEL: batch.label, TIME: batch.time, WEIGHT: batch.weight}
        columns |= {f"columns.{name}": c for name, c in batch.columns.items() if name not in self._joined}
        return {name: _digest(c) for name, c in columns.items() if c is not None and not isinstance(c, Ragged)}


def _own(source: Source) -> Source:
    """Return the source below histories, which would be rebuilt for reading from the middle."""
    return source.events if isinstance(source, SequenceSource) else source


def _digest(column: Column) -> str:
    assert not isinstance(column, Ragged)
    if isinstance(column, Strings):
        parts = [b"strings", repr(column.tolist()).encode()]
    else:
        parts = [column.dtype.str.encode(), np.ascontiguousarray(column).tobytes()]
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()
