"""Column types that carry feature values from any reader or codec to the kernels.

A plain numpy array: int64 or float32, [n] or [n, columns].
Ragged:  values of all rows end to end, and where each row starts.
Strings: UTF-8 bytes of all strings end to end, and where each string starts (Arrow's layout: a Parquet column and a
         protocol's byte tensor arrive without a copy).
PackedColumns: plain columns in one buffer, by name, as a binary protocol hands them over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Strings:
    """n strings as one buffer: string i is data[offsets[i]:offsets[i + 1]].

    Attributes:
        data: uint8 [nbytes].
        offsets: int64 [n + 1], ascending; offsets[0] may be above 0 (a slice of a larger buffer).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, strings: Iterable[str | bytes]) -> Strings:
        """Build the buffer from Python strings (UTF-8) or bytes."""
        parts: list[Any] = strings if isinstance(strings, list) else list(strings)
        data = b""
        if set(map(type, parts)) == {str}:
            # ASCII has as many bytes as characters, so the strings need not be encoded one by one.
            text = "".join(parts)
            data = text.encode()
            ascii_only = len(data) == len(text)
        else:
            ascii_only = False
        if not ascii_only:
            parts = [s.encode() if isinstance(s, str) else s for s in parts]
            data = b"".join(parts)
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
        return cls(np.frombuffer(data, np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tolist(self) -> list[bytes]:
        first = int(self.offsets[0])
        blob, at = self.data[first : int(self.offsets[-1])].tobytes(), (self.offsets - first).tolist()
        return [blob[a:b] for a, b in zip(at, at[1:])]


@dataclass(frozen=True, slots=True)
class Ragged:
    """n rows of varying length: row i is values[row_splits[i]:row_splits[i + 1]].

    Attributes:
        values: int64 or float32 array, or Strings.
        row_splits: int64 [n + 1], ascending from 0 to len(values).
    """

    values: NDArray[np.int64] | NDArray[np.float32] | Strings
    row_splits: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]] | Sequence[Sequence[str | bytes]]) -> Ragged:
        """Build from Python lists of ints, floats or strings; all-empty rows count as ints, mixed ones as floats.

        Ints become int64, or uint64 if one is 2**63 or more.
        """
        splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(r) for r in rows], out=splits[1:])
        flat = [v for row in rows for v in row]
        if flat and isinstance(flat[0], (str, bytes)):
            return cls(Strings.of(flat), splits)  # type: ignore[arg-type]
        floats = any(isinstance(v, (float, np.floating)) for v in flat)
        if floats:
            return cls(np.asarray(flat, np.float32), splits)
        numbers: NDArray[Any] = exact_array(flat)
        return cls(numbers if numbers.dtype == np.uint64 else np.asarray(flat, np.int64), splits)

    def __len__(self) -> int:
        return len(self.row_splits) - 1


def are_splits(splits: NDArray[Any], count: int) -> bool:
    """Report whether an array is the row_splits of `count` values: whole numbers, ascending from 0 to `count`."""
    if splits.dtype.kind not in "iu" or splits.ndim != 1 or len(splits) < 2:
        return False
    if len(splits) == 2:
        # One row, as most histories of a request are: numpy would take ten times as long.
        first, last = splits.tolist()
        return bool(first == 0 and last == count)
    # Compare neighbours, do not subtract them: a difference can wrap around to a positive number.
    return bool(splits[0] == 0 and splits[-1] == count and (splits[1:] >= splits[:-1]).all())


Column = NDArray[np.int64] | NDArray[np.float32] | Strings | Ragged
"""One feature's values for n rows."""


def equal_strings(strings: Strings, word: bytes) -> NDArray[np.bool_]:
    """Return which strings equal a word."""
    same: NDArray[np.bool_] = np.diff(strings.offsets) == len(word)
    at = strings.offsets[:-1][same]
    letters = np.frombuffer(word, np.uint8)
    same[same] = (strings.data[at[:, None] + np.arange(len(word))] == letters).all(axis=1)
    return same


def exact_array(values: Any) -> NDArray[Any]:
    """Return numpy's array of values, with integers to the bit: numpy itself makes floats of 1 and 2**63.

    Raises:
        ValueError: The values are rows of different lengths.
        OverflowError: Integers fit neither int64 nor uint64.
    """
    array = np.asarray(values)
    if isinstance(values, np.ndarray) or array.dtype.kind not in "Of" or not array.size:
        return array
    if array.dtype.kind == "f" and not array.max() >= 2**63:
        return array
    objects = np.array(values, object)
    whole = all(isinstance(value, (int, np.integer)) for value in objects.flat)
    return objects.astype(np.uint64) if whole else array


def first_value(column: Column | None) -> bytes | None:
    """Return the bytes of the first value of the first row; None if there is none."""
    if isinstance(column, Ragged):
        column = column.values
    if column is None or not len(column):
        return None
    if isinstance(column, Strings):
        return column.data[int(column.offsets[0]) : int(column.offsets[1])].tobytes()
    return column[:1].reshape(-1)[:1].tobytes()


def take_rows(column: Any, rows: NDArray[np.int64]) -> Any:
    """Return rows of a column as copies, in the order of `rows`."""
    if not isinstance(column, Strings | Ragged):
        return column[rows]
    bounds = column.offsets if isinstance(column, Strings) else column.row_splits
    starts = bounds[rows]
    lengths = bounds[rows + 1] - starts
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    # In place, and take() instead of an index: a fifth slower than a compiled loop.
    places = np.arange(ends[-1])
    places += np.repeat(starts - ends[:-1], lengths)
    if isinstance(column, Strings):
        # A view of some rows of a larger buffer keeps that buffer's offsets.
        return Strings(column.data.take(places), ends)
    return Ragged(take_rows(column.values, places), ends)


def slice_column(column: Column, first: int, last: int) -> Column:
    """Return rows [first, last) of a column without copying values."""
    if isinstance(column, Strings):
        return Strings(column.data, column.offsets[first : last + 1])
    if isinstance(column, Ragged):
        splits = column.row_splits[first : last + 1]
        values = slice_column(column.values, int(splits[0]), int(splits[-1]))
        return Ragged(values, splits - splits[0])  # type: ignore[arg-type]
    return column[first:last]


def join_columns(columns: Sequence[Any]) -> Any:
    """Concatenate the rows of columns of one kind."""
    if isinstance(columns[0], Ragged):
        values = join_columns([c.values for c in columns])
        lengths = np.concatenate([np.diff(c.row_splits) for c in columns])
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))
    if isinstance(columns[0], Strings):
        data = np.concatenate([c.data[c.offsets[0] : c.offsets[-1]] for c in columns])
        lengths = np.concatenate([np.diff(c.offsets) for c in columns])
        return Strings(data, np.concatenate([[0], np.cumsum(lengths)]))
    return np.concatenate(columns)


def nbytes_of(inputs: Mapping[str, Column]) -> int:
    """Return the memory of a request's values in bytes."""
    return inputs.places.nbytes if type(inputs) is PackedColumns else sum(map(_nbytes, inputs.values()))


def _nbytes(column: Column) -> int:
    if isinstance(column, Ragged):
        return _nbytes(column.values) + column.row_splits.nbytes
    if isinstance(column, Strings):
        return int(column.offsets[-1] - column.offsets[0]) + column.offsets.nbytes
    return column.nbytes


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A plain column of shape [rows] (`columns` 0) or [rows, columns], from byte `offset` of a buffer on."""

    name: str
    dtype: np.dtype[Any]
    rows: int
    columns: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class BufferLayout:
    """The positions of columns after a header, made once for a header and shared by all its requests.

    Equal only to itself, so that it can be a key for what is derived from it. `nbytes` is of all columns together.
    """

    columns: tuple[ColumnLayout, ...]
    nbytes: int


class PackedColumns(Mapping[str, Column]):
    """Columns in a buffer from byte `start` on; as a mapping, views of it (copies where the buffer is not aligned).

    The caller has checked that start + places.nbytes bytes exist.
    """

    __slots__ = ("buffer", "places", "start")

    def __init__(self, buffer: bytes, start: int, places: BufferLayout) -> None:
        self.buffer, self.start, self.places = buffer, start, places

    def __getitem__(self, name: str) -> Column:
        for place in self.places.columns:
            if place.name == name:
                count = place.rows * (place.columns or 1)
                view = np.frombuffer(self.buffer, place.dtype, count, self.start + place.offset)
                view = view if view.flags.aligned else view.copy()
                return view.reshape(place.rows, place.columns) if place.columns else view
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (place.name for place in self.places.columns)

    def __len__(self) -> int:
        return len(self.places.columns)
