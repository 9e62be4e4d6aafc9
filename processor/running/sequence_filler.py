"""Fill inputs of the dense graph that hold a sequence (processor.package.sequences).

An input of fewer places than max_length is filled from requests whose histories are no longer than that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import Pooling, SparsePlan
from freshet_serving.processor.package import TIME_UNITS, GraphInput


class SequenceFill:
    """Writes rows of one sequence: its columns by the kernel of all lookups, then the seconds to the newest event."""

    def __init__(self, graph_input: GraphInput, plan: SparsePlan) -> None:
        entry = plan.sequences[graph_input.name]
        width = graph_input.dims[1] if graph_input.dims else entry.width
        length = width * entry.max_length // entry.width
        self.columns: Pooling = plan.places(entry, length)
        self._source = plan.source(entry.time) if entry.time else -1
        self._offset, self._per_s = width - length, TIME_UNITS[entry.time_unit]

    def __call__(self, view: BatchView, out: NDArray[np.float32]) -> None:
        self.columns.fill(view, out)
        if self._source >= 0:
            self.fill_seconds(view, out[:, self._offset :])

    def fill_seconds(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Write the seconds from each event of the view's rows to the newest one, float32 [rows, places]."""
        at = 0
        for request, (first, rows) in zip(view.bound, view.spans.tolist()):
            events = request.keep[self._source]
            assert events.splits is not None
            same = events.rows == 1
            first, count = (0, 1) if same else (first, rows)
            part = out[at : at + rows]
            _write_seconds(events.values, events.splits[first : first + count + 1], self._per_s, part[:count])
            if same:
                part[1:] = part[0]
            at += rows


def _write_seconds(values: NDArray[np.int64], splits: NDArray[np.int64], per_s: int, out: NDArray[np.float32]) -> None:
    """Write the seconds from each event (times in units of 1 / per_s) to its row's newest one, 0 where there is none.

    Splits are the first event of each row, and the end of the last; `out` is float32 [rows, max_length].
    """
    lengths = np.diff(splits)
    times = values[splits[0] : splits[-1]].astype(np.float64)
    ends = splits[1:] - splits[0]
    row = np.repeat(np.arange(len(lengths)), lengths)
    out[:] = 0.0
    out[row, np.arange(len(times)) - (ends - lengths)[row]] = (times[(ends - 1)[row]] - times) / per_s
