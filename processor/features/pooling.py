"""Run the kernel over bound requests: for some features of a plan, or for those that all rows of a request share.

A large request is divided into chunks of rows (processor.sessions.split_request), and what its rows share is looked up
in steps of bounded size before. A step reads some features, or some ids of one feature's list: a list is taken apart
only where its combiner says how pieces are combined (package.combiners), in order, so the sum is equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.bound_request import (
    BatchView,
    BoundRequest,
    NonFiniteInput,
    address,
    read_word,
)
from freshet_serving.processor.features.late_values import LateValues, fill_left_out
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import COMBINER_OF_CODE, COMBINERS


class Pooling(NamedTuple):
    """Some features of a plan and the matrix columns they fill: plan and scaling of kernels.pool.

    Attributes:
        plan: int64 [F, PLAN_FIELDS].
        scaling: float32 [F, SCALING_FIELDS].
        late: What fills some of their inputs with each batch.
    """

    plan: NDArray[np.int64]
    scaling: NDArray[np.float32]
    late: Sequence[LateValues] = ()

    def fill(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Write the view's rows of these features; other features' columns are unchanged.

        Args:
            view: The rows to fill.
            out: float32 [rows, width], to write to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
            FreshetError: A stage refuses a request, or was not done in time.
        """
        inputs, kept = view.inputs(), None
        if self.late:
            kept = fill_left_out(self.late, view, inputs)
        if pool.run(view.tables, self.plan, self.scaling, inputs, view.spans, view.epoch, out, view.counts):
            raise NonFiniteInput("inputs: expected numbers that are finite after scaling")
        if kept is not None and kept.refusal is not None:
            raise kept.refusal


class PoolingStep(NamedTuple):
    """Some features of one row, or some ids of one feature's list.

    Attributes:
        columns: The columns to divide once they are filled.
        divisor: What to divide them by.
    """

    pooling: Pooling
    bound: BoundRequest
    columns: slice = slice(0, 0)
    divisor: np.float32 = np.float32(1)

    def fill(self, tables: NDArray[np.int64], epoch: int, out: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
        """Fill this step's columns of a row in which earlier steps have written.

        Args:
            tables: As BatchView.tables.
            epoch: As BatchView.epoch.
            out: float32 [1, width], the row.
            counts: As BatchView.counts.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
        """
        self.pooling.fill(BatchView(tables, epoch, [self.bound], np.array([[0, 1]], np.int64), counts), out)
        if self.divisor != 1:
            out[0, self.columns] /= self.divisor


class RowInvariants(NamedTuple):
    """The features of a request that are the same in all of its rows.

    Attributes:
        ids: Number of their ids.
        parts: Steps to run one after another.
        varying: The features that differ between rows, in the columns that SparsePlan.fill() writes them to.
    """

    ids: int
    parts: Sequence[PoolingStep]
    varying: Pooling


def row_invariants(
    whole: Pooling, some: Callable[[Any], Pooling], bound: BoundRequest, max_ids: int
) -> RowInvariants | None:
    """Return the features of a request that are the same in all rows, in steps; None if all may differ.

    Args:
        whole: All features.
        some: Returns the pooling of some of them, by number, in the same columns.
        bound: The bound request.
        max_ids: Maximum ids of a step.
    """
    words = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS)
    sources, tables = whole.plan[:, pool.SOURCE], whole.plan[:, pool.TABLE]
    invariant = words[sources, pool.ROWS] == 1
    if not invariant.any():
        return None
    ids = 0
    for source in np.unique(sources[invariant & (tables >= 0)]).tolist():
        ids += row_length(words[source])
    parts: list[PoolingStep] = []
    together: list[int] = []
    count = 0
    for row in np.flatnonzero(invariant).tolist():
        source, most = words[sources[row]], int(whole.plan[row, pool.MAX_LENGTH])
        late = source[pool.FILLED_BY] != pool.SENT
        length = row_length(source) if source[pool.SPLITS] or late else int(tables[row] >= 0)
        length = min(length, most) if most > 0 else length
        # A list that a record fills has no more values than the record, and is read with its batch.
        if length > max_ids and not late and COMBINER_OF_CODE[int(whole.plan[row, pool.COMBINER])].merge:
            parts += _pieces(whole, bound, words, row, length, max_ids)
            continue
        if together and count + length > max_ids:
            parts.append(PoolingStep(some(together), bound))
            together, count = [], 0
        together.append(row)
        count += length
    if together:
        parts.append(PoolingStep(some(together), bound))
    return RowInvariants(ids, parts, some(~invariant))


def _pieces(
    whole: Pooling, bound: BoundRequest, words: NDArray[np.int64], row: int, length: int, max_ids: int
) -> Iterator[PoolingStep]:
    """Yield the steps that combine one feature's list: in order, so bit-identical to combining it at once."""
    scaling, plan = whole.scaling[row : row + 1], whole.plan[row : row + 1].copy()
    fields = [pool.SOURCE, pool.COMBINER, pool.OFFSET, pool.WIDTH, pool.CODES]
    source, code, offset, width, codes = plan[0, fields].tolist()
    combiner = COMBINER_OF_CODE[code]
    plan[0, [pool.COMBINER, pool.MAX_LENGTH]] = COMBINERS[combiner.merge].code, 0
    for start in range(0, length, max_ids):
        splits, own = np.array([start, min(start + max_ids, length)], np.int64), words.copy()
        own[source, pool.SPLITS] = address(splits)
        divisor = combiner.divisor(length // codes) if splits[1] == length else np.float32(1)
        piece = BoundRequest(1, int(splits[1]) - start, own.tobytes(), (bound, splits))
        yield PoolingStep(Pooling(plan, scaling), piece, slice(offset, offset + width), divisor)
        plan = plan.copy()
        plan[0, pool.KIND] = pool.KIND_MORE


def row_length(words: NDArray[np.int64]) -> int:
    """Return the number of values in an input's one row, the most of one that is left out.

    Args:
        words: int64 [INPUT_FIELDS], the input (kernels.pool).
    """
    _, _, stride, splits, filled_by = words.tolist()
    return int(read_word(splits + 8).value) if splits and filled_by == pool.SENT else int(stride)
