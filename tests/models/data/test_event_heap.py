"""The heap of users' events: what is in memory and in the file, and that both are where blocks expect them."""

import ctypes
import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import event_heap
from freshet_serving.models.data.event_heap import EventHeap
from freshet_serving.processor.errors import BadInput


class Blocks:
    """Blocks that are given out as the kernels do it, each filled with its number."""

    def __init__(self, heap):
        self.heap, self.places = heap, []

    def give(self, words):
        heap = self.heap
        at = int(heap.used[0])
        if at < heap.base < at + words:
            at = heap.base
        if at + words > heap.end:
            heap.lengthen(words)
        heap.used[0] = at + words
        self.places.append((at, words))
        self.view(at, words)[:] = len(self.places)
        heap.note_border()

    def view(self, at, words):
        memory, file, base = self.heap.addresses()
        address = memory + 8 * at if at < base else file + 8 * (at - base)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (words,))

    def check(self):
        for number, (at, words) in enumerate(self.places, 1):
            assert at >= self.heap.base or at + words <= self.heap.base
            assert (self.view(at, words) == number).all()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(event_heap, "FIRST_WORDS", 64)
    monkeypatch.setattr(event_heap, "BORDERS", 16)
    monkeypatch.setattr(event_heap, "TAKEN_NBYTES", 4096)
    monkeypatch.setattr(event_heap, "LEAST_BLOCKS", 2)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([0, 4096, 16_384]),
    st.lists(
        st.one_of(st.tuples(st.just("give"), st.integers(1, 200)), st.tuples(st.just("fit"), st.integers(0, 16_384)))
    ),
)
def test_blocks_stay_whole_while_memory_shrinks(budget_nbytes, acts):
    heap = EventHeap(budget_nbytes, 64, None)
    blocks = Blocks(heap)
    for act, number in acts:
        if act == "give":
            blocks.give(number)
        else:
            heap.fit(number)
            assert heap.nbytes <= number
        blocks.check()
        assert heap.file_nbytes == 8 * (heap.end - heap.base)
    for part in heap.touching(len(blocks.places)):
        assert part.stop > part.start
        blocks.check()


def test_blocks_are_touched_in_parts_once_there_is_a_file():
    heap = EventHeap(0, 64, None)
    assert list(heap.touching(5)) == [slice(0, 5)]
    Blocks(heap).give(100)
    assert list(heap.touching(5)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(heap.touching(0)) == []


def test_a_full_disk_is_an_error_of_the_input(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    heap = EventHeap(4096, 64, None)
    for act in (lambda: heap.lengthen(1), lambda: heap.scratch(8)):
        with pytest.raises(BadInput, match="histories: no room on disk for more events: No space"):
            act()
    heap.used[0] = 512
    with pytest.raises(BadInput, match="no room on disk"):
        heap.fit(64)
    assert heap.base == 512
