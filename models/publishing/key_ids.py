"""Convert a table's keys to int64 ids: integers unchanged, strings hashed as serving does.

Without Numba: the only dependency is xxhash, and only for tables keyed by strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings, exact_array
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.package import Manifest

Int64s = NDArray[np.int64]
WORDS = ("string", "strings")


def takes_strings(manifest: Manifest, table: str) -> bool:
    """Return True if string features feed a table, perhaps among others."""
    return (
        any(f.kind in WORDS for f in manifest.lookups if f.table == table) or _entity_key(manifest, table) == "string"
    )


def takes_integers(manifest: Manifest, table: str) -> bool:
    """Return True if integer features feed a table, or none does."""
    if (key := _entity_key(manifest, table)) is not None:
        return key != "string"
    kinds = {f.kind for f in manifest.lookups if f.table == table}
    return not kinds or any(kind not in WORDS for kind in kinds)


def noted_constants(manifest: Manifest) -> set[str]:
    """Return the names of what inference computes with as constants, from the import's notes."""
    noted = manifest.notes.get("import")
    names = noted.get("constants", []) if isinstance(noted, dict) else []
    return {str(name) for name in names} if isinstance(names, list) else set()


def _entity_key(manifest: Manifest, table: str) -> str | None:
    """Return the type of an entity's key, for its table; None for other tables."""
    return next((manifest.input(e.key).dtype for e in manifest.entities if e.table == table), None)


def _unsigned(manifest: Manifest, table: str) -> bool:
    """Return True if an input that declares uint64 keys the table."""
    inputs = {f.input for f in manifest.lookups if f.table == table}
    inputs |= {e.key for e in manifest.entities if e.table == table}
    return any(i.declared == "uint64" for i in manifest.inputs if i.name in inputs)


def as_ids(manifest: Manifest, table: str, keys: Any) -> Int64s:
    """Return the ids of n keys, int64 [n]; raise BadInput unless they are of the type of the table's features.

    Args:
        keys: Array or sequence of integers, or of str or bytes, or Strings. None in a sequence is the key of the row
            that all keys without one share (a model's out-of-vocabulary row).
    """
    if isinstance(keys, Strings):
        keys = keys.tolist()
    if isinstance(keys, (list, tuple)) and any(key is None for key in keys):
        unknown = np.array([key is None for key in keys])
        ids = np.full(len(keys), _unknown_key(manifest, table), np.int64)
        ids[~unknown] = as_ids(manifest, table, [key for key in keys if key is not None])
        return ids
    array = np.asarray(keys) if not isinstance(keys, (list, tuple)) else _array(keys)
    if array.ndim != 1:
        raise BadInput(f"table {table!r}: expected keys of shape [n], got {list(array.shape)}")
    if not len(array):
        return np.empty(0, np.int64)
    if array.dtype.kind in "iu":
        if not takes_integers(manifest, table):
            raise BadInput(f"table {table!r}: expected strings as keys, the type of its features, got {array.dtype}")
        return carried(array, _unsigned(manifest, table), f"table {table!r}: expected keys")
    words = array.tolist()
    if array.dtype.kind in "SUO" and all(isinstance(word, (str, bytes)) for word in words):
        if not takes_strings(manifest, table):
            raise BadInput(
                f"table {table!r}: expected integers as keys, the type of its features, got {words[0]!r:.64}"
            )
        return hashed(words, manifest.table(table).hash_seed)
    raise BadInput(f"table {table!r}: expected integers, str or bytes as keys, got {array.dtype}")


def _unknown_key(manifest: Manifest, table: str) -> int:
    key = manifest.table(table).unknown_key
    if key is None:
        raise BadInput(
            f"table {table!r}: expected a key, got None: its version was imported with a fixed row of unknown keys, or "
            "has none; to change it, import the model again"
        )
    return key


def carried(numbers: NDArray[Any], unsigned: bool, expected: str) -> Int64s:
    """Return whole numbers as int64, which carries a uint64's bits; `expected` begins the message for others."""
    low, high = (0, 2**64 - 1) if unsigned else (-(2**63), 2**63 - 1)
    if numbers.size and (beyond := [n for n in (int(numbers.min()), int(numbers.max())) if not low <= n <= high]):
        raise BadInput(f"{expected} from {low} to {high}, got {beyond[0]}")
    return np.ascontiguousarray(numbers).astype(np.int64, copy=False)


def hashed(words: list[str | bytes], seed: int) -> Int64s:
    """Return xxh3_64 of each string's UTF-8 with a table's seed, int64 [n], as hash_strings() does."""
    try:
        import xxhash
    except ImportError:
        raise NotReady("publisher: tables keyed by strings need the package xxhash: pip install xxhash") from None
    digest = xxhash.xxh3_64_intdigest
    parts = [digest(word.encode() if isinstance(word, str) else word, seed) for word in words]
    return np.array(parts, np.uint64).view(np.int64)


def _array(keys: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    """Return a list as an array that keeps numbers as numbers and trailing zero bytes of strings."""
    if any(isinstance(key, (str, bytes)) for key in keys):
        array = np.empty(len(keys), object)
        array[:] = keys
        return array
    try:
        return exact_array(keys)
    except (ValueError, OverflowError):
        return np.empty(len(keys), object)
