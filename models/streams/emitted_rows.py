"""Index emitted rows by the hash of their keys, so that late outcomes find them.

For each file of the joined folder the index holds the 64-bit hashes of its keys in ascending order, each key's file and
row, and a flag for rows that have become positives. Disowned keys are included, with the file that left their rows out.
Two keys may share a hash, so a reader of the row must compare the key. The hash seed is private to the process, so
clients cannot construct collisions.

Cost: 17 bytes a row. A lookup is one binary search for all keys in each run. A run is one file, or MERGED consecutive
runs merged, at most twice over, so a day of small files is a few dozen runs. Runs are dropped as a whole.
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
    """A row of a file of the joined folder: NOWHERE if it was left out, and if it was a positive at lookup."""

    file: int
    row: int
    positive: bool = False

    @property
    def disowned(self) -> bool:
        return self.row == NOWHERE


@dataclass(slots=True)
class _KeyRun:
    """Rows of one file or of several consecutive files, by ascending hash; of equal ones the newest file first."""

    newest_s: float
    hashes: NDArray[np.int64]
    files: NDArray[np.int32]
    rows: NDArray[np.int32]
    positive: NDArray[np.bool_]
    merges: int = 0


class EmittedRows:
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
        """Add the rows of a file, which must be newer than all files added before.

        Args:
            keys: Keys of its rows, and disowned keys.
            rows: Row of each key, or NOWHERE.
            positive: bool [n].
            newest_s: Time of its newest row.
        """
        self._runs.append(_sorted(newest_s, self._hashes(keys), np.full(len(keys), file), rows, positive))
        while len(last := self._runs[-MERGED:]) == MERGED and last[0].merges == last[-1].merges < MOST_MERGES:
            self._runs[-MERGED:] = [_merged(last)]

    def forget(self, before_s: float) -> None:
        """Drop runs whose rows are all older than before_s."""
        self._runs = [run for run in self._runs if run.newest_s >= before_s]

    def find(self, keys: Sequence[bytes], taken: bool = False) -> list[RowLocation | None]:
        """Look up each key; None for one that was not emitted. Rows that are `taken` are positives from then on."""
        places: list[RowLocation | None] = [None] * len(keys)
        left, hashes = np.arange(len(keys)), self._hashes(keys)
        for run in reversed(self._runs):
            if not len(left):
                break
            at = np.searchsorted(run.hashes, hashes[left])
            hit = at < len(run.hashes)
            hit[hit] = run.hashes[at[hit]] == hashes[left[hit]]
            for key, position in zip(left[hit].tolist(), at[hit].tolist()):
                places[key] = RowLocation(
                    int(run.files[position]), int(run.rows[position]), bool(run.positive[position])
                )
                run.positive[position] |= taken
            left = left[~hit]
        return places

    def _hashes(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        ends = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=ends[1:])
        strings = Strings(np.frombuffer(b"".join(keys), np.uint8), ends)
        hashes: NDArray[np.int64] = hash_strings(strings, self._seed)
        return hashes


def _merged(runs: Sequence[_KeyRun]) -> _KeyRun:
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
