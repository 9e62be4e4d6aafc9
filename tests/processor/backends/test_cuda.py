"""CUDA's runtime, played: page-locked memory that is given back, and buffers that are plain where there is no GPU."""

import ctypes
import gc

import numpy as np
import pytest

from freshet_serving.processor.backends import aligned, allocator
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.errors import BadInput
from tests.processor.backends.test_tensorrt import Runtime


class Locked(Runtime):
    """Gives memory of the process as page-locked."""

    def __init__(self):
        super().__init__(1)
        self.held = {}

    def cudaHostAlloc(self, nbytes, flags):
        block = (ctypes.c_uint8 * nbytes)()
        ctypes.memset(block, 0xFF, nbytes)
        self.held[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cudaFreeHost(self, address):
        del self.held[address]
        return (0,)


def test_page_locked_memory_is_zeroed_and_freed_with_its_view():
    runtime = Locked()
    array = Cuda(runtime).page_locked((3, 5))
    view = array[:2]
    np.testing.assert_array_equal(array, np.zeros((3, 5), np.float32))
    assert (array.dtype, array.flags.c_contiguous, array.flags.writeable) == (np.float32, True, True)
    del array
    gc.collect()
    assert len(runtime.held) == 1
    view[...] = 7
    del view
    gc.collect()
    assert not runtime.held


@pytest.mark.parametrize("targets", [["cuda"], ["x86_64-avx2", "cuda-sm_90"], ["tensorrt"]])
def test_gpus_buffers_are_page_locked(targets):
    runtime = Locked()
    made = allocator(targets, lambda backend: Cuda(runtime))((2, 2))
    assert made.shape == (2, 2)
    assert len(runtime.held) == 1


def test_cpu_buffers_are_plain_and_load_no_library():
    def load(backend):
        raise AssertionError

    assert allocator(["cpu", "x86_64-avx512"], load) is aligned


def test_without_the_library_a_gpus_buffers_are_plain():
    def load(backend):
        raise BadInput("missing")

    assert allocator(["cuda"], load) is aligned
