"""A session's buffers for one version, made and bound before a request needs them.

A replica keeps a stock of them, warm, as many as there are sessions, and remembers those that it has lent. Before a
flip it binds the new executables to all of them, so that the first batch after a load or a flip allocates and binds
nothing.

Who owns what: arrays and bindings are used by one session at a time. The thread of changes only ever adds bindings that
no session has run, which wait in `ahead` until a batch under the new state takes them. All buckets of a role share one
matrix and one array an output: a bucket of n rows is the first n of them, so a batch is one whatever it is run as.
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
    """The ends of a role's executables. width: of the input. outputs: name -> columns. rows: of the largest bucket."""

    width: int
    outputs: Mapping[str, int]
    rows: int


class Buffers:
    """Input and outputs per role, and the runs bound to them by bucket. counts: int64 [T, 2], lookups and misses by
    table. block: what the batches were like."""

    def __init__(
        self, io_shapes: Mapping[str, IoShape], tables: int, outputs: int, allocate: Allocate = aligned
    ) -> None:
        """ends: of the executables of each role. outputs: how many the model has. allocate: zeros of a shape."""
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
        """The input of the role's largest bucket, which begins with that of every other."""
        return self._whole[role][0]

    def get(self, executable: Executable, role: str = WHOLE) -> tuple[Matrix, Outputs, Callable[[], None]]:
        """(x, outputs, run) of an executable; allocates and binds where that was not done ahead."""
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
        """Binds all of them for batches to come. run: also runs each once; only while no session has these buffers."""
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
        """Lets go of runs of other executables than these, which are all that sessions will ask for: so that whoever
        calls this frees what they hold, and not the session that meets its successor."""
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
            # Whoever comes second takes the views of who came first: a run reads what a session writes either way.
            arrays = self._arrays.setdefault(key, part)
        return arrays
