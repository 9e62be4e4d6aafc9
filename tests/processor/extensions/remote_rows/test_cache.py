"""The cache alone: what it gives back is what was put in, whatever was pushed out in between."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.remote_rows.bucket_bytes import FOUND, LOST, NOWHERE
from freshet_serving.processor.extensions.remote_rows.cache import RowCache
from freshet_serving.processor.extensions.remote_rows.cached_rows import WAYS
from tests.support.waiting import at_once

NBYTES = 12


def row_of(key):
    return np.frombuffer((int(key) % 2**64).to_bytes(8, "little") + b"\x01\x02\x03\x04", np.uint8)


def take(cache, ids):
    """Statuses and rows of distinct ids."""
    ids = np.array(ids, np.int64)
    rows, refs = np.zeros((len(ids), NBYTES), np.uint8), np.zeros(len(ids), np.int64)
    status = np.full(len(ids), 9, np.uint8)
    entries = refs.ctypes.data + 8 * np.arange(len(ids))
    starts, counts = np.zeros(1, np.int64), np.array([len(ids)])
    unknown = cache.take(starts, counts, ids, entries, np.array([[rows.ctypes.data, NBYTES, 0]]), status)
    assert unknown == np.count_nonzero(status == LOST)
    assert (refs[status == NOWHERE] == -2).all()
    assert (refs[status != NOWHERE] == 0).all()
    return status, rows


def keep(cache, ids, status):
    ids = np.array(ids, np.int64)
    rows = np.array([row_of(i) for i in ids], np.uint8).reshape(len(ids), NBYTES)
    cache.keep(0, ids, rows, np.array(status, np.uint8))


ids = st.integers(0, 40) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 40), batches=st.lists(st.lists(ids, unique=True, max_size=30), max_size=20))
def test_cached_rows_round_trip(rows, batches):
    cache = RowCache([NBYTES], rows)
    nowhere = {i for batch in batches for i in batch if i % 3 == 0}
    seen = set()
    for batch in batches:
        status, got = take(cache, batch)
        for i, s, row in zip(batch, status.tolist(), got):
            assert s in (LOST, NOWHERE if i in nowhere else FOUND)
            assert s == LOST or i in seen
            assert s != FOUND or (row == row_of(i)).all()
        fresh = [i for i, s in zip(batch, status.tolist()) if s == LOST]
        keep(cache, fresh, [LOST if i % 7 == 0 else NOWHERE if i in nowhere else FOUND for i in fresh])
        seen |= {i for i in fresh if i % 7}
        kept = [i for i in range(41) if take(cache, [i])[0][0] != LOST]
        assert len(kept) <= -(-rows // WAYS) * WAYS


def test_frequently_read_rows_stay_cached_under_churn():
    cache = RowCache([NBYTES], WAYS)
    keep(cache, [1, 2, 3], [FOUND] * 3)
    for stranger in range(100, 400):
        if stranger % 4 == 0:
            take(cache, [1, 2, 3])
        keep(cache, [stranger], [FOUND])
    assert take(cache, [1, 2, 3])[0].tolist() == [FOUND] * 3


def test_formerly_frequent_rows_are_evicted_eventually():
    cache = RowCache([NBYTES], WAYS)
    keep(cache, [1], [FOUND])
    for _ in range(1000):
        take(cache, [1])
    for stranger in range(100, 600):
        keep(cache, [stranger], [FOUND])
    assert take(cache, [1])[0].tolist() == [LOST]


def test_sessions_may_read_and_write_the_cache_concurrently():
    cache = RowCache([NBYTES], 64)
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(300):
            batch = np.unique(random.integers(0, 200, 40)).tolist()
            status, rows = take(cache, batch)
            wrong.extend(i for i, s, r in zip(batch, status, rows) if s == FOUND and (r != row_of(i)).any())
            keep(cache, batch, [FOUND] * len(batch))

    at_once(work, range(3))
    assert not wrong
