"""Count how often rows of a table with a memory budget are looked up, for the writer that ranks them (row_tiering).

Readers call note() for the lookups that are sampled(). Counts are racy on purpose, and no lookup depends on them.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import add_relaxed, load_i64, load_u8, store_i8, store_i64
from freshet_serving.processor.kernels.rows import BASE_ROWS, HITS, LOGGED, RING, RING_HEADER, RING_KEYS, SETTLED

SAMPLE, SAMPLE_BITS = 8, 3
MOST_HITS = 255


@inlined
def sampled(lookups):
    """Report whether to note the lookup of this number: one in SAMPLE, out of step with any request length (Weyl)."""
    return np.uint64(lookups) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - SAMPLE_BITS) == 0


@kernel(nb.void(nb.int64, nb.int64, nb.int64))
def note(table, key, ref):
    """Note one sampled lookup. Concurrent readers may overwrite each other's counts, which serve only to rank rows."""
    ring = load_i64(table + RING)
    if ref >= SETTLED and ref < LOGGED:
        hits = load_i64(table + HITS) + ref - SETTLED
        seen = load_u8(hits)
        if seen < MOST_HITS:
            store_i8(hits, seen + 1)
        add_relaxed(ring + 16, SAMPLE)
    elif ref < load_i64(table + BASE_ROWS) or ref >= LOGGED:
        place = add_relaxed(ring, 1) & (RING_KEYS - 1)
        store_i64(ring + 8 * (RING_HEADER + place), key)
        add_relaxed(ring + 8, SAMPLE)
    else:
        add_relaxed(ring + 16, SAMPLE)
