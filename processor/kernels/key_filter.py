"""Tell keys that an index does not have apart from those that it may have, by a word beside each line of the index.

A probe for an unknown key ends at an empty entry, two or more cache lines on: where most keys are unknown, as pairs of
an event and a candidate are, that is most of the cost of a lookup. A filter is int64 [capacity // LINE_ENTRIES + 1], an
eighth of its index. The word of a key is that of the line of its home; a key sets two of the word's bits, which say
nothing about its home. About 1 of 50 unknown keys meets a word with both of its bits; more bits take longer than the
probes that they save.

Invariants
- A filter never denies a key that a reader of its index may find: a key's bits are set before its entry is claimed.
- Bits are only ever set while readers hold the filter, by the one writer of the index. What is undone, removed or
  vacuumed keeps its bits, as it keeps its entry; they go when another index, with another filter, is built beside.
- A filter and its index reach readers in the same descriptor.

Rejected: a table of fingerprints of the entries (a probe of its own, and a byte an entry), and bits spread over several
words (a cache line each).
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import EMPTY, LINE_ENTRIES, home_of, mix
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_i64, store_release


def words_for(capacity: int) -> int:
    """Return the number of words of the filter of an index."""
    return capacity // LINE_ENTRIES + 1


@inlined
def word_of(filter_, entry):
    """Return the address of the word of a key, from its home."""
    return filter_ + 8 * (entry // LINE_ENTRIES)


@inlined
def bits_of(mixed):
    """Return the bits of a key in its word, all of which are set if the index has the key.

    A home is made of the high half of the mixed bits, these of the low one.
    """
    one, low = np.uint64(1), np.uint64(63)
    return np.int64((one << (mixed & low)) | (one << ((mixed >> np.uint64(6)) & low)))


@inlined
def admit(filter_, capacity, key):
    """Set the bits of a key. For the writer only, before it claims the key's entry."""
    mixed = mix(key)
    word = word_of(filter_, home_of(mixed, capacity))
    store_release(word, load_i64(word) | bits_of(mixed))


@kernel(nb.void(nb.int64, nb.int64, nb.int64))
def fill(filter_, index, capacity):
    """Set the bits of all keys of an index in a filter of zeros that no reader has."""
    for entry in range(index, index + 16 * capacity, 16):
        if load_i64(entry + 8) != EMPTY:
            admit(filter_, capacity, load_i64(entry))
