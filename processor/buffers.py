"""A session's buffers for one version, made and bound before a request needs them.

A replica keeps a stock of them, warm, as many as there are sessions, and remembers those that it has lent. Before a
flip it binds the new executables to all of them, so that the first batch after a load or a flip allocates and binds
nothing.

Who owns what: arrays and bindings are used by one session at a time. The thread of changes only ever adds to them:
arrays of a bucket that has none yet, and bindings that no session has run, which wait in `ahead` until a batch under
the new state takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from processor.backends.base import Executable, Matrix, aligned

Outputs = dict[str, Matrix]
Bound = tuple[Executable, Callable[[], None]]


class Buffers:
    """Input and outputs per bucket, and the runs bound to them. counts: int64 [T, 2], lookups and misses by table."""

    def __init__(self, width: int, outputs: Mapping[str, int], tables: int) -> None:
        self._width, self._outputs = width, outputs
        self.counts: NDArray[np.int64] = np.zeros((max(1, tables), 2), np.int64)
        self._arrays: dict[int, tuple[Matrix, Outputs]] = {}
        self._bound: dict[int, Bound] = {}
        self._ahead: Mapping[int, Bound] = {}

    def get(self, executable: Executable) -> tuple[Matrix, Outputs, Callable[[], None]]:
        """(x, outputs, run) of an executable; allocates and binds where that was not done ahead."""
        bucket = executable.bucket
        bound = self._bound.get(bucket)
        if bound is None or bound[0] is not executable:
            bound = self._ahead.get(bucket)
            if bound is None or bound[0] is not executable:
                bound = (executable, executable.bind(*self._of(bucket)))
            self._bound[bucket] = bound
        x, outputs = self._arrays[bucket]
        return x, outputs, bound[1]

    def bind_ahead(self, executables: Mapping[int, Executable], run: bool = False) -> None:
        """Binds all of them for batches to come. run: also runs each once; only while no session has these buffers."""
        ahead = {bucket: (e, e.bind(*self._of(bucket))) for bucket, e in executables.items()}
        if run:
            for _, call in ahead.values():
                call()
        self._ahead = ahead

    def settle(self, executables: Mapping[int, Executable]) -> None:
        """Lets go of runs of other executables than these, which are all that sessions will ask for: so that whoever
        calls this frees what they hold, and not the session that meets its successor."""
        for bucket, bound in list(self._bound.items()):
            ahead = self._ahead.get(bucket)
            if bound[0] is not executables.get(bucket) and ahead is not None and ahead[0] is executables.get(bucket):
                self._bound[bucket] = ahead

    def _of(self, bucket: int) -> tuple[Matrix, Outputs]:
        arrays = self._arrays.get(bucket)
        if arrays is None:
            outputs = {name: aligned((bucket, columns)) for name, columns in self._outputs.items()}
            # Whoever comes second takes the arrays of who came first: there is one pair a bucket.
            arrays = self._arrays.setdefault(bucket, (aligned((bucket, self._width)), outputs))
        return arrays
