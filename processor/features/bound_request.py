"""A request as the kernel reads it, and runs of the kernel over bound requests (processor.features.plan binds them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_int64
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.entity_records import UsedRecords
from freshet_serving.processor.features.input_reader import BoundInput
from freshet_serving.processor.features.late_values import LateValues, fill_left_out
from freshet_serving.processor.features.stage import Limit
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.pool import LEFT_OUT


class BoundRequest(NamedTuple):
    """A checked request.

    Attributes:
        rows: Number of candidates.
        ids: Number of ids to look up, before inputs of one row are broadcast.
        words: int64 [sources, 4] as bytes (kernels.pool's inputs), addresses into `keep`.
        keep: The arrays, which must outlive `words`.
        user_split: True if the user's inputs (processor.package.subgraphs) have one row for all candidates.
        unknown: By the policy of an entity (DROP, MARK), int64 for each row of its key, written when a batch reads the
            records: 1 if the key has none. Another batch of the same request writes all of them again.
        columns: The inputs by name, for a stage that is run with each batch (stage_rows).
        used: The records of the inputs that it leaves out; None if it leaves none out.
        limit: The time that a stage may take for it; None for any.
        cells: What a stage computes for it (package.stage_growth).
    """

    rows: int
    ids: int
    words: bytes
    keep: Sequence[Any]
    user_split: bool = False
    unknown: Sequence[tuple[str, NDArray[np.int64]]] = ()
    columns: Mapping[str, Column] | None = None
    used: UsedRecords | None = None
    limit: Limit | None = None
    cells: int = 0

    def without_flags(self) -> BoundRequest:
        """Return the request for readers whose records are not those of its reply."""
        if not self.unknown:
            return self if self.used is None else self._replace(used=None)
        words = np.frombuffer(self.words, np.int64).reshape(-1, pool.INPUT_FIELDS).copy()
        words[words[:, 2] <= LEFT_OUT, pool.INPUT_FIELDS - 1] = 0
        return self._replace(words=words.tobytes(), unknown=(), used=None)


NOTHING = BoundInput(np.empty(0, np.int64), 1, LEFT_OUT, None)
"""Stands for a source that is left out."""


class BoundLayout(NamedTuple):
    """The binding shared by all PackedColumns of one BufferLayout.

    Attributes:
        sources: Offset of the values, rows and stride of each source.
        left_out: The records of the inputs that the requests leave out, to be copied for each; None if they leave none.
    """

    rows: int
    ids: int
    sources: tuple[tuple[int, int, int], ...]
    user_split: bool
    left_out: UsedRecords | None


class NonFiniteInput(BadInput):
    """Raised if a float of a request is infinite, or becomes so when scaled. All rows have been written by then."""


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

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: Sequence[BoundRequest],
        spans: NDArray[np.int64],
        out: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """Write rows spans[i] of each bound request, one request after another; other features' columns are unchanged.

        Args:
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            bound: The bound requests.
            spans: int64 [R, 2], first row and rows of each request.
            out: float32 [rows, width], to write to.
            counts: Lookups and misses by table, int64 [T, 2], to add to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
            FreshetError: A stage refuses a request, or was not done in time.
        """
        inputs, kept = inputs_of(bound), None
        if self.late:
            kept = fill_left_out(self.late, tables, epoch, bound, inputs, spans, counts)
        if pool.run(tables, self.plan, self.scaling, inputs, spans, epoch, out, counts):
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
            tables: Table descriptors, int64 [T, TABLE_FIELDS].
            epoch: The epoch to read rows at.
            out: float32 [1, width], the row.
            counts: Lookups and misses by table, int64 [T, 2], to add to.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
        """
        self.pooling.fill(tables, epoch, [self.bound], np.array([[0, 1]], np.int64), out, counts)
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


def inputs_of(bound: Sequence[BoundRequest]) -> NDArray[np.int64]:
    """Return the inputs of bound requests as kernels read them: int64 [R, S, 4] (kernels.pool)."""
    words = bytearray().join([b.words for b in bound])
    return np.frombuffer(words, np.int64).reshape(len(bound), -1, pool.INPUT_FIELDS)


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element, in an eighth of the time of array.ctypes.data.

    Each tensor of each request would pay for that. PyArrayObject begins with the object's head, then the data pointer
    (numpy's stable ABI).
    """
    at: int = read_word(id(array) + object.__basicsize__).value
    return at


def address_of_bytes(data: bytes) -> int:
    """Return the address of the first byte of a bytes object, which follows the object's head."""
    return id(data) + bytes.__basicsize__ - 1


read_word = c_int64.from_address
_bytes = b"probe"
_probe = np.frombuffer(_bytes, np.uint8)
if not address(_probe) == address_of_bytes(_bytes) == _probe.ctypes.data:
    raise ImportError("CPython's bytes and numpy's arrays are not laid out as expected")
