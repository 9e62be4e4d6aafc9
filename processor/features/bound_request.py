"""A request as the kernel reads it, and bound requests as one batch reads them (processor.features.binding binds them).

A source that the request leaves out (kernels.pool: FILLED_BY) has no values until something fills it with a batch
(late_values).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ctypes import c_int64
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.input_reader import BoundInput
from freshet_serving.processor.kernels import pool

if TYPE_CHECKING:
    from freshet_serving.processor.features.stage import Limit
    from freshet_serving.processor.features.user_bounds import UserBounds


class RecordSource(Protocol):
    """A source of inputs that records hold (entity_records.EntityRecords)."""

    def record_nbytes(self, keys: int) -> int:
        """Return the bytes of so many records; 0 if they do not hold the columns as they were given."""

    def given(self, records: NDArray[np.int32], names: Collection[str]) -> dict[str, Column]:
        """Return columns of records as they were given."""


class UsedRecords:
    """The records that a request's batch read, which hold the values of its left-out inputs as they were used.

    Nothing is kept unless keep() is called before the request is queued; the records are final when the reply is there.

    Attributes:
        names: The inputs that it leaves out, and the transforms that are made of them.
        records: By entity, int32 [keys, words]; one key for all rows has one record.
    """

    __slots__ = ("_keys", "names", "records")

    def __init__(self, names: Collection[str], keys: Sequence[tuple[RecordSource, int]]) -> None:
        """Describe what a request leaves out; `keys` are the entities that fill it, with the number of keys."""
        self.names, self._keys = names, keys
        self.records: dict[RecordSource, NDArray[np.int32]] = {}

    def again(self) -> UsedRecords:
        """Return an object without records for another request that leaves out the same inputs."""
        return UsedRecords(self.names, self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes that keep() takes."""
        return sum(entity.record_nbytes(count) for entity, count in self._keys)

    def keep(self) -> None:
        """Have the batch keep the records."""
        for entity, count in self._keys:
            if entity not in self.records and (nbytes := entity.record_nbytes(count)):
                self.records[entity] = np.zeros((count, nbytes // (4 * count)), np.int32)

    def columns(self) -> dict[str, Column]:
        """Return the left-out inputs as they were used, those of one key with one row."""
        columns: dict[str, Column] = {}
        for entity, records in self.records.items():
            columns |= entity.given(records, self.names)
        return columns


class BoundRequest(NamedTuple):
    """A checked request.

    Attributes:
        ids: Number of ids to look up, before inputs of one row are broadcast.
        words: int64 [sources, INPUT_FIELDS] as bytes (kernels.pool's inputs), addresses into `keep`.
        keep: The arrays, which must outlive `words`.
        user_split: True if the user's inputs (processor.package.subgraphs) have one row for all candidates.
        unknown: By the policy of an entity (DROP, MARK), int64 for each row of its key, written when a batch reads the
            records: 1 if the key has none. Another batch of the same request writes all of them again.
        columns: The inputs by name, for a stage that is run with each batch (stage_rows).
        used: The records of the inputs that it leaves out; None if it leaves none out.
        limit: The time that a stage may take for it; None for any.
        cells: What a stage computes for it (package.stage_entries).
        user_bounds: Of the user's part; None if that has to be exact.
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
    user_bounds: UserBounds | None = None

    def with_exact_user(self) -> BoundRequest:
        """Return the request for a user part of the generation that is read."""
        return self if self.user_bounds is None else self._replace(user_bounds=self.user_bounds.exact())

    def without_flags(self) -> BoundRequest:
        """Return the request for readers whose records are not those of its reply."""
        if not self.unknown:
            return self if self.used is None else self._replace(used=None)
        words = np.frombuffer(self.words, np.int64).reshape(-1, pool.INPUT_FIELDS).copy()
        words[left_out(words), pool.FLAGS] = 0
        return self._replace(words=words.tobytes(), unknown=(), used=None)


class BatchView(NamedTuple):
    """The rows of one run of a batch, and the state that they are read under.

    Whoever runs the batch makes one for each run and owns what it holds, until the run's inputs are filled.

    Attributes:
        tables: Table descriptors (kernels.rows), int64 [T, TABLE_FIELDS].
        bound: The requests, in the order of their rows.
        spans: int64 [R, 2], first row and number of rows of each request.
        counts: Lookups and misses by table, int64 [T, 2], to add to. No other thread adds to it meanwhile.
    """

    tables: NDArray[np.int64]
    epoch: int
    bound: Sequence[BoundRequest]
    spans: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, tables: NDArray[np.int64], epoch: int, bound: BoundRequest) -> BatchView:
        """Return the view of all rows of one request, with counts of its own."""
        return cls(tables, epoch, [bound], np.array([[0, bound.rows]]), np.zeros((max(1, len(tables)), 2), np.int64))

    def inputs(self) -> NDArray[np.int64]:
        """Return the requests' inputs as kernels read them, in memory of their own: int64 [R, S, INPUT_FIELDS]."""
        return inputs_of(self.bound)


NOTHING = BoundInput(np.empty(0, np.int64), 1, 0, None)
"""Stands for a source that is left out."""


class BoundLayout(NamedTuple):
    """The binding shared by all PackedColumns of one BufferLayout.

    Attributes:
        sources: Offset of the values, rows, stride and FILLED_BY of each source.
        left_out: The records of the inputs that the requests leave out, copied for each; None if they leave none.
    """

    rows: int
    ids: int
    sources: tuple[tuple[int, int, int, int], ...]
    user_split: bool
    left_out: UsedRecords | None


class NonFiniteInput(BadInput):
    """Raised if a float of a request is infinite, or becomes so when scaled. All rows have been written by then."""


def non_finite_input(name: str, value: float, row: int, column: int) -> NonFiniteInput:
    """Return the error of one float of an input."""
    expected = "a number that is finite after scaling" if np.isfinite(value) else "finite numbers (or NaN)"
    return NonFiniteInput(f"input {name!r}: expected {expected}, got {value:.6g} in row {row}, column {column}")


def inputs_of(bound: Sequence[BoundRequest]) -> NDArray[np.int64]:
    """Return the inputs of bound requests as kernels read them: int64 [R, S, INPUT_FIELDS] (kernels.pool)."""
    words = bytearray().join([b.words for b in bound])
    return np.frombuffer(words, np.int64).reshape(len(bound), -1, pool.INPUT_FIELDS)


def left_out(inputs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which sources are left out; `inputs` are int64 [..., INPUT_FIELDS]."""
    flags: NDArray[np.bool_] = inputs[..., pool.FILLED_BY] != pool.SENT
    return flags


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element, in an eighth of the time of array.ctypes.data.

    PyArrayObject begins with the object's head, then the data pointer (numpy's stable ABI).
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
