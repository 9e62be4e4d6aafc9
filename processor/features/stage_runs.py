"""Run a stage within what one request may cost: its memory, its time, and what others notice of it.

Invariants
- A request is sized by its shape (StageGrowth) before anything is repeated or run: beyond `max_cells` it is refused.
- One run makes at most AT_ONCE cells, by few rows at a time; only a single row may make more. What is sent once for all
  rows is repeated for the rows of one run alone.
- Of runs that make more than LARGE cells, a process has one at a time, so memory is that of one.
- A run ends at the request's limit.

Rows of a stage do not depend on each other, which the importer checks, so that they may be run in pieces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, slice_column
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.stage import AT_ONCE, LARGE, NONE, Limit, Stage
from freshet_serving.processor.package import Manifest, StageGrowth

ROW_CELLS = 3 * AT_ONCE
"""Most cells that one row may make where the runtime does not bound memory by itself."""
_alone = threading.Lock()


class StageRuns:
    """The stage of one plan.

    `single` are the inputs whose one row it takes for all rows of the others, so that it need not be repeated.
    """

    def __init__(self, manifest: Manifest, stage: Stage, growth: StageGrowth) -> None:
        self._stage: Any = stage
        self._growth = growth
        self.reads: Collection[str] = stage.reads
        self._widths = {i.name: i.columns or 1 for i in manifest.inputs}
        self._check: Callable[[Mapping[str, Column]], None] = getattr(stage, "check", lambda inputs: None)
        self._endable = hasattr(stage, "traced")
        self._bounded = getattr(stage, "bounded", False)
        self.single: Collection[str] = getattr(stage, "single", ())

    def check(self, inputs: Mapping[str, Column], rows: int, limits: RequestLimits | None) -> int:
        """Return a request's cells; refuse it by its shape (TooLarge, with limits) or a row's values (BadInput)."""
        computed_rows = 1 if self.shared(inputs) else rows
        length = self._length(inputs)
        cells = self._growth.cells(computed_rows, length)
        if limits is not None:
            if cells > limits.max_cells:
                raise TooLarge(
                    f"max_cells: expected at most {limits.max_cells} values to be computed for a request, got about "
                    f"{cells} for {computed_rows} rows with up to {length} values in a list; ask for fewer rows or "
                    "shorter lists"
                )
            row_cells = self._growth.cells(1, length)
            if not self._bounded and row_cells > ROW_CELLS:
                raise TooLarge(
                    f"max_cells: expected at most {ROW_CELLS} values to be computed for a row, got about {row_cells} "
                    f"for lists with up to {length} values; send shorter lists"
                )
        self._check({name: inputs[name] for name in self.reads})
        return cells

    def run(self, inputs: Mapping[str, Column], rows: int, limit: Limit | None) -> Mapping[str, Column]:
        """Return the stage's outputs, computed in pieces, of one row if all inputs have one; BadInput or EndedRun."""
        read = {name: inputs[name] for name in self.reads}
        rows = 1 if self.shared(read) else rows
        pieces = [
            self.run_piece(self.part(read, first, count, rows), count, NONE, limit)
            for first, count in self.pieces(read, 0, rows)
        ]
        return pieces[0] if len(pieces) == 1 else {name: join_columns([p[name] for p in pieces]) for name in pieces[0]}

    def pieces(self, inputs: Mapping[str, Column], first: int, rows: int) -> Iterator[tuple[int, int]]:
        """Yield first row and rows of each run for `rows` rows of a request from `first` on."""
        at_once = self._growth.rows_within(AT_ONCE, self._length(inputs), rows) if rows > 1 else rows
        for start in range(first, first + rows, at_once):
            yield start, min(at_once, first + rows - start)

    def run_piece(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]], limit: Limit | None
    ) -> Mapping[str, Column]:
        """Run one piece; arguments and errors as of Stage.run() and run()."""
        large = self._growth.cells(rows, self._length(inputs)) > LARGE
        with _alone if large else nullcontext():
            if self._endable:
                outputs: Mapping[str, Column] = self._stage.run(inputs, rows, found, limit)
            else:
                outputs = self._stage.run(inputs, rows, found) if found else self._stage.run(inputs, rows)
        return outputs

    def part(self, inputs: Mapping[str, Column], first: int, rows: int, total: int) -> Mapping[str, Column]:
        """Return some rows of the columns of a request of `total` rows; columns of one row as they are."""
        if rows == total:
            return inputs
        return {name: self._part(name, column, first, rows) for name, column in inputs.items()}

    def _part(self, name: str, column: Column, first: int, rows: int) -> Column:
        if self.count(name, column) == 1:
            return column
        each = self._widths[name] if isinstance(column, Strings) else 1
        return slice_column(column, first * each, (first + rows) * each)

    def count(self, name: str, column: Column) -> int:
        return len(column) // self._widths[name] if isinstance(column, Strings) else len(column)

    def shared(self, inputs: Mapping[str, Column]) -> bool:
        """Report whether all that it reads has one row."""
        return all(self.count(name, inputs[name]) == 1 for name in self.reads)

    def _length(self, inputs: Mapping[str, Column]) -> int:
        """Return the longest list of a request, and 1 without lists."""
        longest = 1
        for name in self.reads:
            column = inputs[name]
            if isinstance(column, Ragged):
                longest = max(longest, int(np.diff(column.row_splits).max(initial=0)))
                column = column.values
            if name in self._growth.sized_by and len(column):
                said = np.diff(column.offsets).max() if isinstance(column, Strings) else column.max()
                longest = max(longest, int(np.nan_to_num(said)))
        return longest
