"""Call CUDA's runtime where needed, through cuda-python, which is imported only if a GPU is used.

A GPU reads and writes page-locked memory by itself; the driver first copies other memory to such a place. So buffers
bound to executables of a GPU are page-locked.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import Matrix, missing
from freshet_serving.processor.errors import BadInput, FreshetError


class Cuda:
    """The needed calls of the CUDA runtime; each raises FreshetError if it fails."""

    def __init__(self, runtime: Any, backend: str = "tensorrt") -> None:
        """Wrap cuda.bindings.runtime for a backend, which errors name; raise BadInput if there is no device."""
        self._runtime = runtime
        status, count = runtime.cudaGetDeviceCount()
        if int(status) or not count:
            raise BadInput(f"backend {backend}: this machine has no usable CUDA device")
        self.to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost

    @classmethod
    def load(cls, backend: str) -> Cuda:
        """Open CUDA for a backend; raise BadInput if cuda-python or a device is missing."""
        try:
            from cuda.bindings import runtime
        except ImportError:
            raise missing(backend, "cuda-python", "gpu") from None
        return cls(runtime, backend)

    def capability(self) -> str:
        """Return the compute capability of the first device, such as sm_90."""
        properties = self.call("cudaGetDeviceProperties", 0)
        return f"sm_{properties.major}{properties.minor}"

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the CUDA runtime; return its result, None if it has none."""
        status, *results = getattr(self._runtime, name)(*arguments)
        if int(status):
            raise FreshetError(f"CUDA: {name} failed with status {int(status)}")
        return results[0] if results else None

    def copy(self, to: int, source: int, nbytes: int, kind: Any) -> None:
        """Copy between addresses, `to_device` or `to_host`, and wait; copies of several threads run side by side."""
        stream = self._runtime.cudaStreamPerThread
        self.call("cudaMemcpyAsync", to, source, nbytes, kind, stream)
        self.call("cudaStreamSynchronize", stream)

    def page_locked(self, shape: tuple[int, ...]) -> Matrix:
        """Return zeros, float32, in page-locked memory that is freed with the last view."""
        nbytes = max(4, 4 * int(np.prod(shape, dtype=np.int64)))
        address = int(self.call("cudaHostAlloc", nbytes, 0))
        memory: Any = (ctypes.c_float * (nbytes // 4)).from_address(address)
        weakref.finalize(memory, self.call, "cudaFreeHost", address).atexit = False
        array: Matrix = np.frombuffer(memory, np.float32, int(np.prod(shape, dtype=np.int64))).reshape(shape)
        array[...] = 0
        return array
