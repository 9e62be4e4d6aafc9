"""Executables of one bucket, opened apart from those that answer requests, from the same files.

Who owns what: used by one thread at a time. What is opened belongs to nobody else: no session's buffers, no replica's
frame, no pin. A supervisor has it in a process of its own (processor.explaining.scoring_process).

Which file serves a bucket is settled as for a replica (processor.backends.opening), by the same checks in the same
order; so is whether float32 stands in for a lower precision with these weights.

What it costs: the memory of a few buckets of a version, KEPT of them, and of the weights that are packed into them, two
sets a bucket; given up with the version. The first explanation of a version loads the backend's library where this
process has not got it.

Refused: running on a session's buffers, or in a worker (a request would wait for an explanation), and opening every
bucket (a second for a package of thirteen).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from processor.backends.base import Executable, Matrix, Weights, aligned
from processor.backends.bounded import outputs_of
from processor.backends.opening import Opened, Package, open_programs
from processor.package.manifest import WHOLE, ExecutableEntry, Manifest
from processor.package.version import VersionReader

KEPT, WEIGHTS_KEPT = 3, 2


class SpareRun(NamedTuple):
    """What a spare executable made of some rows. outputs: float32 [n, columns] by name. entry: the manifest's.
    computes: backend and precision, and why it is no lower one. open_s: until it was there; execute_s: of one run,
    warm."""

    outputs: dict[str, Matrix]
    entry: ExecutableEntry
    computes: str
    open_s: float
    execute_s: float


Score = Callable[[VersionReader, int, Weights, Matrix], SpareRun]
"""Scores rows x [n, width] of a version's dense graph, by its executable of a bucket with these weights; raises
FreshetError where that cannot be had."""


@dataclass(frozen=True, slots=True, eq=False)
class _Spare:
    executable: Executable
    entry: ExecutableEntry
    computes: str


@dataclass(slots=True)
class _Bucket:
    opened: Opened
    packed: list[tuple[Weights, _Spare]] = field(default_factory=list)


class SpareExecutables:
    """Spare executables of any version, by bucket and dense weights, in this process."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[VersionReader, dict[int, _Bucket]] = weakref.WeakKeyDictionary()

    def score(self, files: VersionReader, bucket: int, dense: Weights, x: Matrix) -> SpareRun:
        """See Score."""
        began_s = time.perf_counter()
        spare = self._get(files, bucket, dense)
        open_s = time.perf_counter() - began_s
        outputs = {o.name: o.columns for o in files.manifest.outputs}
        scores = outputs_of(spare.executable, x, outputs)
        execute_s = _timed(spare.executable, x[0], outputs)
        return SpareRun(scores, spare.entry, spare.computes, open_s, execute_s)

    def _get(self, files: VersionReader, bucket: int, dense: Weights) -> _Spare:
        kept, manifest = self._kept.setdefault(files, {}), files.manifest
        found = kept.pop(bucket, None)
        if found is None:
            outputs = {o.name: o.columns for o in manifest.outputs}
            found = _Bucket(open_programs(_OneBucket(files, bucket), manifest.width, outputs))
        kept[bucket] = found
        while len(kept) > KEPT:
            del kept[next(iter(kept))]
        for weights, spare in found.packed:
            if _same(weights, dense):
                return spare
        (program,) = found.opened.programs
        executable = program.with_weights(dense)[bucket]
        spare = _Spare(executable, found.opened.chosen[bucket], found.opened.computes()[bucket])
        found.packed = [*found.packed[1 - WEIGHTS_KEPT :], (dense, spare)]
        return spare


class _OneBucket:
    """A package whose manifest lists the executables of one bucket of the whole dense graph."""

    def __init__(self, files: Package, bucket: int) -> None:
        self._files = files
        mine = [e for e in files.manifest.executables if e.bucket == bucket and e.role == WHOLE]
        self.manifest: Manifest = replace(files.manifest, executables=mine)

    def file(self, name: str) -> bytes:
        return self._files.file(name)


def _timed(executable: Executable, x: Matrix, columns: Mapping[str, int]) -> float:
    """Seconds of one run of the bucket, warm. x: float32 [width], all of its rows."""
    given = aligned((executable.bucket, len(x)))
    given[:] = x
    run = executable.bind(given, {name: aligned((executable.bucket, count)) for name, count in columns.items()})
    run()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _same(some: Weights, others: Weights) -> bool:
    """Whether these are the very same arrays."""
    return some is others or (some.keys() == others.keys() and all(a is others[name] for name, a in some.items()))
