"""Executables of a lower precision that serve only as long as their scores stay within a bound of float32's.

Beside them lie the float32 executables of the same buckets, and rows to compare by, which the version brings with it.
New dense weights are taken by both, in the background, before anybody is sent here; where the scores of the rows differ
by more than the bound, the buckets of that precision are those of float32 until weights come that meet it again. The
comparison is a function of weights, rows and processor, so that all workers of a machine come to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.base import Artefact, Executable, Matrix, Program, Weights, aligned
from freshet_serving.processor.errors import BadInput

log = logging.getLogger("freshet.executables")

SHARE = 0.99
"""Of the rows whose change is to be within the bound."""
ROWS = "x"
"""The tensor of a file of rows to compare by."""
MAX_ROWS = 256


def row_errors(got: Mapping[str, Matrix], wanted: Mapping[str, Matrix]) -> NDArray[Any]:
    """How far any output of each row is off: absolute below 1, relative above. Infinity, for all rows, where one is a
    number and the other is not, or another infinity."""
    worst: NDArray[Any] = np.zeros(1)
    for name, values in got.items():
        reference = wanted[name][: len(values)]
        finite = np.isfinite(reference)
        if not np.array_equal(finite, np.isfinite(values)) or not np.array_equal(
            values[~finite], reference[~finite], equal_nan=True
        ):
            return np.array([np.inf])
        off = np.abs(np.where(finite, values, 0) - np.where(finite, reference, 0))
        off /= np.maximum(1.0, np.abs(np.where(finite, reference, 0)))
        worst = np.maximum(worst, off.reshape(len(off), -1).max(axis=1, initial=0.0))
    return worst


def typical_error(got: Mapping[str, Matrix], wanted: Mapping[str, Matrix]) -> float:
    """The 99th percentile of row_errors()."""
    return float(np.quantile(row_errors(got, wanted), SHARE, method="higher"))


def outputs_of(executable: Executable, x: Matrix, columns: Mapping[str, int]) -> dict[str, Matrix]:
    """What an executable gives for rows x [n, width], bucket by bucket; the last is filled up with the last row."""
    bucket, n = executable.bucket, len(x)
    given = aligned((bucket, x.shape[1]))
    room = {name: aligned((bucket, count)) for name, count in columns.items()}
    found = {name: np.empty((n, count), np.float32) for name, count in columns.items()}
    run = executable.bind_buffers(given, room)
    for start in range(0, n, bucket):
        rows = x[start : start + bucket]
        given[: len(rows)], given[len(rows) :] = rows, rows[-1]
        run()
        for name, values in room.items():
            found[name][start : start + len(rows)] = values[: len(rows)]
    return found


@dataclass(frozen=True, slots=True)
class ScoreBound:
    """What holds a bucket. computes: backend and precision, in words; instead: those of what serves else. rows: x
    float32 [n, width] to compare by. error: how large typical_error() may be."""

    computes: str
    instead: str
    rows: Matrix
    error: float


class BoundedProgram:
    """processor.backends.base.Program. lower: programs of which the buckets of `bounds` compute in a lower precision;
    exact: programs of float32 that have these buckets as well. errors: of the newest weights, by what computes; back:
    buckets that float32 serves since then, as it is said."""

    def __init__(
        self,
        name: str,
        lower: Sequence[Program],
        exact: Sequence[Program],
        bounds: Mapping[int, ScoreBound],
        columns: Mapping[str, int],
    ) -> None:
        """name: of the version, for the log. columns: of the outputs, by name."""
        self._name, self._lower, self._exact = name, lower, exact
        self._bounds, self._columns = dict(bounds), dict(columns)
        self.errors: dict[str, float] = {}
        self.back: dict[int, str] = {}

    def add(self, artefact: Artefact) -> None:
        raise BadInput("executable: a bounded program takes no further ones")

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """See processor.backends.base.Program.with_weights."""
        chosen, exact = _all(self._lower, weights), _all(self._exact, weights)
        errors: dict[str, float] = {}
        back: dict[int, str] = {}
        # The largest first: it takes the fewest runs to tell of all that compute the same way.
        for bucket, bound in sorted(self._bounds.items(), reverse=True):
            if bound.computes not in errors:
                got, wanted = (outputs_of(each[bucket], bound.rows, self._columns) for each in (chosen, exact))
                error = errors[bound.computes] = typical_error(got, wanted)
                if error > bound.error:
                    log.warning(
                        "%s: %s is off by %.2g with these dense weights, at most %g wanted: float32 serves",
                        self._name, bound.computes, error, bound.error,
                    )  # fmt: skip
            if errors[bound.computes] > bound.error:
                chosen[bucket] = exact[bucket]
                back[bucket] = f"{bound.instead}: {bound.computes} is off by {errors[bound.computes]:.2g}"
        self.errors, self.back = errors, back
        return chosen


def _all(programs: Sequence[Program], weights: Weights) -> dict[int, Executable]:
    return {bucket: executable for program in programs for bucket, executable in program.with_weights(weights).items()}
