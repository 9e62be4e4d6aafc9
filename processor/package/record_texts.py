"""Texts of records: the strings of an entity's columns as they were given, behind what the sparse graph reads.

A record's texts are int32 words: for each column the number of its strings, then the length in bytes of each string,
column by column, then the bytes, and zeros. So strings of any number and length fit, up to the words that there are. A
record whose texts are longer has NOT_KEPT in their place: no score needs them.

Invariants
- The words depend on the strings alone.
- Readers check before they read: a record from a file may hold anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput

NOT_KEPT = -1
BLOCK_ROWS = 4096
"""Rows that are packed at a time: placing bytes takes memory of 16 times their size."""
Int64s = NDArray[np.int64]
Words = NDArray[np.int32]


class TextColumn(NamedTuple):
    """A column of records with so many strings a row; 0 for a list, of which the first `most` are kept (0: all)."""

    name: str
    strings: int
    most: int = 0


def text_nbytes(columns: Sequence[Column], described: Sequence[TextColumn], rows: int) -> int:
    """Return the bytes of the longest texts of a row; `described` are the columns in the order of the record."""
    longest = 0
    for first in range(0, rows, BLOCK_ROWS):
        _, counts, lengths, _ = _strings(columns, described, first, min(rows, first + BLOCK_ROWS))
        longest = max(longest, int(_nbytes(counts, lengths).max(initial=0)))
    return longest


def pack_texts(columns: Sequence[Column], described: Sequence[TextColumn], words: Words) -> None:
    """Write the texts of all rows, as far as they fit, into zeros, int32 [rows, words]."""
    capacity = 4 * words.shape[1]
    for first in range(0, len(words), BLOCK_ROWS):
        block = np.zeros(words[first : first + BLOCK_ROWS].shape, np.int32)
        data, counts, lengths, starts = _strings(columns, described, first, first + len(block))
        fits = _nbytes(counts, lengths) <= capacity
        block[~fits, 0] = NOT_KEPT
        row, place, at = _places(counts, lengths)
        fitting = fits[row]
        row, place, at = row[fitting], place[fitting], at[fitting]
        lengths, starts = lengths[fitting], starts[fitting]
        block[fits, : len(described)] = counts[fits]
        block[row, len(described) + place] = lengths
        within = np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)
        source, target = np.repeat(starts, lengths) + within, np.repeat(row * capacity + at, lengths) + within
        block.view(np.uint8).reshape(-1)[target] = data[source]
        words[first : first + len(block)] = block


def check_texts(words: Words, described: Sequence[TextColumn], where: str) -> None:
    """Raise BadInput, which names `where`, for texts, int32 [rows, words], that pack_texts() does not write."""
    for first in range(0, len(words), BLOCK_ROWS):
        _check_block(words[first : first + BLOCK_ROWS], described, where)


def _check_block(words: Words, described: Sequence[TextColumn], where: str) -> None:
    wide, most = len(described), words.shape[1]
    if most < wide:
        raise BadInput(f"{where}: expected texts of {wide} columns, got {most} words")
    has_texts = words[:, 0] != NOT_KEPT
    if words[~has_texts, 1:].any():
        raise BadInput(f"{where}: expected zeros in place of texts that are not kept")
    words = words[has_texts]
    counts = words[:, :wide].astype(np.int64)
    fixed = np.array([c.strings for c in described], np.int64)
    wrong = (counts < 0) | (counts > most) | ((fixed > 0) & (counts != fixed))
    strings = counts.sum(axis=1)
    if wrong.any() or (wide + strings > most).any():
        raise BadInput(f"{where}: expected texts that pack_texts() writes, got other numbers of strings")
    lengths = words[:, wide:].astype(np.int64)
    counted = np.arange(lengths.shape[1]) < strings[:, None]
    total = np.where(counted, lengths, 0).sum(axis=1)
    if (counted & (lengths < 0)).any() or (4 * (wide + strings) + total > 4 * most).any():
        raise BadInput(f"{where}: expected texts that pack_texts() writes, got other lengths of strings")


def unpack_texts(words: Words, described: Sequence[TextColumn], where: str) -> list[Column] | None:
    """Return the columns of texts, int32 [rows, words]; None if a record's are not kept. Raises as check_texts()."""
    words = np.ascontiguousarray(words)
    check_texts(words, described, where)
    if (words[:, 0] == NOT_KEPT).any():
        return None
    wide, capacity = len(described), 4 * words.shape[1]
    counts = words[:, :wide].astype(np.int64)
    row, place = _rows_and_places(counts)
    lengths = words[row, wide + place].astype(np.int64)
    row, place, at = _places(counts, lengths)
    owner = np.repeat(np.tile(np.arange(wide), len(words)), counts.reshape(-1))
    data = words.view(np.uint8).reshape(-1)
    columns: list[Column] = []
    for n, column in enumerate(described):
        of_column = owner == n
        sizes, starts = lengths[of_column], row[of_column] * capacity + at[of_column]
        offsets = np.append(_starts(sizes), sizes.sum())
        taken = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        strings = Strings(data[taken], offsets)
        columns.append(strings if column.strings else Ragged(strings, np.append(0, np.cumsum(counts[:, n]))))
    return columns


def _strings(
    columns: Sequence[Column], described: Sequence[TextColumn], first: int, last: int
) -> tuple[NDArray[np.uint8], Int64s, Int64s, Int64s]:
    """Return bytes, numbers of strings by row and column, and lengths and starts of the strings, row by row."""
    counts = np.zeros((last - first, len(described)), np.int64)
    rows, lengths, starts, parts, before = [], [], [], [], 0
    for n, (column, described_) in enumerate(zip(columns, described)):
        if isinstance(column, Ragged):
            splits = np.asarray(column.row_splits, np.int64)[first : last + 1]
            number = np.diff(splits)
            number = np.minimum(number, described_.most) if described_.most else number
            strings = column.values
        else:
            number = np.full(last - first, described_.strings)
            splits = described_.strings * np.arange(first, last + 1)
            strings = column
        assert isinstance(strings, Strings)
        counts[:, n] = number
        row = np.repeat(np.arange(last - first), number)
        which = np.repeat(splits[:-1] - _starts(number), number) + np.arange(number.sum())
        begin = strings.offsets[which]
        rows.append(row)
        lengths.append(strings.offsets[which + 1] - begin)
        low, high = (int(strings.offsets[splits[0]]), int(strings.offsets[splits[-1]])) if len(number) else (0, 0)
        starts.append(begin - low + before)
        parts.append(strings.data[low:high])
        before += high - low
    order = np.argsort(np.concatenate(rows), kind="stable")
    return np.concatenate(parts), counts, np.concatenate(lengths)[order], np.concatenate(starts)[order]


def _starts(lengths: Int64s) -> Int64s:
    """Return where each of some parts that lie end to end begins."""
    starts: Int64s = np.cumsum(lengths) - lengths
    return starts


def _rows_and_places(counts: Int64s) -> tuple[Int64s, Int64s]:
    """Return the row of each string, and its number in the row."""
    strings = counts.sum(axis=1)
    row = np.repeat(np.arange(len(counts)), strings)
    return row, np.arange(len(row)) - np.repeat(_starts(strings), strings)


def _places(counts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the row of each string, its number in the row, and where its bytes begin in the row's."""
    row, place = _rows_and_places(counts)
    strings = counts.sum(axis=1)
    within = _starts(lengths)
    first = np.append(within, lengths.sum())[_starts(strings)]
    at = 4 * (counts.shape[1] + strings)[row] + within - first[row]
    return row, place, at


def _nbytes(counts: Int64s, lengths: Int64s) -> Int64s:
    row, _ = _rows_and_places(counts)
    texts: Int64s = np.bincount(row, lengths, len(counts)).astype(np.int64)
    texts += 4 * (counts.shape[1] + counts.sum(axis=1))
    return texts
