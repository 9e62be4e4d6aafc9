"""Open executables of one bucket at a time, separately from those that answer requests, from the same files.

Ownership: used by one thread at a time. What is opened is shared with nothing: no session's buffers, no replica's
frame, no pin. A supervisor has it in a process of its own (processor.explaining.scoring_process).

The file that serves a bucket is chosen as for a replica (processor.backends.opening), by the same checks in the same
order; likewise whether float32 replaces a lower precision with these weights.

Costs: the memory of KEPT buckets of a version, and of the weights that are packed into them, two sets per bucket; freed
with the version. The first explanation of a version loads the backend's library if this process has not loaded it.

Rejected: running on a session's buffers, or in a worker (a request would wait for an explanation), and opening every
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
    """The result of scoring rows with a spare executable.

    Attributes:
        outputs: float32 [n, columns] by name.
        entry: The manifest's entry of the executable.
        computes: Backend and precision, and why it is no lower precision.
        open_s: Seconds until it was ready.
        execute_s: Seconds of one warm run.
    """

    outputs: dict[str, Matrix]
    entry: ExecutableEntry
    computes: str
    open_s: float
    execute_s: float


class ScoringPath(NamedTuple):
    """The way in which rows are scored.

    Attributes:
        bucket: The bucket in which they are run.
        parts: True to run the user's part first, then the candidates' part, whose bucket it is
            (processor.package.roles).
    """

    bucket: int
    parts: bool = False


Score = Callable[[VersionReader, ScoringPath, Weights, Matrix], SpareRun]
"""Scores rows x [n, width] with a version's executables and these dense weights; raises FreshetError if it cannot."""


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
        """Score rows with a spare executable, opening it if necessary (see Score).

        Args:
            files: The version's files.
            way: How to score.
            dense: The dense weights.
            x: float32 [n, width].
        """
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
        computes = f"user's part {user.computes}, candidates {candidate.computes}"
        return SpareRun(scores, candidate.entry, computes, open_s, execute_s)

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
    """Return the outputs of rows x [n, width] of the whole graph, each as its own request with its own user vector."""
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
    """Return the seconds of one warm run of the bucket. x: float32 [width], repeated in all rows."""
    given = aligned((executable.bucket, len(x)))
    given[:] = x
    run = executable.bind_buffers(given, {name: aligned((executable.bucket, count)) for name, count in columns.items()})
    run()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _same(some: Weights, others: Weights) -> bool:
    """Report whether these are the very same arrays."""
    return some is others or (some.keys() == others.keys() and all(a is others[name] for name, a in some.items()))
