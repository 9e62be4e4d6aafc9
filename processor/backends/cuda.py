"""CUDA's runtime, as far as it is used directly: by cuda-python, which is imported where a GPU is wanted only.

Page-locked memory is what a GPU reads and writes by itself; memory of any other kind is first copied by the driver to
such a place. Buffers that executables of a GPU are bound to are page-locked, those of a processor are plain.

This has not run on hardware by its authors.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import Matrix, aligned, missing
from freshet_serving.processor.errors import BadInput, FreshetError

GPU_TARGETS = ("cuda", "tensorrt")


class Cuda:
    """The calls of the CUDA runtime that are needed, each raising FreshetError when it fails."""

    def __init__(self, runtime: Any, backend: str = "tensorrt") -> None:
        """runtime: the module cuda.bindings.runtime. backend: who asks. Raises BadInput where there is no device."""
        self._runtime = runtime
        status, count = runtime.cudaGetDeviceCount()
        if int(status) or not count:
            raise BadInput(f"backend {backend}: no CUDA device is to be had on this machine")
        self.to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost

    @classmethod
    def load(cls, backend: str) -> Cuda:
        """Opens CUDA for a backend; raises BadInput where cuda-python or a device is missing."""
        try:
            from cuda.bindings import runtime
        except ImportError:
            raise missing(backend, "cuda-python", "gpu") from None
        return cls(runtime, backend)

    def capability(self) -> str:
        """The compute capability of the first device, such as sm_90."""
        properties = self.call("cudaGetDeviceProperties", 0)
        return f"sm_{properties.major}{properties.minor}"

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the function `name` of the CUDA runtime; returns its result, None where it has none."""
        status, *results = getattr(self._runtime, name)(*arguments)
        if int(status):
            raise FreshetError(f"CUDA: {name} failed with status {int(status)}")
        return results[0] if results else None

    def page_locked(self, shape: tuple[int, ...]) -> Matrix:
        """Zeros, float32, that go with their last view."""
        nbytes = max(4, 4 * int(np.prod(shape, dtype=np.int64)))
        address = int(self.call("cudaHostAlloc", nbytes, 0))
        memory: Any = (ctypes.c_float * (nbytes // 4)).from_address(address)
        weakref.finalize(memory, self.call, "cudaFreeHost", address).atexit = False
        array: Matrix = np.frombuffer(memory, np.float32, int(np.prod(shape, dtype=np.int64))).reshape(shape)
        array[...] = 0
        return array


def allocator(targets: Iterable[str], load: Callable[[str], Cuda] = Cuda.load) -> Callable[[tuple[int, ...]], Matrix]:
    """The allocator of buffers for executables of these targets: page-locked memory where one of them is a GPU, and
    plain memory else, or where cuda-python is missing. load: for tests."""
    if any(target.startswith(GPU_TARGETS) for target in targets):
        try:
            return load("buffers").page_locked
        except FreshetError:
            return aligned
    return aligned
