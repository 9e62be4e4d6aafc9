"""The hash index of a table: int64 key -> ref, open addressing, linear probing, any capacity below 2**32.

index: int64 [capacity, 2], entry = (key, ref). Every int64 is a valid key; the state of an entry is in its ref:
    EMPTY (-1)    never used: a probe ends here
    ABSENT (-2)   the key is known and has no row in any generation
    ref >= 0      location of the row (the caller defines its meaning)

The home of a key is the high 32 bits of its mixed bits, scaled to the capacity, so that growth need not double. At most
7/8 of the entries are ever used, so a probe always ends. Entries never move and are never emptied while readers
hold the index; a claim stores the key before it releases the ref, so a reader never sees a ref with another key.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_acquire, load_i64, prefetch, store_i64, store_release

EMPTY = -1
ABSENT = -2
LINE_ENTRIES = 4
MAX_CAPACITY = 2**32 - LINE_ENTRIES
BLOCK = 32
"""Number of keys whose entries are prefetched before the first of them is read."""


def capacity_for(keys: int) -> int:
    """Return the capacity of an index that starts with `keys` keys: load factor 0.75, whole cache lines."""
    return min(MAX_CAPACITY, max(16, -(-keys * 4 // 3 // LINE_ENTRIES) * LINE_ENTRIES + LINE_ENTRIES))


def empty_index(capacity: int) -> np.ndarray:
    """Return an index of `capacity` entries without a key."""
    index = np.zeros((capacity, 2), np.int64)
    index[:, 1] = EMPTY
    return index


@inlined
def mix(key):
    """Return the mixed bits of a key, uint64 (splitmix64's finaliser)."""
    z = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def home_of(mixed, capacity):
    """Return the entry at which the probe for a key with these mixed bits starts: their high half, scaled."""
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@inlined
def home(key, capacity):
    """Return the entry at which the probe for a key starts."""
    return home_of(mix(key), capacity)


@inlined
def probe_from(address, capacity, key, start):
    """Return the entry that holds the key, or -1 - e where e is the empty entry at which the probe ended.

    `start` is the key's home, which a caller that has prefetched it has already computed.
    """
    e = start
    while True:
        ref = load_acquire(address + 16 * e + 8)
        if ref == EMPTY:
            return -1 - e
        if load_i64(address + 16 * e) == key:
            return e
        e += 1
        if e == capacity:
            e = 0


@inlined
def probe(address, capacity, key):
    """Return the entry of a key: probe_from its home."""
    return probe_from(address, capacity, key, home(key, capacity))


@kernel(nb.int64(nb.int64, nb.int64, nb.types.Array(nb.int64, 1, "A", readonly=True)))
def build(address, capacity, keys):
    """Enter key i with ref i in an empty index; return -1, or the position of the first key that occurs twice."""
    for i in range(len(keys)):
        e = probe(address, capacity, keys[i])
        if e >= 0:
            return i
        store_i64(address + 16 * (-1 - e), keys[i])
        store_i64(address + 16 * (-1 - e) + 8, i)
    return -1


@kernel(nb.void(nb.int64, nb.int64, nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64[::1]))
def find(address, capacity, keys, refs):
    """Write the ref of each key to refs, int64 [n], ABSENT where the key is unknown."""
    for first in range(0, len(keys), BLOCK):
        last = min(first + BLOCK, len(keys))
        for i in range(first, last):
            refs[i] = home(keys[i], capacity)
            prefetch(address + 16 * refs[i])
        for i in range(first, last):
            e = probe_from(address, capacity, keys[i], refs[i])
            refs[i] = load_i64(address + 16 * e + 8) if e >= 0 else ABSENT


@kernel(nb.int64(nb.int64, nb.int64, nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64[::1]))
def claim(address, capacity, keys, entries):
    """Find or create the entry of each key, written to int64 [n]; return the number of keys that were unknown.

    A new entry has the ref ABSENT. The caller has made sure that the index has room for all of them.
    """
    claimed = 0
    for i in range(len(keys)):
        e = probe(address, capacity, keys[i])
        if e < 0:
            e = -1 - e
            store_i64(address + 16 * e, keys[i])
            store_release(address + 16 * e + 8, ABSENT)
            claimed += 1
        entries[i] = e
    return claimed


@kernel(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64))
def rehash(source, source_capacity, address, capacity):
    """Copy every entry that has a row into an empty index; return the number of entries copied."""
    used = 0
    for i in range(source_capacity):
        ref = load_i64(source + 16 * i + 8)
        if ref >= 0:
            key = load_i64(source + 16 * i)
            e = -1 - probe(address, capacity, key)
            store_i64(address + 16 * e, key)
            store_i64(address + 16 * e + 8, ref)
            used += 1
    return used


@kernel(nb.int64(nb.int64, nb.int64, nb.int64))
def audit(address, capacity, rows):
    """Return the number of entries that hold a row below `rows`, or -1 if any ref is neither EMPTY nor in [0, rows)."""
    used = 0
    for i in range(capacity):
        ref = load_i64(address + 16 * i + 8)
        if ref == EMPTY:
            continue
        if ref < 0 or ref >= rows:
            return -1
        used += 1
    return used
