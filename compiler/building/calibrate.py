"""Measure every executable and check it against TensorFlow; choose the fastest correct one for each bucket.

Measured in this process, on one thread, warmed up, medians, the candidates of a bucket in turn, so that a disturbance
affects all of them alike.

Correct is, in float32, no output off by more than TOLERANCE; in a lower precision, 99 rows in 100 within the user's
bound (absolute below 1, relative above) and, with labelled rows, an AUC within the user's bound for it. The check uses
rows like the package's own, in every bucket, with the compiled weights and once more with others, as after a delta: an
executable that is only correct for the weights it was made with is refused. With the weights that really arrive, a
lower precision is checked at serving (processor.running.bounded): here its error may be SLACK times the bound.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.base import MAX_ERROR
from freshet_serving.compiler.building.auc import auc
from freshet_serving.compiler.building.compile import TOLERANCE, AnyDenseGraph, largest_error, load
from freshet_serving.compiler.dense.dense_graph import Tensors
from freshet_serving.processor.backends import Executable as Loaded
from freshet_serving.processor.backends import Matrix, Program
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package import ExecutableEntry
from freshet_serving.processor.running.bounded import typical_error
from freshet_serving.processor.running.given_rows import outputs_of

MAX_AUC_CHANGE = 1e-4
AUTO = "auto"
SLACK = 5
CHECKED_ROWS, AUC_ROWS = 1024, 4096
ROUNDS, LEAST_ROUNDS = 61, 9
BUCKET_S = 2.0
FLIPS = 3


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """n inputs of the whole graph with labels, float32 [n], 0 or 1.

    Attributes:
        output: The output that predicts them; "" for `score`, or else the first output.
    """

    inputs: Tensors
    labels: NDArray[np.float32]
    output: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    error: float = MAX_ERROR
    auc_change: float = MAX_AUC_CHANGE


@dataclass(slots=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        measured: Every correct executable, with its cost and error.
        refused: The others, each with the reason.
        flip_ms: By variant, the cost of new dense weights before a flip, all buckets together.
        auc: By variant, the change of the AUC.
    """

    measured: list[ExecutableEntry] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    flip_ms: dict[str, float] = field(default_factory=dict)
    auc: dict[str, float] = field(default_factory=dict)

    def chosen(self, precision: str = AUTO) -> list[ExecutableEntry]:
        """Choose the entries for a manifest.

        For each bucket: the fastest, of the given precision if one is named; after it, if that is not float32, the
        fastest in float32, and the fastest that any machine can run.
        """
        entries = []
        for bucket in sorted({e.bucket for e in self.measured}):
            ranked = sorted((e for e in self.measured if e.bucket == bucket), key=lambda e: e.cost_us)
            matching = [e for e in ranked if precision in (AUTO, e.precision)] or ranked
            listed = matching[:1]
            if listed[0].precision != "float32":
                listed += [e for e in ranked if e.precision == "float32"][:1]
            if all(e.features for e in listed):
                listed += [e for e in ranked if not e.features][:1]
            entries += listed
        return entries


def calibrate(
    graph: AnyDenseGraph,
    version_folder: Path,
    entries: Sequence[ExecutableEntry],
    inputs: Tensors,
    bound: Tolerance = Tolerance(),
    labelled: LabelledRows | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Calibration:
    """Load, check and measure what compile.build() wrote; raise BadInput if a bucket has no correct executable.

    `inputs` are rows to check with, repeated if a bucket has more; `advance` is called after every bucket.
    """
    buckets = sorted({e.bucket for e in entries})
    inputs = graph.resized(inputs, max(min(graph.rows(inputs), CHECKED_ROWS), buckets[-1]))
    check = _Check(graph, inputs, graph.run(inputs), bound, labelled)
    result = check.result
    candidates: dict[int, list[tuple[ExecutableEntry, Callable[[], None]]]] = {b: [] for b in buckets}
    for name, group in by_variant(entries).items():
        try:
            opened = load(graph, version_folder, group)
            if opened.refused:
                raise BadInput(opened.refused[0])
            (program,) = opened.programs
            executables = check.correct(program, group[0].precision, name)
        except FreshetError as error:
            result.refused.append(f"{name}: {error}")
            continue
        for entry in group:
            if entry.bucket in executables:
                executable, off = executables[entry.bucket]
                run, _ = _bound(executable, graph, inputs)
                candidates[entry.bucket].append((replace(entry, error=off), run))
    machine = this_machine().name
    for bucket, measurable in candidates.items():
        if not measurable:
            raise BadInput(
                f"bucket {bucket}: no backend gives the same results as TensorFlow: {'; '.join(result.refused)}"
            )
        costs = _interleaved([run for _, run in measurable])
        for (entry, _), cost_s in zip(measurable, costs):
            result.measured.append(replace(entry, cost_us=round(cost_s * 1e6, 2), measured_on=machine))
        advance()
    return result


def by_variant(entries: Sequence[ExecutableEntry]) -> dict[str, list[ExecutableEntry]]:
    groups: dict[str, list[ExecutableEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.variant, []).append(entry)
    return groups


def other_weights(weights: Tensors) -> dict[str, Matrix]:
    """Return weights as a delta might bring them.

    Matrices are slightly changed; vectors are zeros, a case in which libraries like to drop operations.
    """
    random = np.random.default_rng(0)
    return {
        n: (w * random.uniform(0.95, 1.05, w.shape)).astype(np.float32) if w.ndim > 1 else np.zeros_like(w)
        for n, w in weights.items()
    }


def check_ahead(
    graph: AnyDenseGraph,
    program: Program,
    precision: str,
    inputs: Tensors,
    bound: Tolerance,
    labelled: LabelledRows | None,
    name: str,
) -> Calibration:
    """Check a lower precision whose device is not here, by a program of the CPU that rounds as the device does.

    Return reasons to refuse it, if any, and the change of the AUC; nothing is measured.
    """
    inputs = graph.resized(inputs, min(graph.rows(inputs), CHECKED_ROWS))
    check = _Check(graph, inputs, graph.run(inputs), bound, labelled)
    check.correct(program, precision, name)
    return check.result


@dataclass(frozen=True, slots=True)
class _Check:
    """Checks programs of one graph on the same rows; the reasons of refused executables are added to the result."""

    graph: AnyDenseGraph
    inputs: Tensors
    expected: Tensors
    bound: Tolerance
    labelled: LabelledRows | None
    result: Calibration = field(default_factory=Calibration)

    def correct(self, program: Program, precision: str, name: str) -> dict[int, tuple[Loaded, float]]:
        graph, refused, exact = self.graph, self.result.refused, precision == "float32"
        limit = TOLERANCE if exact else self.bound.error
        right: dict[int, tuple[Loaded, float]] = {}
        for bucket, executable in program.with_weights(graph.weights).items():
            error = self._error(executable, exact, self.expected)
            if error > limit:
                refused.append(f"{name} b{bucket}: differs from TensorFlow by {error:.2g}, expected at most {limit:g}")
            else:
                right[bucket] = executable, error
        changed = other_weights(graph.weights)
        took_s = []
        for _ in range(FLIPS):
            started_s = time.perf_counter()
            flipped = program.with_weights(changed)
            took_s.append(time.perf_counter() - started_s)
        self.result.flip_ms[name] = round(statistics.median(took_s) * 1e3, 3)
        expected = graph.run(self.inputs, changed)
        for bucket, executable in flipped.items():
            error = self._error(executable, exact, expected)
            if error > (limit if exact else SLACK * limit) and bucket in right:
                del right[bucket]
                refused.append(f"{name} b{bucket}: differs from TensorFlow by {error:.2g} with new dense weights")
        if self.labelled is not None and right:
            change, most = _auc_change(graph, right[max(right)][0], self.labelled), self.bound.auc_change
            self.result.auc[name] = round(change, 7)
            if not exact and abs(change) > most:
                refused.append(f"{name}: the AUC changes by {change:.2g}, expected at most {most:g}")
                return {}
        return right

    def _error(self, executable: Loaded, exact: bool, expected: Tensors) -> float:
        if not exact:
            return typical_error(outputs_of(executable, self.inputs, self.graph.spec), expected)
        run, outputs = _bound(executable, self.graph, self.inputs)
        run()
        return largest_error(outputs, expected)


def _auc_change(graph: AnyDenseGraph, executable: Loaded, labelled: LabelledRows) -> float:
    """Return the executable's AUC minus TensorFlow's for the labels' output; 0 if all labels are equal."""
    name = next((o.name for o in graph.outputs if o.name == (labelled.output or "score")), graph.outputs[0].name)
    got = outputs_of(executable, labelled.inputs, graph.spec)[name][:, 0]
    slices = [slice(start, start + AUC_ROWS) for start in range(0, len(labelled.labels), AUC_ROWS)]
    parts = ({n: rows[part] for n, rows in labelled.inputs.items()} for part in slices)
    expected = np.concatenate([graph.run(part)[name][:, 0] for part in parts])
    change = auc(labelled.labels, got) - auc(labelled.labels, expected)
    return 0.0 if np.isnan(change) else change


def _bound(executable: Loaded, graph: AnyDenseGraph, inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
    """Return a run over the first rows, in buffers like a session's, and its outputs."""
    bucket = executable.bucket
    buffers, outputs = graph.spec.allocate_inputs(bucket), graph.spec.allocate_outputs(bucket)
    for name, rows in graph.resized(inputs, bucket).items():
        buffers[name][...] = rows
    return executable.bind_buffers(buffers, outputs), outputs


def _interleaved(runs: Sequence[Callable[[], None]], now_s: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the median seconds of each, run in turn.

    The order is random because a run leaves its code and weights in the caches for the next.
    """
    random = np.random.default_rng(0)
    for run in runs:
        run(), run()
    times: list[list[float]] = [[] for _ in runs]
    began_s = now_s()
    for turn in range(ROUNDS):
        for i in random.permutation(len(runs)):
            started_s = now_s()
            runs[i]()
            times[i].append(now_s() - started_s)
        if turn + 1 >= LEAST_ROUNDS and now_s() - began_s > BUCKET_S:
            break
    return [statistics.median(taken) for taken in times]
