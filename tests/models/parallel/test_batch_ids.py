"""A batch's distinct ids against a dictionary's, and pooling from them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.id_shards import processes_of
from freshet_serving.models.parallel.batch_ids import FIRST_IDS, BatchIds

some_ids = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), max_size=40)


@settings(deadline=None, max_examples=50)
@given(st.lists(some_ids, min_size=1, max_size=4), st.integers(1, 5))
def test_ids_are_distinct_ordered_by_owner_and_counted(batches, processes):
    ids = BatchIds("t", 2, processes)
    for batch in batches:
        values = np.array(batch, np.int64)
        refs = ids.begin(values)
        assert ids.ids[refs].tolist() == batch
        distinct, times = np.unique(values, return_counts=True)
        assert sorted(ids.ids.tolist()) == distinct.tolist()
        assert dict(zip(ids.ids.tolist(), ids.times.tolist())) == dict(zip(distinct.tolist(), times.tolist()))
        owners = processes_of(ids.ids, processes)
        assert (np.diff(owners) >= 0).all()
        assert ids.ends.tolist() == [int((owners < n).sum()) for n in range(processes + 1)]
        assert len(ids.rows) == len(ids.sums) == len(ids.met) == len(distinct)


def test_capacity_grows_with_the_batches():
    ids = BatchIds("t", 2, 2)
    before = ids.descriptor()
    values = np.arange(3 * FIRST_IDS)
    refs = ids.begin(values)
    assert np.array_equal(ids.ids[refs], values)
    assert ids.descriptor() != before
    after = ids.descriptor()
    ids.begin(values[:5])
    assert ids.descriptor() is after
    ids.begin_gradients()
    assert not ids.sums.any()
    assert not ids.met.any()
    assert ids.place[:5].tolist() == [0, 1, 2, 3, 4]
