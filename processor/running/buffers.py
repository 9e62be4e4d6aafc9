"""Allocate and bind a session's buffers for one version before a request needs them.

A replica keeps a stock of warm buffers, as many as there are sessions, and tracks those in use. Before a flip it binds
the new executables to all of them, so that the first batch after a load or a flip allocates and binds nothing.

Ownership. Arrays and bindings are used by one session at a time. The writer's thread only adds bindings that no session
has run, which wait in `_ahead` until a batch under the new state uses them. All buckets of a subgraph share one array
per input and output: a bucket of n rows is its first n, so a batch's rows lie in one place whatever buckets run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Dims, Executable, IoSpec, Matrix, aligned, sized
from freshet_serving.processor.watching import StatsBlock

Tensors = Mapping[str, Matrix]
Bound = tuple[Executable, Callable[[], None]]
Key = tuple[str, int]
Allocate = Callable[[tuple[int, ...]], Matrix]
Executables = Mapping[str, Mapping[int, Executable]]
"""By subgraph and bucket."""


class BufferSize(NamedTuple):
    """Inputs and outputs of a subgraph, and the rows of its largest bucket."""

    spec: IoSpec
    rows: int


class _Buffer(NamedTuple):
    """One array for all buckets; of_rows: it has a row for each row of the bucket."""

    array: Matrix
    of_rows: bool


class Buffers:
    """Inputs and outputs by subgraph, and the runs bound to them by bucket; `counts`: lookups, misses, int64 [T, 2]."""

    def __init__(
        self, sizes: Mapping[str, BufferSize], tables: int, outputs: int, allocate: Allocate = aligned
    ) -> None:
        """Allocate the buffers; `outputs` is the number of the model's, `allocate` returns zeros of a shape."""
        self.counts: NDArray[np.int64] = np.zeros((max(1, tables), 2), np.int64)
        self.block = StatsBlock(outputs)

        def allocated(named: Mapping[str, Dims], rows: int) -> dict[str, _Buffer]:
            return {name: _Buffer(allocate(sized(dims, rows)), None in dims) for name, dims in named.items()}

        self._whole = {
            name: (allocated(size.spec.inputs, size.rows), allocated(size.spec.outputs, size.rows))
            for name, size in sizes.items()
        }
        self._arrays: dict[Key, tuple[Tensors, Tensors]] = {}
        self._bound: dict[Key, Bound] = {}
        self._ahead: Mapping[Key, Bound] = {}

    def inputs(self, subgraph: str, start: int, stop: int) -> dict[str, Matrix]:
        """Return rows [start, stop) of the inputs, which every bucket has as its own rows of those numbers."""
        return {name: _rows(buffer, start, stop) for name, buffer in self._whole[subgraph][0].items()}

    def get(self, executable: Executable, subgraph: str) -> tuple[Tensors, Tensors, Callable[[], None]]:
        """Return (inputs, outputs, run) of an executable; allocate and bind unless done ahead."""
        key = subgraph, executable.bucket
        bound = self._bound.get(key)
        if bound is None or bound[0] is not executable:
            bound = self._ahead.get(key)
            if bound is None or bound[0] is not executable:
                bound = (executable, executable.bind_buffers(*self._of(key)))
            self._bound[key] = bound
        inputs, outputs = self._arrays[key]
        return inputs, outputs, bound[1]

    def bind_ahead(self, executables: Executables, run: bool = False) -> None:
        """Bind executables for later batches; `run` each once as well, only while no session has these buffers."""
        ahead = {
            (subgraph, bucket): (e, e.bind_buffers(*self._of((subgraph, bucket))))
            for subgraph, part in executables.items()
            for bucket, e in part.items()
        }
        if run:
            for _, call in ahead.values():
                call()
        self._ahead = ahead

    def drop_stale_runs(self, executables: Executables) -> None:
        """Drop bound runs of all but these executables: the calling thread frees their memory, not a session's."""
        for key, bound in list(self._bound.items()):
            subgraph, bucket = key
            newest, ahead = executables[subgraph].get(bucket), self._ahead.get(key)
            if bound[0] is not newest and ahead is not None and ahead[0] is newest:
                self._bound[key] = ahead

    def _of(self, key: Key) -> tuple[Tensors, Tensors]:
        arrays = self._arrays.get(key)
        if arrays is None:
            subgraph, bucket = key
            outputs = self._whole[subgraph][1]
            part = self.inputs(subgraph, 0, bucket), {n: _rows(buffer, 0, bucket) for n, buffer in outputs.items()}
            # Both threads then share the first one's views: a run reads what a session writes either way.
            arrays = self._arrays.setdefault(key, part)
        return arrays


def _rows(buffer: _Buffer, start: int, stop: int) -> Matrix:
    return buffer.array[start:stop] if buffer.of_rows else buffer.array
