"""Choose how a table with fewer rows than ids is hashed, and the keys of an id (processor.features.key_codes).

By default a table has a row for each id and grows; with hash_rows it has at most so many, and an id has several rows,
which are summed. To everything else it is an ordinary table: a transform in the manifest turns a value into keys. An
older server refuses that manifest by the transform's name.

Rejected: DeepRec's other ways to combine rows. Concatenated rows are narrower for the same bytes and distinguish ids no
better. Products have no gradient where a row is near zero, which is where rows start.
"""

from __future__ import annotations

from freshet_serving.processor.package import Transform

NO_HASH = "none"
MOST_CODES = 16
USUAL_KEYS = 2
CODE_BITS = 40
"""Random codes of so many bits leave a million ids distinct with a probability of two in three."""
MOST_ALIKE = 0.01


def choice(ids: float, rows: int) -> str:
    """Choose how a table is hashed.

    none         while there is a row for each id
    k_way        two rows an id, while at most one of 100 ids is expected to share both with another
    binary_code  otherwise: more rows an id, so that few ids share all of theirs
    """
    if ids <= rows:
        return NO_HASH
    each = rows // USUAL_KEYS
    return "k_way" if ids / each**USUAL_KEYS <= MOST_ALIKE else "binary_code"


def key_transform(name: str, column: str, seed: int, how: str, rows: int, keys: int = 0) -> Transform:
    """Return the transform of a column's values into the keys of a table.

    Args:
        seed: Seed of xxh3_64, which hashes strings.
        how: "quotient_remainder", "k_way" or "binary_code".
        rows: Maximum number of rows of the table.
        keys: Number of keys of a value; 0 for two of k_way, and for the fewest of binary_code that make CODE_BITS or,
            if none do, the longest code.
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
    """Return the bits of each of `keys` pieces, which have their own rows."""
    return min(31, (rows // keys).bit_length() - 1)


def _fewest_keys(rows: int) -> int:
    """Return the smallest number of keys for a code of CODE_BITS, or the longest possible code."""
    bits = {keys: keys * _bits(rows, keys) for keys in range(1, min(MOST_CODES, rows // 2) + 1)}
    enough = min(CODE_BITS, max(bits.values()))
    return min(keys for keys, wide in bits.items() if wide >= enough)
