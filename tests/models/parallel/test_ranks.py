"""Messages between ranks: arrays as they were, to the bit, or an error that says who."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from freshet_serving.models.parallel.ranks import DTYPES, RankFailed, packed, receive_arrays, send_arrays, unpacked
from freshet_serving.processor.errors import Corrupt
from tests.models.parallel.fakes import on_each, thread_ranks

shapes = arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
some_arrays = st.lists(st.sampled_from(DTYPES).flatmap(lambda d: arrays_of.arrays(d, shapes)), max_size=6)


def same(given, got):
    assert len(given) == len(got)
    for a, b in zip(given, got):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


@settings(max_examples=40)
@given(some_arrays)
def test_packed_arrays_round_trip(arrays):
    same(arrays, unpacked(packed(arrays)))


def test_vectors_in_a_list_are_concatenated():
    same([np.arange(5), np.empty(0, np.uint8)], unpacked(packed([[np.arange(3), np.arange(3, 5)], []])))


@settings(max_examples=40)
@given(some_arrays)
def test_arrays_reach_another_rank_bitwise(arrays):
    ranks = thread_ranks(2)
    send_arrays(ranks[0], 1, arrays)
    same(arrays, receive_arrays(ranks[1], 0))


def test_flipped_bit_in_transit_is_detected():
    ranks = thread_ranks(2)
    send_arrays(ranks[0], 1, [np.arange(10)])
    head, body = (ranks[1].receive(0) for _ in range(2))
    body[3] ^= 4
    ranks[0].send(1, head)
    ranks[0].send(1, body)
    with pytest.raises(Corrupt, match="process 0"):
        receive_arrays(ranks[1], 0)


def test_swap_exchanges_arrays_between_all_ranks():
    def work(ranks):
        return [m.tolist() for m in ranks.swap([np.array([ranks.rank, to], np.uint8) for to in range(ranks.size)])]

    assert on_each(thread_ranks(3), work) == [[[of, to] for of in range(3)] for to in range(3)]


def test_rank_failure_reaches_every_waiting_rank():
    ranks = thread_ranks(3)
    ranks[1].fail("no more")
    for other in (0, 2):
        with pytest.raises(RankFailed, match="no more"):
            ranks[other].receive(1)
