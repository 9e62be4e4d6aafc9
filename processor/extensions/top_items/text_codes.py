"""Numbers for texts: the same text has the same code for good, and two texts never share one.

Texts are found by a hash of 64 bits, which is not enough to be exact: a seller can write a text whose hash is that of
another brand. So each code has its text beside it, and a text is compared with it, byte by byte, before it gets the
code (as in the dictionaries of columnar stores). A text whose hash another text has already gets no code at all
(COLLIDES): its item's position stays stale (filter_columns), so that its record is read: slow, never wrong.

Layout. Texts lie one after another; text i is [offsets[i], offsets[i + 1]). The index has levels: level l has room for
FIRST * 4**l texts, and one is filled after the other. So nothing moves, and memory is taken as it is used: other
processes map the arrays once.

One writer adds. Readers find texts meanwhile; a text that is being added is found or is not.

Invariants
- A text's bytes are there before its code can be found.
- Codes are 0, 1, ... in the order in which texts were added. The empty text has MISSING for its code.
"""

# mypy: ignore-errors

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import first_of
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.pointers import store_release
from freshet_serving.processor.memory import reserve

MISSING, COLLIDES = -1, -2
FIRST, LEVELS = 3072, 8
MAX_TEXTS = FIRST * (4**LEVELS - 1) // 3
MAX_NBYTES = 1 << 32

ENTRIES = FIRST * 4 // 3
"""Entries of the first level: three quarters of them are used."""


@kernel(
    nb.void(
        nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.types.Array(nb.int64, 1, "C", readonly=True),
        nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.types.Array(nb.int64, 1, "C", readonly=True), nb.int64[::1],
    )
)  # fmt: skip
def keep_equal(data, offsets, texts, text_offsets, codes):
    """Replace the code of each string that is not the code's text by COLLIDES; strings and texts have offsets."""
    for i in range(len(codes)):
        code = codes[i]
        if code < 0:
            continue
        at, other = offsets[i], text_offsets[code]
        same = offsets[i + 1] - at == text_offsets[code + 1] - other
        j = 0
        while same and j < offsets[i + 1] - at:
            same = data[at + j] == texts[other + j]
            j += 1
        if not same:
            codes[i] = COLLIDES


@kernel(nb.void(nb.int64[:, ::1], nb.int64[::1], nb.int64))
def give_codes(index, entries, first):
    """Give entries of an index, int64 [capacity, 2], codes, from a first one on."""
    at = np.int64(index.ctypes.data)
    for i in range(len(entries)):
        store_release(at + 16 * entries[i] + 8, first + i)


class TextCodes:
    """Codes of texts. `arrays` are what readers map."""

    def __init__(self, arrays: dict[str, NDArray]) -> None:
        self.arrays = arrays
        self._texts, self._offsets = arrays["text_bytes"], arrays["text_offsets"]
        self._index, self._count = arrays["text_index"], arrays["text_count"]

    @classmethod
    def reserved(cls, name: str, most: int = MAX_TEXTS, most_nbytes: int = MAX_NBYTES) -> TextCodes:
        """Return codes of no text, in memory that other processes can map; `name` is the memory's in the system."""
        levels = first_of(n for n in range(1, LEVELS + 1) if _before(n) >= min(most, MAX_TEXTS))
        entries = _start(levels)
        return cls(
            {
                "text_bytes": reserve(most_nbytes, f"texts-{name}")[:most_nbytes],
                "text_offsets": reserve(8 * (most + 1), f"text-offsets-{name}").view(np.int64)[: most + 1],
                "text_index": reserve(16 * entries, f"text-index-{name}").view(np.int64)[: 2 * entries].reshape(-1, 2),
                "text_count": reserve(8, f"text-count-{name}").view(np.int64)[:1],
            }
        )

    def __len__(self) -> int:
        return int(self._count[0])

    @property
    def nbytes(self) -> int:
        """Bytes that are in use."""
        count, levels = len(self), self._levels()
        return int(self._offsets[count]) + 8 * count + 16 * (_start(levels) if count else 0)

    def find(self, strings: Strings) -> NDArray[np.int64]:
        """Return the code of each string, int64 [n]; MISSING for empty and unknown ones, COLLIDES for those without."""
        codes = self._found(np.asarray(hash_strings(strings, 0)))
        self._compare(strings, codes)
        return codes

    def add(self, strings: Strings) -> NDArray[np.int64]:
        """Return the code of each string as find() does, and give those without one a code.

        Raises MemoryError if there is no room for them; some may have been added.
        """
        hashes = np.asarray(hash_strings(strings, 0))
        codes = self._found(hashes)
        left = np.flatnonzero((codes < 0) & (np.diff(strings.offsets) > 0))
        if len(left):
            _, first = np.unique(hashes[left], return_index=True)
            self._append(strings, left[np.sort(first)], hashes)
            codes = self._found(hashes)
        self._compare(strings, codes)
        return codes

    def _compare(self, strings: Strings, codes: NDArray[np.int64]) -> None:
        offsets = np.ascontiguousarray(strings.offsets)
        keep_equal(np.ascontiguousarray(strings.data), offsets, self._texts, self._offsets, codes)
        codes[np.diff(offsets) == 0] = MISSING

    def _found(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        codes = np.full(len(hashes), MISSING, np.int64)
        left = np.arange(len(hashes))
        for level in range(self._levels()):
            part = self._level(level)
            refs = np.empty(len(left), np.int64)
            hash_index.find(part.ctypes.data, len(part), np.ascontiguousarray(hashes[left]), refs)
            # A text that is being added may have an entry and no code.
            codes[left[refs >= 0]] = refs[refs >= 0]
            left = left[refs < 0]
        return codes

    def _append(self, strings: Strings, rows: NDArray[np.int64], hashes: NDArray[np.int64]) -> None:
        lengths = np.diff(strings.offsets)[rows]
        count, used = len(self), int(self._offsets[len(self)])
        if count + len(rows) >= len(self._offsets) or used + int(lengths.sum()) > len(self._texts):
            raise MemoryError("no room for further texts")
        ends = used + np.cumsum(lengths)
        source = np.repeat(strings.offsets[:-1][rows] - (ends - lengths), lengths) + np.arange(
            used, used + lengths.sum()
        )
        self._texts[used : used + len(source)] = strings.data[source]
        self._offsets[count + 1 : count + 1 + len(rows)] = ends
        while len(rows):
            level = first_of(n for n in range(LEVELS) if _before(n + 1) > count)
            part, room = self._level(level), _before(level + 1) - count
            if count == _before(level):
                part[:, 1] = hash_index.EMPTY
            of_part, rows = rows[:room], rows[room:]
            entries = np.empty(len(of_part), np.int64)
            # Readers look at a level once there are texts for it.
            hash_index.claim(part.ctypes.data, len(part), np.ascontiguousarray(hashes[of_part]), entries)
            give_codes(part, entries, count)
            count += len(of_part)
            self._count[0] = count

    def _levels(self) -> int:
        count = len(self)
        return next((n for n in range(LEVELS) if _before(n) >= count), LEVELS)

    def _level(self, level: int) -> NDArray[np.int64]:
        return self._index[_start(level) : _start(level + 1)]


def codes_of(texts: tuple[bytes, ...]) -> TextCodes:
    """Return codes of a few texts, in memory of this process."""
    strings = Strings.of(list(texts))
    levels = first_of(n for n in range(1, LEVELS + 1) if _before(n) >= len(strings))
    codes = TextCodes(
        {
            "text_bytes": np.empty(len(strings.data), np.uint8),
            "text_offsets": np.zeros(len(strings) + 1, np.int64),
            "text_index": np.empty((_start(levels), 2), np.int64),
            "text_count": np.zeros(1, np.int64),
        }
    )
    codes.add(strings)
    return codes


def _before(level: int) -> int:
    return FIRST * (4**level - 1) // 3


def _start(level: int) -> int:
    return ENTRIES * (4**level - 1) // 3
