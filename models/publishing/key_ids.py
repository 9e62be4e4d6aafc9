"""Keys of a table as int64 ids, however a trainer holds them: integers as they are, strings hashed as serving does.

Without Numba: the one dependency is xxhash, and of tables that are keyed by strings alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.package import Manifest

Int64s = NDArray[np.int64]
WORDS = ("string", "strings")


def takes_strings(manifest: Manifest, table: str) -> bool:
    """Whether a table is fed by features of strings; one that is fed by both kinds counts as one of strings."""
    return any(f.kind in WORDS for f in manifest.features if f.table == table)


def takes_integers(manifest: Manifest, table: str) -> bool:
    """Whether a table is fed by features of integers, or by no feature."""
    kinds = {f.kind for f in manifest.features if f.table == table}
    return not kinds or any(kind not in WORDS for kind in kinds)


def as_ids(manifest: Manifest, table: str, keys: Any) -> Int64s:
    """int64 [n] of n keys: an array or sequence of integers, or of str or bytes, or Strings.

    Raises BadInput for strings where a table's features are integers, for integers where they are strings, and for what
    is neither.
    """
    if isinstance(keys, Strings):
        keys = keys.tolist()
    array = np.asarray(keys) if not isinstance(keys, (list, tuple)) else _array(keys)
    if array.ndim != 1:
        raise BadInput(f"table {table!r}: keys of shape [n] wanted, got {list(array.shape)}")
    if not len(array):
        return np.empty(0, np.int64)
    if array.dtype.kind in "iu":
        if not takes_integers(manifest, table):
            raise BadInput(f"table {table!r}: keys as strings wanted, as its features are strings, got {array.dtype}")
        if array.dtype == np.uint64 and bool((array > np.uint64(2**63 - 1)).any()):
            raise BadInput(f"table {table!r}: keys of 64 bits with a sign wanted, got {int(array.max())}")
        return np.ascontiguousarray(array, np.int64)
    words = array.tolist()
    if array.dtype.kind in "SUO" and all(isinstance(word, (str, bytes)) for word in words):
        if not takes_strings(manifest, table):
            raise BadInput(
                f"table {table!r}: keys as integers wanted, as its features are integers, got {words[0]!r:.64}"
            )
        return hashed(words, manifest.table(table).hash_seed)
    raise BadInput(f"table {table!r}: keys as integers, str or bytes wanted, got {array.dtype}")


def hashed(words: list[str | bytes], seed: int) -> Int64s:
    """int64 [n]: xxh3_64 of each string's UTF-8 bytes with a table's seed (processor.kernels.hashing.hash_strings)."""
    try:
        import xxhash
    except ImportError:
        raise NotReady("publisher: tables keyed by strings need the package xxhash: pip install xxhash") from None
    digest = xxhash.xxh3_64_intdigest
    parts = [digest(word.encode() if isinstance(word, str) else word, seed) for word in words]
    return np.array(parts, np.uint64).view(np.int64)


def _array(keys: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    """A list as an array, in which no number becomes a string and no string loses its last zeros."""
    if any(isinstance(key, (str, bytes)) for key in keys):
        array = np.empty(len(keys), object)
        array[:] = keys
        return array
    try:
        return np.asarray(keys)
    except (ValueError, OverflowError):
        return np.empty(len(keys), object)
