"""Allocate and bind a session's buffers for one version before a request needs them.

A replica keeps a stock of warm buffers, as many as there are sessions, and tracks those in use. Before a flip it binds
the new executables to all of them, so that the first batch after a load or a flip allocates and binds nothing.

Ownership. Arrays and bindings are used by one session at a time. The writer's thread only ever adds bindings that no
session has run, which wait in `ahead` until a batch under the new state uses them. All buckets of a role share one
matrix and one array per output: a bucket of n rows is the first n of them, so the rows of a batch lie in one place
whatever buckets it is run in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.base import Executable, Matrix, aligned
from freshet_serving.processor.package import WHOLE
from freshet_serving.processor.watching import StatsBlock

Outputs = dict[str, Matrix]
Bound = tuple[Executable, Callable[[], None]]
Key = tuple[str, int]
Allocate = Callable[[tuple[int, ...]], Matrix]
Executables = Mapping[str, Mapping[int, Executable]]
"""By role (processor.package.roles) and bucket."""


class IoShape(NamedTuple):
    """Input and output sizes of a role's executables.

    Attributes:
        width: Columns of the input.
        outputs: Columns of each output, by name.
        rows: Rows of the largest bucket.
    """

    width: int
    outputs: Mapping[str, int]
    rows: int


class Buffers:
    """Input and outputs per role, and the runs bound to them by bucket.

    Attributes:
        counts: Lookups and misses by table, int64 [T, 2].
        block: Statistics of the batches.
    """

    def __init__(
        self, io_shapes: Mapping[str, IoShape], tables: int, outputs: int, allocate: Allocate = aligned
    ) -> None:
        """Allocate the buffers.

        Args:
            io_shapes: Sizes of each role's executables.
            tables: Number of tables.
            outputs: Number of the model's outputs.
            allocate: Returns zeros of a shape.
        """
        self.counts: NDArray[np.int64] = np.zeros((max(1, tables), 2), np.int64)
        self.block = StatsBlock(outputs)
        self._whole: dict[str, tuple[Matrix, Outputs]] = {
            role: (allocate((rows, width)), {name: allocate((rows, n)) for name, n in outputs.items()})
            for role, (width, outputs, rows) in io_shapes.items()
        }
        self._arrays: dict[Key, tuple[Matrix, Outputs]] = {}
        self._bound: dict[Key, Bound] = {}
        self._ahead: Mapping[Key, Bound] = {}

    def rows(self, role: str = WHOLE) -> Matrix:
        """Return the input of the role's largest bucket, which begins with that of every other."""
        return self._whole[role][0]

    def get(self, executable: Executable, role: str = WHOLE) -> tuple[Matrix, Outputs, Callable[[], None]]:
        """Return (x, outputs, run) of an executable; allocate and bind unless done ahead.

        Args:
            executable: The executable.
            role: Its role.
        """
        key = role, executable.bucket
        bound = self._bound.get(key)
        if bound is None or bound[0] is not executable:
            bound = self._ahead.get(key)
            if bound is None or bound[0] is not executable:
                bound = (executable, executable.bind_buffers(*self._of(key)))
            self._bound[key] = bound
        x, outputs = self._arrays[key]
        return x, outputs, bound[1]

    def bind_ahead(self, executables: Executables, run: bool = False) -> None:
        """Bind executables for later batches.

        Args:
            executables: The executables by role and bucket.
            run: Run each once as well; only while no session has these buffers.
        """
        ahead = {
            (role, bucket): (e, e.bind_buffers(*self._of((role, bucket))))
            for role, part in executables.items()
            for bucket, e in part.items()
        }
        if run:
            for _, call in ahead.values():
                call()
        self._ahead = ahead

    def drop_stale_runs(self, executables: Executables) -> None:
        """Drop bound runs of executables other than these, the only ones that sessions will use from now on.

        So the calling thread frees their memory, and not the session that first runs the successor.
        """
        for key, bound in list(self._bound.items()):
            role, bucket = key
            newest, ahead = executables[role].get(bucket), self._ahead.get(key)
            if bound[0] is not newest and ahead is not None and ahead[0] is newest:
                self._bound[key] = ahead

    def _of(self, key: Key) -> tuple[Matrix, Outputs]:
        arrays = self._arrays.get(key)
        if arrays is None:
            role, bucket = key
            x, outputs = self._whole[role]
            part = x[:bucket], {name: array[:bucket] for name, array in outputs.items()}
            # Both threads then share the first one's views: a run reads what a session writes either way.
            arrays = self._arrays.setdefault(key, part)
        return arrays
