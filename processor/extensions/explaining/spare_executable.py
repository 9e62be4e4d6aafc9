"""Open executables of one bucket at a time, separately from those that answer requests, from the same files.

Ownership: used by one thread at a time. What is opened is shared with nothing: no session's buffers, no replica's
frame, no pin. A supervisor has it in a process of its own (scoring_process).

The file that serves a bucket is chosen as for a replica (processor.running.opening), by the same checks in the same
order; likewise whether float32 replaces a lower precision with these weights.

Costs: the memory of KEPT buckets of a version, and of the weights that are packed into them, two sets per bucket; freed
with the version. The first explanation of a version loads the backend's library if this process has not loaded it.

Rejected: running on a session's buffers, or in a worker (a request would wait for an explanation), and opening every
bucket (a second for a package of thirteen).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from freshet_serving.processor.backends import MATRIX, Executable, IoSpec, Matrix, Weights
from freshet_serving.processor.errors import first_of
from freshet_serving.processor.package import (
    SCORE,
    USER,
    ExecutableEntry,
    Manifest,
    columns,
    undivided_name,
    user_features,
)
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.repository import VersionReader
from freshet_serving.processor.running import OpenedPrograms, Package, open_programs
from freshet_serving.processor.running.given_rows import Tensors, outputs_of
from freshet_serving.processor.running.opening import io_spec

KEPT, WEIGHTS_KEPT = 4, 2


class SpareRun(NamedTuple):
    """Outputs of rows, float32 [n, columns] by name, and the time until the executable was ready and of one warm run.

    `computes` names backend and precision, and why it is no lower precision.
    """

    outputs: dict[str, Matrix]
    entry: ExecutableEntry
    computes: str
    open_s: float
    execute_s: float


class ScoringPath(NamedTuple):
    """The bucket in which rows are run, of the candidates' part, after the user's, for `parts` (package.subgraphs)."""

    bucket: int
    parts: bool = False


Score = Callable[[VersionReader, ScoringPath, Weights, Tensors], SpareRun]
"""Scores inputs of the undivided subgraph with a version's executables and these dense weights; raises FreshetError if
it cannot."""


@dataclass(frozen=True, slots=True, eq=False)
class _OpenExecutable:
    executable: Executable
    spec: IoSpec
    entry: ExecutableEntry
    computes: str


Key = tuple[str, int]
"""Subgraph and bucket."""


@dataclass(slots=True)
class _Bucket:
    opened: OpenedPrograms
    packed: list[tuple[Weights, _OpenExecutable]] = field(default_factory=list)


class SpareExecutables:
    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[VersionReader, dict[Key, _Bucket]] = weakref.WeakKeyDictionary()

    def score(self, files: VersionReader, way: ScoringPath, dense: Weights, inputs: Tensors) -> SpareRun:
        """Score n rows of the undivided subgraph, opening an executable if necessary (Score)."""
        began_s, name = time.perf_counter(), undivided_name(files.manifest)
        if not way.parts or USER not in subgraphs(files.manifest):
            whole = self._get(files, (name, way.bucket), dense)
            open_s = time.perf_counter() - began_s
            outputs = outputs_of(whole.executable, inputs, whole.spec)
            return SpareRun(outputs, whole.entry, whole.computes, open_s, _timed(whole, inputs))
        smallest = min(e.bucket for e in files.manifest.executables if e.subgraph == USER)
        user = self._get(files, (USER, smallest), dense)
        candidate = self._get(files, (SCORE, way.bucket), dense)
        open_s = time.perf_counter() - began_s
        users, rows = _divided(files.manifest, inputs)
        computed = outputs_of(user.executable, users, user.spec)
        outputs, execute_s = _each_alone(candidate, rows, computed)
        computes = f"user's part {user.computes}, candidates {candidate.computes}"
        return SpareRun(outputs, candidate.entry, computes, open_s, _timed(user, users) + execute_s)

    def _get(self, files: VersionReader, key: Key, dense: Weights) -> _OpenExecutable:
        of_version, (name, bucket) = self._kept.setdefault(files, {}), key
        spec = io_spec(name, subgraphs(files.manifest)[name])
        programs = of_version.pop(key, None)
        if programs is None:
            programs = _Bucket(open_programs(_OneBucket(files, key), spec, subgraph=name))
        of_version[key] = programs
        while len(of_version) > KEPT:
            del of_version[first_of(of_version)]
        for weights, spare in programs.packed:
            if _same(weights, dense):
                return spare
        (program,) = programs.opened.programs
        executable = program.with_weights(dense)[bucket]
        spare = _OpenExecutable(executable, spec, programs.opened.chosen[bucket], programs.opened.computes()[bucket])
        programs.packed = [*programs.packed[1 - WEIGHTS_KEPT :], (dense, spare)]
        return spare


class _OneBucket:
    """A package whose manifest lists the executables of one subgraph and bucket."""

    def __init__(self, files: Package, key: Key) -> None:
        self._files = files
        of_bucket = [e for e in files.manifest.executables if (e.subgraph, e.bucket) == key]
        self.manifest: Manifest = replace(files.manifest, executables=of_bucket)

    def file(self, name: str) -> bytes:
        return self._files.file(name)


def _divided(manifest: Manifest, inputs: Tensors) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
    """Return the inputs of `user` and of `score` for rows of the undivided subgraph, but for the user's tensors."""
    user, x = columns(user_features(manifest.features)), inputs[MATRIX]
    others = sorted(set(range(x.shape[1])) - set(user))
    user_inputs = {i.name: inputs[i.name] for i in subgraphs(manifest)[USER].inputs}
    if MATRIX in user_inputs:
        user_inputs[MATRIX] = np.ascontiguousarray(x[:, user])
    return user_inputs, {**inputs, MATRIX: np.ascontiguousarray(x[:, others])}


def _each_alone(candidate: _OpenExecutable, rows: Tensors, computed: Tensors) -> tuple[dict[str, Matrix], float]:
    """Return the outputs of rows, each as its own request with its own user, and the seconds of one run."""
    bucket, spec = candidate.executable.bucket, candidate.spec
    bound, room = spec.allocate_inputs(bucket), spec.allocate_outputs(bucket)
    run = candidate.executable.bind_buffers(bound, room)
    count = len(rows[MATRIX])
    outputs = {name: np.empty((count, *values.shape[1:]), np.float32) for name, values in room.items()}
    for n in range(count):
        for name, array in bound.items():
            array[:] = computed[name][n] if name in computed else rows[name][n]
        run()
        for name, values in room.items():
            outputs[name][n] = values[0]
    began_s = time.perf_counter()
    run()
    return outputs, time.perf_counter() - began_s


def _timed(opened: _OpenExecutable, inputs: Tensors) -> float:
    """Return the seconds of one warm run of the bucket, with the first row in all rows."""
    bound = opened.spec.allocate_inputs(opened.executable.bucket)
    for name, array in bound.items():
        array[:] = inputs[name][:1]
    run = opened.executable.bind_buffers(bound, opened.spec.allocate_outputs(opened.executable.bucket))
    run()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _same(some: Weights, others: Weights) -> bool:
    return some is others or (some.keys() == others.keys() and all(a is others[name] for name, a in some.items()))
