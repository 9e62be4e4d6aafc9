import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding import distinct_ids
from freshet_serving.models.embedding.distinct_ids import DistinctIds

ids = st.one_of(st.integers(0, 30), st.sampled_from([-(2**63), -1, 2**63 - 1]), st.integers(-(2**63), 2**63 - 1))


@settings(deadline=None)
@given(st.lists(st.lists(ids, max_size=50), max_size=12))
def test_ids_are_kept_once_in_order_of_arrival(batches):
    distinct_ids.FIRST_IDS, before = 4, distinct_ids.FIRST_IDS
    try:
        known = DistinctIds()
    finally:
        distinct_ids.FIRST_IDS = before
    for batch in batches:
        known.add(np.array(batch, np.int64))
    assert known.ids.tolist() == list(dict.fromkeys(key for batch in batches for key in batch))
    assert len(known) == len(known.ids)
