"""Repeat what a followed run learned, over its rows as stored data: `freshet train --repeat FOLDER`.

Chosen settings, seeds and the first bias come from the run's newest checkpoint, the rows of each step and the places of
its deltas from its borders (models.training.batch_borders). So weights and scores are the run's, to the bit on the same
machine. Rows are joined with their entities as of their time; a join without times cannot be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.data.source import Batch, Source, join_batches
from freshet_serving.models.training.batch_borders import BORDERS, Entry, parse_entries, read_entries
from freshet_serving.models.training.checkpoint import RunState, newest_state
from freshet_serving.models.training.delta_rules import DeltaRules
from freshet_serving.processor.errors import BadInput, Corrupt

READ_ROWS = 1 << 13


class RepeatedRun:
    """The steps of a followed run: its newest state, and the rows of its full version."""

    def __init__(self, folder: Path) -> None:
        """Read the borders beside a run's checkpoints; raise BadInput without them or if they begin in mid-run."""
        state = newest_state(folder) if folder.is_dir() else None
        if state is None or not state.borders:
            raise BadInput(
                f"--repeat: expected the folder of a followed run's checkpoints, .checkpoints/NAME in its repository,"
                f" got {str(folder)[:200]!r}, which has none that say what was learned"
            )
        try:
            self._entries = read_entries(folder / BORDERS, state.borders)
        except (OSError, Corrupt):
            raise BadInput(f"--repeat: expected the file {BORDERS!r} that the newest checkpoint says") from None
        self.state = state
        first = next(self.entries(), None)
        self.full_rows = first.first if first is not None and first.generation is not None else 0
        if not self.full_rows:
            raise BadInput("--repeat: expected a run from its first row on, got one that began with other weights")

    def batches(self, source: Source, position: int) -> Iterator[Batch]:
        """Yield the batches of the steps from a row on, as far as the run's weights were its own."""
        chunks, chunk = source.batches(READ_ROWS, position), None
        for first, end, _ in self._steps():
            parts, row = [], max(first, position)
            while row < end:
                while chunk is None or chunk.end <= row:
                    chunk = next(chunks, None)
                    if chunk is None:
                        raise BadInput(f"data: expected the {end:,} rows that the repeated run learned, got {row:,}")
                last = min(end, chunk.end)
                parts.append(chunk.slice(row - chunk.start, last - chunk.start))
                row = last
            if parts:
                yield join_batches(parts)

    def rules(self, publish: PublishConfig, state: RunState) -> DeltaRules:
        """Return rules by which deltas are due where the run published them; `state` is the repeating run's."""
        return RepeatedRules(publish, self._published(), state)

    def entries(self) -> Iterator[Entry]:
        yield from parse_entries(self._entries)

    def _steps(self) -> Iterator[Entry]:
        for entry in self.entries():
            if entry.end > entry.first:
                yield entry
            elif entry.generation is None:
                raise BadInput(
                    f"--repeat: at row {entry.first:,} the run went on with weights that are not its own, which cannot"
                    " be repeated"
                )

    def _published(self) -> Iterator[int]:
        for entry in self.entries():
            if entry.generation is not None:
                yield entry.first
            elif entry.end == entry.first:
                return


class RepeatedRules(DeltaRules):
    def __init__(self, publish: PublishConfig, rows: Iterator[int], state: RunState) -> None:
        """Take the rows after which deltas are due, ascending, and the repeating run's state."""
        super().__init__(publish, lambda: 0.0)
        self._rows, self._next, self._state = rows, next(rows, None), state

    def due(self) -> bool:
        """Return True if the other run published rows here, or the dense weights that it had withheld."""
        while self._next is not None and self._next < self._state.position:
            self._next = next(self._rows, None)
        if self._next != self._state.position or not (self.rows or self._state.withheld):
            return False
        self._next = next(self._rows, None)
        return True
