"""One part of a batch as an executable reads it: the input buffers for its rows, and the computation over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray, XlaFunction

Float32s = NDArray[np.float32]
Write = Callable[[int, int, Mapping[str, Float32s]], None]
"""Function that writes rows [start, stop) of a batch into the dense graph's inputs, each [stop - start, ...]; called by
several threads at once.
"""


class BatchBuffer:
    """An executable for a fixed number of rows, with the float32 arrays that it reads its first arguments from.

    Attributes:
        inputs: The arrays of the dense graph's inputs, by name.
        more: The other arrays.
    """

    def __init__(self, function: XlaFunction, inputs: Mapping[str, ArraySpec], more: Sequence[ArraySpec] = ()) -> None:
        self.function = function
        specs = [*inputs.values(), *more]
        arrays, self.arguments = [list(part) for part in zip(*(function.io_buffer(spec.shape) for spec in specs))]
        self.inputs, self.more = dict(zip(inputs, arrays)), arrays[len(inputs) :]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Rows [start, stop) of a batch, in a buffer with at least as many rows. One thread at a time."""

    io_buffer: BatchBuffer
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def fill(self, write: Write) -> None:
        """Fill in the inputs; surplus rows of the buffer become copies of the first row."""
        inputs = self.io_buffer.inputs
        write(self.start, self.stop, {name: array[: self.rows] for name, array in inputs.items()})
        for array in inputs.values():
            array[self.rows :] = array[0]

    def weigh(self, label: Float32s, share: Float32s) -> None:
        """Fill in labels and weights; surplus rows of the buffer get weight 0.

        Args:
            label: float32, labels of the whole batch.
            share: float32, each row's weight in the loss of the batch.
        """
        labels, shares, _ = self.io_buffer.more
        labels[: self.rows], labels[self.rows :] = label[self.start : self.stop], label[self.start]
        shares[: self.rows], shares[self.rows :] = share[self.start : self.stop], 0.0

    def compute(self, state: Sequence[DeviceArray]) -> list[DeviceArray]:
        return self.io_buffer.function([*self.io_buffer.arguments, *state])
