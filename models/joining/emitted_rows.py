"""Which rows have been emitted, by the hash of their keys, so that outcomes that come late find them.

Of each file of the joined folder: its keys' 64-bit hashes in ascending order, each one's row, and which rows have
become positives. A hash may be another key's: who reads the row compares the key. Cost: 13 bytes a row; a lookup is a
binary search in every file, newest first, of all keys at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.columns import Strings
from processor.kernels.hashing import hash_strings


class RowPlace(NamedTuple):
    """A row of a file of the joined folder. positive: it was a positive already when it was looked up."""

    file: int
    row: int
    positive: bool = False


@dataclass(slots=True)
class _Emitted:
    newest_s: float
    hashes: NDArray[np.int64]
    rows: NDArray[np.int32]
    positive: NDArray[np.bool_]


class EmittedRows:
    """The rows of the last while."""

    def __init__(self) -> None:
        self._files: dict[int, _Emitted] = {}

    def __len__(self) -> int:
        return sum(len(file.rows) for file in tuple(self._files.values()))

    def add(
        self,
        file: int,
        keys: Sequence[bytes],
        rows: NDArray[np.int64],
        positive: NDArray[np.bool_],
        newest_s: float,
    ) -> None:
        """Rows of a file. rows: which one each key is; positive: bool [n]; newest_s: the newest row's time."""
        hashes = _hashes(keys)
        order = np.argsort(hashes, kind="stable")
        self._files[file] = _Emitted(newest_s, hashes[order], rows[order].astype(np.int32), positive[order])

    def find(self, keys: Sequence[bytes]) -> list[RowPlace | None]:
        """Where each key was emitted, None for nowhere; what is found is a positive from then on."""
        places: list[RowPlace | None] = [None] * len(keys)
        left, hashes = np.arange(len(keys)), _hashes(keys)
        for number in sorted(self._files, reverse=True):
            if not len(left):
                break
            file = self._files[number]
            at = np.searchsorted(file.hashes, hashes[left])
            found = at < len(file.hashes)
            found[found] = file.hashes[at[found]] == hashes[left[found]]
            for key, position in zip(left[found].tolist(), at[found].tolist()):
                places[key] = RowPlace(number, int(file.rows[position]), bool(file.positive[position]))
                file.positive[position] = True
            left = left[~found]
        return places

    def forget(self, before_s: float) -> None:
        """Drops files whose rows are all older than that."""
        for number in [n for n, file in self._files.items() if file.newest_s < before_s]:
            del self._files[number]


def _hashes(keys: Sequence[bytes]) -> NDArray[np.int64]:
    ends = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(key) for key in keys], out=ends[1:])
    hashes: NDArray[np.int64] = hash_strings(Strings(np.frombuffer(b"".join(keys), np.uint8), ends), 0)
    return hashes
