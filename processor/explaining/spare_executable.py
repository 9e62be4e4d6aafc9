"""Executables of one bucket at a time, opened apart from those that answer requests, from the same files.

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

import numpy as np

from freshet_serving.processor.backends import (
    Executable,
    Matrix,
    OpenedPrograms,
    Package,
    Weights,
    aligned,
    open_programs,
)
from freshet_serving.processor.backends.bounded import outputs_of
from freshet_serving.processor.package import (
    CANDIDATE,
    USER,
    USER_VECTOR,
    WHOLE,
    ExecutableEntry,
    Manifest,
    UserSplitSpec,
    columns,
    division,
    write_user_vector,
)
from freshet_serving.processor.repository import VersionReader

KEPT, WEIGHTS_KEPT = 4, 2


class SpareRun(NamedTuple):
    """What a spare executable made of some rows. outputs: float32 [n, columns] by name. entry: the manifest's.
    computes: backend and precision, and why it is no lower one. open_s: until it was there; execute_s: of one run,
    warm."""

    outputs: dict[str, Matrix]
    entry: ExecutableEntry
    computes: str
    open_s: float
    execute_s: float


class ScoringPath(NamedTuple):
    """How rows are scored. bucket: that they are run in. parts: the user's part first, then that of candidates, which
    the bucket is of (processor.package.roles)."""

    bucket: int
    parts: bool = False


Score = Callable[[VersionReader, ScoringPath, Weights, Matrix], SpareRun]
"""Scores rows x [n, width] of a version's dense graph by its executables, with these weights; raises FreshetError where
they cannot be had."""


@dataclass(frozen=True, slots=True, eq=False)
class _OpenExecutable:
    executable: Executable
    entry: ExecutableEntry
    computes: str


Key = tuple[str, int]
"""Role and bucket."""


@dataclass(slots=True)
class _Bucket:
    opened: OpenedPrograms
    packed: list[tuple[Weights, _OpenExecutable]] = field(default_factory=list)


class SpareExecutables:
    """Spare executables of any version, by bucket and dense weights, in this process."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[VersionReader, dict[Key, _Bucket]] = weakref.WeakKeyDictionary()

    def score(self, files: VersionReader, way: ScoringPath, dense: Weights, x: Matrix) -> SpareRun:
        """See Score."""
        began_s = time.perf_counter()
        outputs = {o.name: o.columns for o in files.manifest.outputs}
        parts = division(files.manifest) if way.parts else None
        if parts is None:
            whole = self._get(files, (WHOLE, way.bucket), dense, files.manifest.width, outputs)
            open_s = time.perf_counter() - began_s
            execute_s = _timed(whole.executable, x[0], outputs)
            return SpareRun(outputs_of(whole.executable, x, outputs), whole.entry, whole.computes, open_s, execute_s)
        smallest = min(e.bucket for e in files.manifest.executables if e.role == USER)
        user = self._get(files, (USER, smallest), dense, parts.user.width, parts.user.outputs)
        candidate = self._get(files, (CANDIDATE, way.bucket), dense, parts.candidate.width, outputs)
        open_s = time.perf_counter() - began_s
        execute_s = _timed(user.executable, x[0, columns(parts.user.features)], parts.user.outputs)
        execute_s += _timed(candidate.executable, np.resize(x[0], parts.candidate.width), outputs)
        scores = _in_parts(parts, user.executable, candidate.executable, x, outputs)
        told = f"user's part {user.computes}, candidates {candidate.computes}"
        return SpareRun(scores, candidate.entry, told, open_s, execute_s)

    def _get(
        self, files: VersionReader, key: Key, dense: Weights, width: int, outputs: Mapping[str, int]
    ) -> _OpenExecutable:
        kept, (role, bucket) = self._kept.setdefault(files, {}), key
        found = kept.pop(key, None)
        if found is None:
            found = _Bucket(open_programs(_OneBucket(files, key), width, outputs, role=role))
        kept[key] = found
        while len(kept) > KEPT:
            del kept[next(iter(kept))]
        for weights, spare in found.packed:
            if _same(weights, dense):
                return spare
        (program,) = found.opened.programs
        executable = program.with_weights(dense)[bucket]
        spare = _OpenExecutable(executable, found.opened.chosen[bucket], found.opened.computes()[bucket])
        found.packed = [*found.packed[1 - WEIGHTS_KEPT :], (dense, spare)]
        return spare


class _OneBucket:
    """A package whose manifest lists the executables of one role and bucket."""

    def __init__(self, files: Package, key: Key) -> None:
        self._files = files
        mine = [e for e in files.manifest.executables if (e.role, e.bucket) == key]
        self.manifest: Manifest = replace(files.manifest, executables=mine)

    def file(self, name: str) -> bytes:
        return self._files.file(name)


def _in_parts(
    parts: UserSplitSpec, user: Executable, candidate: Executable, x: Matrix, outputs: Mapping[str, int]
) -> dict[str, Matrix]:
    """Outputs for rows x [n, width] of the whole graph, each a request of its own: a lane holds one user."""
    users = outputs_of(user, np.ascontiguousarray(x[:, columns(parts.user.features)]), parts.user.outputs)[USER_VECTOR]
    given = aligned((candidate.bucket, parts.candidate.width))
    room = {name: aligned((candidate.bucket, count)) for name, count in outputs.items()}
    found = {name: np.empty((len(x), count), np.float32) for name, count in outputs.items()}
    run, own = candidate.bind_buffers(given, room), columns(parts.candidate.features)
    for n, row in enumerate(x):
        given[:, : len(own)] = row[own]
        write_user_vector(parts, users[n], given)
        run()
        for name, values in room.items():
            found[name][n] = values[0]
    return found


def _timed(executable: Executable, x: Matrix, columns: Mapping[str, int]) -> float:
    """Seconds of one run of the bucket, warm. x: float32 [width], all of its rows."""
    given = aligned((executable.bucket, len(x)))
    given[:] = x
    run = executable.bind_buffers(given, {name: aligned((executable.bucket, count)) for name, count in columns.items()})
    run()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _same(some: Weights, others: Weights) -> bool:
    """Whether these are the very same arrays."""
    return some is others or (some.keys() == others.keys() and all(a is others[name] for name, a in some.items()))
