"""Reserved memory: zeroed, aligned, sparse until it is written."""

import mmap
import os
import sys

import numpy as np
import pytest

from processor.memory import private_copy, reserve


def resident_nbytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 1 << 20])
def test_a_reservation_is_zeroed_writable_and_on_a_page(nbytes):
    buffer = reserve(nbytes, "test")
    assert buffer.nbytes >= max(1, nbytes)
    assert buffer.ctypes.data % mmap.PAGESIZE == 0
    assert not buffer.any()
    buffer[-1] = 7
    assert buffer[-1] == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_huge_reservation_costs_only_what_is_written():
    before, files = resident_nbytes(), len(os.listdir("/proc/self/fd"))
    buffer = reserve(64 << 30, "test")
    buffer[:: 8 << 30] = 1
    assert resident_nbytes() - before < 64 << 20
    assert len(os.listdir("/proc/self/fd")) <= files + 1, "one mapping holds one descriptor at most"
    assert buffer[:: 8 << 30].tolist() == [1] * 8


def test_reservations_do_not_share_memory():
    first, second = reserve(4096, "same"), reserve(4096, "same")
    first[:] = 1
    assert not second.any()


def test_memory_lives_as_long_as_a_view_of_it():
    view = reserve(1 << 16, "test").view(np.int64)[5:10]
    view[:] = [1, 2, 3, 4, 5]
    reserve(1 << 16, "test")[:] = 255
    assert view.tolist() == [1, 2, 3, 4, 5]


def test_a_private_copy_is_writable_and_leaves_its_source_alone():
    source = np.arange(12, dtype=np.int64).reshape(6, 2)
    source.flags.writeable = False
    copy = private_copy(source, "test")
    np.testing.assert_array_equal(copy, source)
    copy[0, 0] = 99
    assert source[0, 0] == 0
    assert copy.flags.c_contiguous


def test_nothing_may_be_copied_too():
    assert private_copy(np.empty((0, 2), np.int64), "test").shape == (0, 2)
