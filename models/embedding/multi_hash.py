"""Hashed tables: when a table has fewer rows than ids, and which keys an id has then (processor.features.key_codes).

A table that says nothing has a row an id and grows. One with hash_rows has that many rows at most, and where it does
not say how, choice() does, by how many ids there are. An id has several rows, which are added up.

Refused: DeepRec's other ways to put rows together. Concatenated ones are narrower for the same bytes and tell ids apart
no better; products have no gradient where a row is near zero, which is where rows begin.
"""

from __future__ import annotations

from freshet_serving.processor.package import Transform

NO_HASH = "none"
MOST_CODES = 16
USUAL_KEYS = 2
CODE_BITS = 40
"""A code of so many bits, chosen at random, is another one for each of a million ids with a chance of two in three."""
MOST_ALIKE = 0.01


def choice(ids: float, rows: int) -> str:
    """How a table of at most `rows` rows is hashed for so many different ids.

    none         while there is a row for each id
    k_way        two rows an id, while of 100 ids no more than one is expected to share both with another
    binary_code  otherwise: more rows an id, so that few share all of theirs
    """
    if ids <= rows:
        return NO_HASH
    each = rows // USUAL_KEYS
    return "k_way" if ids / each**USUAL_KEYS <= MOST_ALIKE else "binary_code"


def key_transform(name: str, column: str, seed: int, how: str, rows: int, keys: int = 0) -> Transform:
    """The transform of a column's values into the keys of a table of at most `rows` rows. seed: of strings' xxh3_64.

    keys: of a value; 0: two of k_way; of binary_code as few as make CODE_BITS, or else the longest code.
    """
    if how == "quotient_remainder":
        sizes = [rows - rows // 2, rows // 2]
    elif how == "k_way":
        keys = keys or USUAL_KEYS
        sizes = [rows // keys, keys]
    else:
        keys = keys or _fewest_keys(rows)
        sizes = [min(_bits(rows, keys), 64 // keys), keys]
    return Transform(name, how, [column], [seed, *sizes])


def _bits(rows: int, keys: int) -> int:
    """Of each of `keys` pieces that have rows of their own."""
    return min(31, (rows // keys).bit_length() - 1)


def _fewest_keys(rows: int) -> int:
    """That make a code of CODE_BITS, or else the longest that there can be."""
    bits = {keys: keys * _bits(rows, keys) for keys in range(1, min(MOST_CODES, rows // 2) + 1)}
    enough = min(CODE_BITS, max(bits.values()))
    return min(keys for keys, wide in bits.items() if wide >= enough)
