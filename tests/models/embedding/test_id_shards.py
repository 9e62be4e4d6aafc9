"""Which process has an id: every id one, as many shards each, whatever the number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.id_shards import SHARDS, of_process, processes_of


@given(st.integers(1, SHARDS))
def test_shards_are_divided_evenly_among_processes(processes):
    ranges = [of_process(n, processes) for n in range(processes)]
    assert [shard for each in ranges for shard in each] == list(range(SHARDS))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7, 64])
def test_id_belongs_to_the_process_that_owns_its_shard(processes):
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000)
    shards = np.empty(len(ids), np.int64)
    kernels.shards(ids, SHARDS, shards)
    owners = processes_of(ids, processes)
    for process in range(processes):
        mine = of_process(process, processes)
        assert np.array_equal(owners == process, (shards >= mine.start) & (shards < mine.stop))


def test_consecutive_ids_are_spread_evenly():
    counts = np.bincount(processes_of(np.arange(100_000), 4), minlength=4)
    assert counts.min() > 24_000
