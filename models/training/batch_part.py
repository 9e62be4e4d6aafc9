"""One part of a batch as an executable reads it. Histories that its rows share are in the buffers once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray, XlaFunction
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.running.graph_run import SubgraphRun

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
Rows = slice | Int64s
"""Rows of a batch: a slice, or ascending numbers."""
Write = Callable[[Rows, Mapping[str, Float32s]], None]
"""Writes rows of a batch into inputs of the dense graph; several threads call it at once."""


def write_rows(run: SubgraphRun, tables: Int64s, bound: BoundRequest) -> Write:
    """Return the function that writes rows of a bound batch, as a server does; `tables` must not change meanwhile."""

    def write(rows: Rows, inputs: Mapping[str, Float32s]) -> None:
        if isinstance(rows, slice):
            spans = np.array([[rows.start, rows.stop - rows.start]], np.int64)
        else:
            starts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
            spans = np.stack([rows[starts], np.diff(np.append(starts, len(rows)))], axis=1)
        uncounted = np.zeros((max(1, len(tables)), 2), np.int64)
        run.fill(BatchView(tables, 0, [bound] * len(spans), spans, uncounted), inputs)

    return write


@dataclass(frozen=True, slots=True)
class SharedHistories:
    """The distinct histories of some rows: a row of the batch with each, and how many have it.

    `own` is the number of each row's histories, int64 [rows]; `names` are the inputs that hold histories.
    """

    names: Collection[str]
    rows: Int64s
    own: Int64s
    times: Int64s


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """Gradients of rows [start, stop) by input [rows, width]; shared histories have a row each."""

    start: int
    stop: int
    by_inputs: Mapping[str, Float32s]
    shared: SharedHistories | None = None

    def rows_of(self, name: str) -> tuple[Int64s, Int64s]:
        """Return for each row of a gradient a row of the batch with it, and how many have it."""
        if self.shared is not None and name in self.shared.names:
            return self.shared.rows, self.shared.times
        return np.arange(self.start, self.stop), np.ones(self.stop - self.start, np.int64)


class BatchBuffer:
    """An executable for a fixed number of rows, with the float32 arrays of its first arguments: inputs, then more."""

    def __init__(self, function: XlaFunction, inputs: Mapping[str, ArraySpec], more: Sequence[ArraySpec] = ()) -> None:
        self.function = function
        specs = [*inputs.values(), *more]
        arrays, self.arguments = [list(part) for part in zip(*(function.io_buffer(spec.shape) for spec in specs))]
        self.inputs, self.more = dict(zip(inputs, arrays)), arrays[len(inputs) :]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Rows [start, stop) of a batch, in a buffer of at least that size; `shared` as well. Not thread-safe."""

    io_buffer: BatchBuffer
    start: int
    stop: int
    shared: SharedHistories | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def fill(self, write: Write) -> None:
        """Fill in the inputs; surplus rows become copies of the first."""
        shared = self.shared
        if shared is None:
            self._fill(write, slice(self.start, self.stop), self.io_buffer.inputs, self.rows)
            return
        histories = {name: array for name, array in self.io_buffer.inputs.items() if name in shared.names}
        others = {name: array for name, array in self.io_buffer.inputs.items() if name not in shared.names}
        self._fill(write, slice(self.start, self.stop), others, self.rows)
        self._fill(write, shared.rows, histories, len(shared.rows))
        histories_of = self.io_buffer.more[-1]
        histories_of[: self.rows], histories_of[self.rows :] = shared.own, 0

    @staticmethod
    def _fill(write: Write, rows: Rows, inputs: Mapping[str, Float32s], count: int) -> None:
        write(rows, {name: array[:count] for name, array in inputs.items()})
        for array in inputs.values():
            array[count:] = array[0]

    def weigh(self, label: Float32s, share: Float32s) -> None:
        """Fill in labels and weights from those of the whole batch; surplus rows get weight 0."""
        labels, shares, *_ = self.io_buffer.more
        labels[: self.rows], labels[self.rows :] = label[self.start : self.stop], label[self.start]
        shares[: self.rows], shares[self.rows :] = share[self.start : self.stop], 0.0

    def compute(self, state: Sequence[DeviceArray]) -> list[DeviceArray]:
        return self.io_buffer.function([*self.io_buffer.arguments, *state])

    def piece(self, gradients: Mapping[str, Float32s]) -> GradientPiece:
        shared = self.shared
        counts = {name: len(shared.rows) for name in shared.names} if shared is not None else {}
        by_inputs = {name: grad[: counts.get(name, self.rows)] for name, grad in gradients.items()}
        return GradientPiece(self.start, self.stop, by_inputs, shared)
