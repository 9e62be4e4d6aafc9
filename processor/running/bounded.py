"""Serve executables of a lower precision only as long as their scores stay within a bound of float32's.

The version contains float32 executables of the same buckets, and rows to compare on. Both get new dense weights in the
background, before the flip; if the rows' scores differ by more than the bound, float32 serves the buckets of that
precision until weights meet the bound again. The comparison depends only on weights, rows and processor, so all workers
of a machine reach the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Artefact, Executable, IoSpec, Matrix, Program, Weights
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.running.given_rows import outputs_of

log = logging.getLogger("freshet.executables")

SHARE = 0.99
"""Share of the rows that must be within the bound."""
MAX_ROWS = 256


def row_errors(got: Mapping[str, Matrix], wanted: Mapping[str, Matrix]) -> NDArray[Any]:
    """Return the largest error of any output for each row, absolute below 1, relative above, against reference rows.

    Infinity for all rows if one side has a non-finite value that the other does not have.
    """
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
    """Return the 99th percentile of row_errors()."""
    return float(np.quantile(row_errors(got, wanted), SHARE, method="higher"))


@dataclass(frozen=True, slots=True)
class ScoreBound:
    """The bound of a bucket's scores: the maximum of typical_error() on rows that outputs_of() accepts.

    `computes` and `instead` are backend and precision of the bucket's executable and of the float32 one.
    """

    computes: str
    instead: str
    rows: Mapping[str, Matrix]
    error: float


class BoundedProgram:
    """A Program that serves a lower precision while it stays within bounds, and float32 otherwise.

    Attributes:
        errors: Errors with the newest weights, by backend and precision.
        back: Buckets that float32 serves with the newest weights, each with the reason.
    """

    def __init__(
        self,
        name: str,
        lower: Sequence[Program],
        exact: Sequence[Program],
        bounds: Mapping[int, ScoreBound],
        spec: IoSpec,
    ) -> None:
        """Create a program over programs of a lower precision and float32 ones, which both have the bounds' buckets."""
        self._name, self._lower, self._exact = name, lower, exact
        self._bounds, self._spec = dict(bounds), spec
        self.errors: dict[str, float] = {}
        self.back: dict[int, str] = {}

    def add(self, artefact: Artefact) -> None:
        raise BadInput("executable: cannot be added to a bounded program")

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets with these weights, after comparing the lower precision with float32."""
        chosen, exact = _all(self._lower, weights), _all(self._exact, weights)
        errors: dict[str, float] = {}
        back: dict[int, str] = {}
        # The largest bucket first: it needs the fewest runs to judge all that compute the same way.
        for bucket, bound in sorted(self._bounds.items(), reverse=True):
            if bound.computes not in errors:
                got, expected = (outputs_of(each[bucket], bound.rows, self._spec) for each in (chosen, exact))
                error = errors[bound.computes] = typical_error(got, expected)
                if error > bound.error:
                    log.warning(
                        "%s: %s is off by %.2g with these dense weights, expected at most %g; serving float32",
                        self._name, bound.computes, error, bound.error,
                    )  # fmt: skip
            if errors[bound.computes] > bound.error:
                chosen[bucket] = exact[bucket]
                back[bucket] = f"{bound.instead}: {bound.computes} is off by {errors[bound.computes]:.2g}"
        self.errors, self.back = errors, back
        return chosen


def _all(programs: Sequence[Program], weights: Weights) -> dict[int, Executable]:
    return {bucket: executable for program in programs for bucket, executable in program.with_weights(weights).items()}
