"""Texts by number, as they come: users' keys, and the distinct values of columns of strings."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings, join_columns, take_rows

Int64s = NDArray[np.int64]

FIRST_NBYTES, TAKEN_TEXTS = 1024, 1 << 14
ENTRY_NBYTES = 150
"""Bytes of a text that is looked up, and of its number."""


class NumberedTexts:
    """Texts end to end, numbered as they come; number 0 is the empty text."""

    def __init__(self) -> None:
        self._data: NDArray[np.uint8] = np.zeros(FIRST_NBYTES, np.uint8)
        self._offsets: Int64s = np.zeros(FIRST_NBYTES, np.int64)
        self._count = 1

    def __len__(self) -> int:
        """Return how many texts there are, the empty one not among them."""
        return self._count - 1

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + self._offsets.nbytes

    def append(self, texts: Strings) -> Int64s:
        """Add texts, each with a number of its own; return the numbers."""
        first, count = self._count, len(texts)
        lengths = np.diff(texts.offsets)
        start, nbytes = int(self._offsets[first]), int(lengths.sum())
        self._offsets = _longer(self._offsets, first + count + 1)
        self._data = _longer(self._data, start + nbytes)
        self._data[start : start + nbytes] = texts.data[texts.offsets[0] : texts.offsets[-1]]
        self._offsets[first + 1 : first + count + 1] = start + np.cumsum(lengths)
        self._count += count
        return np.arange(first, first + count)

    def take(self, numbers: Int64s) -> Strings:
        texts = Strings(self._data, self._offsets[: self._count + 1])
        if len(numbers) <= TAKEN_TEXTS:
            return cast(Strings, take_rows(texts, numbers))
        # Places of all their bytes, at once, would be eight times as large.
        parts = [take_rows(texts, numbers[at : at + TAKEN_TEXTS]) for at in range(0, len(numbers), TAKEN_TEXTS)]
        return cast(Strings, join_columns(parts))

    def since(self, first: int) -> Strings:
        offsets = self._offsets[first + 1 : self._count + 1]
        return Strings(self._data[offsets[0] : offsets[-1]].copy(), offsets - offsets[0])


class DistinctTexts(NumberedTexts):
    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[bytes, int] = {}

    @property
    def nbytes(self) -> int:
        return super().nbytes + ENTRY_NBYTES * len(self._numbers)

    def numbers(self, column: Strings, rows: Int64s) -> Int64s:
        """Return the numbers of rows of a column, new ones for new texts."""
        return np.array([self._number(text) for text in take_rows(column, rows).tolist()], np.int64)

    def extend(self, texts: Strings) -> None:
        """Add texts that have the next numbers."""
        for text in texts.tolist():
            self._number(text)

    def _number(self, text: bytes) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = int(self.append(Strings.of([text]))[0])
        return number


def _longer(array: NDArray[Any], size: int) -> NDArray[Any]:
    if size <= len(array):
        return array
    longer = np.zeros(max(size, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer
