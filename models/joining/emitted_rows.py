"""Which rows have been emitted, by the hash of their keys, so that outcomes that come late find them.

Of files of the joined folder: their keys' 64-bit hashes in ascending order, each one's file and row, and which rows
have become positives. Keys that nobody owns, as several requests had them, are there as well, of the file with which
their rows were left out. A hash may be another key's: who reads the row compares the key. The hashes' seed is this
process' own, so nobody can choose a key of another's hash.

Cost: 17 bytes a row. A lookup is a binary search of all keys at once in each run; a run is a file, or MERGED runs that
follow each other put together, twice over at most, so that a day of small files is a few dozen runs. A run is forgotten
as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.hashing import hash_strings

NOWHERE = -1
MERGED, MOST_MERGES = 16, 2


class RowLocation(NamedTuple):
    """A row of a file of the joined folder, NOWHERE where it was left out. positive: it was a positive already when it
    was looked up."""

    file: int
    row: int
    positive: bool = False

    @property
    def disowned(self) -> bool:
        return self.row == NOWHERE


@dataclass(slots=True)
class _KeyRun:
    """Rows of a file, or of several that follow each other; of one hash that of the newest file is first. merges: how
    often it was put together."""

    newest_s: float
    hashes: NDArray[np.int64]
    files: NDArray[np.int32]
    rows: NDArray[np.int32]
    positive: NDArray[np.bool_]
    merges: int = 0


class EmittedRows:
    """The rows of the last while."""

    def __init__(self) -> None:
        self._runs: list[_KeyRun] = []
        self._seed = secrets.randbits(64)

    def __len__(self) -> int:
        return sum(len(run.rows) for run in tuple(self._runs))

    def add(
        self,
        file: int,
        keys: Sequence[bytes],
        rows: NDArray[np.int64],
        positive: NDArray[np.bool_],
        newest_s: float,
    ) -> None:
        """Adds the rows of a file, which is newer than all that were added.

        Args:
            file: its number.
            keys: of its rows, and those that nobody owns.
            rows: which row each key is, or NOWHERE.
            positive: which of them are positives, bool [n].
            newest_s: the time of its newest row.
        """
        self._runs.append(_sorted(newest_s, self._hashes(keys), np.full(len(keys), file), rows, positive))
        while len(last := self._runs[-MERGED:]) == MERGED and last[0].merges == last[-1].merges < MOST_MERGES:
            self._runs[-MERGED:] = [_merged(last)]

    def find(self, keys: Sequence[bytes]) -> list[RowLocation | None]:
        """Where each key was emitted, None where it was not; what is found is a positive from then on."""
        return self._search(keys, True)

    def places(self, keys: Sequence[bytes]) -> list[RowLocation | None]:
        """As find(), and nothing changes."""
        return self._search(keys, False)

    def forget(self, before_s: float) -> None:
        """Drops runs whose rows are all older than that."""
        self._runs = [run for run in self._runs if run.newest_s >= before_s]

    def _search(self, keys: Sequence[bytes], taken: bool) -> list[RowLocation | None]:
        places: list[RowLocation | None] = [None] * len(keys)
        left, hashes = np.arange(len(keys)), self._hashes(keys)
        for run in reversed(self._runs):
            if not len(left):
                break
            at = np.searchsorted(run.hashes, hashes[left])
            found = at < len(run.hashes)
            found[found] = run.hashes[at[found]] == hashes[left[found]]
            for key, position in zip(left[found].tolist(), at[found].tolist()):
                places[key] = RowLocation(
                    int(run.files[position]), int(run.rows[position]), bool(run.positive[position])
                )
                run.positive[position] |= taken
            left = left[~found]
        return places

    def _hashes(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        ends = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=ends[1:])
        strings = Strings(np.frombuffer(b"".join(keys), np.uint8), ends)
        hashes: NDArray[np.int64] = hash_strings(strings, self._seed)
        return hashes


def _merged(runs: Sequence[_KeyRun]) -> _KeyRun:
    """Of runs that follow each other, the newest last."""
    newest_first = runs[::-1]
    hashes, files, rows, positive = (
        np.concatenate([getattr(run, name) for run in newest_first]) for name in ("hashes", "files", "rows", "positive")
    )
    return _sorted(max(run.newest_s for run in runs), hashes, files, rows, positive, runs[0].merges + 1)


def _sorted(
    newest_s: float,
    hashes: NDArray[np.int64],
    files: NDArray[Any],
    rows: NDArray[Any],
    positive: NDArray[np.bool_],
    merges: int = 0,
) -> _KeyRun:
    order = np.argsort(hashes, kind="stable")
    return _KeyRun(
        newest_s, hashes[order], files[order].astype(np.int32), rows[order].astype(np.int32), positive[order], merges
    )
