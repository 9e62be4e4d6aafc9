"""Columns of a network's inputs, and rows of them; needs only numpy, since every framework's process draws rows.

A request has what training has not: words and codes out of the vocabulary that it has not seen before, ids beyond the
table, empty lists, and lists longer than any that was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]
SPLITS = ":row_splits"
IDS, FREE, BAG, WORDS, TEXTS, CODES, FLOATS = "ids", "free", "bag", "words", "texts", "codes", "floats"
FIRST_CODE = 100
UNKNOWN_SHARE = 0.25
LENGTHS = (1, 3, 20)
TRAINED_LENGTHS = (2, 5, 9)


@dataclass(frozen=True, slots=True)
class Column:
    """One input of a network.

    Attributes:
        name: Its name.
        kind: IDS int64, FREE a matrix of ids of any length, BAG lists of ids, WORDS strings, TEXTS a matrix of strings
            of any length and CODES integers of a vocabulary, FLOATS float32.
        size: Number of ids, words or codes; of no meaning for floats.
        width: Columns of ids and floats; 0 for ids and words of shape [rows].
        beyond: Whether requests have ids that the table lacks. The framework gets id 0 for them, whose row is zeros.
    """

    name: str
    kind: str = IDS
    size: int = 50
    width: int = 0
    beyond: bool = False


def words_of(column: Column) -> list[str]:
    """Return the vocabulary of a column of words."""
    return [f"{column.name}-{number}" for number in range(column.size)]


def codes_of(column: Column) -> list[int]:
    """Return the vocabulary of a column of codes."""
    return list(range(FIRST_CODE, FIRST_CODE + column.size))


def draw(column: Column, rows: int, length: int, random: np.random.Generator, request: bool) -> Arrays:
    """Draw rows of a column.

    Args:
        column: The column.
        rows: Number of rows.
        length: Length of lists of free length; lists of a bag have 0 to `length` ids.
        random: Where they are drawn from.
        request: Whether they are asked of a server, and not trained on.

    Returns:
        The array by the column's name; of a bag also its row splits, int64 [rows + 1], by the name with SPLITS.
    """
    shape = (rows, length) if column.kind == TEXTS else (rows, column.width) if column.width else (rows,)
    if column.kind == FLOATS:
        return {column.name: random.standard_normal(shape).astype(np.float32)}
    if column.kind == FREE:
        numbers = random.integers(0, column.size, (rows, length))
        # The last is no padding: the mean of nothing, and attention to nothing, are no numbers.
        numbers[:, -1:] = np.maximum(numbers[:, -1:], 1)
        return {column.name: numbers}
    if column.kind == BAG:
        splits = np.append(0, np.cumsum(random.integers(0, length + 1, rows)))
        return {column.name: random.integers(0, column.size, splits[-1]), column.name + SPLITS: splits}
    numbers = random.integers(0, column.size, shape)
    if column.kind == IDS:
        if column.beyond and request:
            numbers = np.where(random.random(shape) < UNKNOWN_SHARE, column.size + numbers, numbers)
        return {column.name: numbers}
    # Words that are asked for are new each time, as a new user's are.
    unknown = random.random(shape) < UNKNOWN_SHARE
    strangers = random.integers(0, 1 << 30 if request else 5, shape)
    if column.kind == CODES:
        return {column.name: np.where(unknown, FIRST_CODE + column.size + strangers, FIRST_CODE + numbers)}
    known = np.array(words_of(column))[numbers]
    return {column.name: np.where(unknown, np.char.add("stranger-", strangers.astype(str)), known)}


def draw_all(columns: tuple[Column, ...], rows: int, length: int, random: np.random.Generator, request: bool) -> Arrays:
    """Draw rows of all columns; see draw()."""
    drawn: Arrays = {}
    for column in columns:
        drawn |= draw(column, rows, length, random, request)
    return drawn


def is_free(columns: tuple[Column, ...]) -> bool:
    """Return whether a column has lists of any length."""
    return any(column.kind in (FREE, BAG, TEXTS) for column in columns)


def request_lengths(columns: tuple[Column, ...], takes_none: bool) -> tuple[int, ...]:
    """Return the lengths of lists that requests have after each delta."""
    if not is_free(columns):
        return (1,)
    return (0, *LENGTHS) if takes_none else LENGTHS
