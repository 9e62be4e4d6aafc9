"""Train two towers to retrieve: models.training.dense_step with rows and further items instead of labelled rows.

A step is never divided into parts, because its rows are compared with one another. Executables have one of a few
numbers of rows; a step fills up the smallest that is enough with rows of weight 0 that are no candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec
from freshet_serving.models.training.batch_part import Write
from freshet_serving.models.training.dense_step import Arguments, DenseStep, fewest_size
from freshet_serving.models.training.retrieval_functions import RetrievalFunctions
from freshet_serving.processor.package import MATRIX

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

FEWEST, SIZES = 32, 4
"""Numbers of rows of executables: powers of two from FEWEST on, and SIZES - 1 numbers between each and the next."""
SLICE_ROWS = 2048
NOBODY = 1e30
"""As the logarithm of an expected count it removes a candidate from the softmax."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates that the n rows of a step are compared with: their own items, and m further ones.

    Attributes:
        users: int64 [n], numbers below n, the same for rows of one user.
        items: int64 [n + m], numbers below n, the same for one item; n for an item of no row.
        expected: float64 [n + m], how often a step is expected to have each.
        shares: float32 [n], weights of the rows.
    """

    users: Int64s
    items: Int64s
    expected: NDArray[np.float64]
    shares: Float32s


class RetrievalStep(DenseStep):
    """One optimizer step, called with rows that were chosen."""

    functions = RetrievalFunctions

    @property
    def negatives(self) -> int:
        return self._functions_of.towers.negatives

    @property
    def _functions_of(self) -> RetrievalFunctions:
        assert isinstance(self._do, RetrievalFunctions)
        return self._do

    def set_initial_bias(self, log_odds: Sequence[float]) -> None:
        """Do nothing: the score's bias does not learn the share of positive labels."""

    def learn(self, write: Write, further: Write | None, candidates: Candidates) -> tuple[float, Float32s, Float32s]:
        """Compute loss and gradients of a step, with `further` items if any; move() follows.

        Return the loss, and gradients by x of the rows [n, width] and further items [m, width]; valid until the next.
        """
        rows, more = len(candidates.users), len(candidates.items) - len(candidates.users)
        size = fewest_size(rows, FEWEST, SIZES)
        buffer = self._io_buffer("learn", size, 0)
        # Compile before the step.
        self._mover(1)
        x, items = buffer.inputs.values()
        users_in, items_in, expected_in, shares_in = buffer.more
        write(slice(0, rows), {MATRIX: x[:rows]})
        x[rows:] = x[0]
        if further is not None:
            further(slice(0, more), {MATRIX: items[:more]})
            items[more:] = items[0]
        elif len(items):
            items[...] = x[0]
        users_in[:rows], users_in[rows:] = candidates.users, candidates.users[0]
        shares_in[:rows], shares_in[rows:] = candidates.shares, 0.0
        # For the executable, an item of no row has the number `size`.
        numbers = np.where(candidates.items < rows, candidates.items, size)
        logs = np.log(np.maximum(candidates.expected, 1e-30))
        for filled, values, nothing in ((items_in, numbers, numbers[0]), (expected_in, logs, NOBODY)):
            filled[:] = nothing
            filled[:rows], filled[size : size + more] = values[:rows], values[rows:]
        loss, by_x, by_items, gradient, *others = buffer.function([*buffer.arguments, *self.state.held()])
        self._results = by_x, by_items
        self._gradients = [gradient]
        self.state.passed(others)
        return float(loss.view()), by_x.view()[:rows], by_items.view()[:more]

    def vectors(self, rows: int, write: Write) -> tuple[Float32s, Float32s]:
        """Return the users' and the items' vectors of rows, float32 [rows, d] each; changes nothing."""
        users, items = list[Float32s](), list[Float32s]()
        for first in range(0, rows, SLICE_ROWS):
            count = min(SLICE_ROWS, rows - first)
            buffer = self._io_buffer("vectors", fewest_size(count, FEWEST, SIZES), 0)
            (x,) = buffer.inputs.values()
            write(slice(first, first + count), {MATRIX: x[:count]})
            x[count:] = x[0]
            outputs = buffer.function([*buffer.arguments, self.state.held_vectors()])
            for parts, array in zip((users, items), outputs):
                parts.append(np.array(array.view()[:count]))
        if not rows:
            return np.empty((0, 1), np.float32), np.empty((0, 1), np.float32)
        return np.concatenate(users), np.concatenate(items)

    def _takes(self, function: str, size: int, distinct: int) -> Arguments:
        inputs, more, state = super()._takes(function, size, distinct)
        if function == "vectors":
            return inputs, [], state[:1]
        if function == "learn":
            most = self.negatives
            inputs["more"] = ArraySpec((most, *inputs[MATRIX].shape[1:]))
            more = [ArraySpec((size,)), *[ArraySpec((size + most,))] * 2, ArraySpec((size,))]
        return inputs, more, state

    def _settings_of(self, function: str) -> str:
        # Network and losses are the zoo's.
        return f"retrieval {function} {self._follows_from!r}" if function in ("learn", "vectors") else ""
