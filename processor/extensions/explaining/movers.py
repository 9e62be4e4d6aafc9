"""Attribute a change of score to features, histories and dense weights, by replacing one at a time.

Everything but one thing is as in the explained generation; that one is taken from the other, and the same executable
scores the row again. The rows of all features and histories are scored together, bucket by bucket. The changes need not
add up to the whole: a network lets features interact.

Rejected: Shapley values, which need as many runs as there are subsets of features to share out interactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import MATRIX, Weights
from freshet_serving.processor.package import Manifest, dense_sequences

MOST_MOVED = 64

Row = NDArray[np.float32]
Scores = Mapping[str, Row]


class ScoredRow(NamedTuple):
    """A row as one generation scores it.

    Inputs of the dense graph are float32 [1, width] by name, the matrix of features and sequences; outputs are float32
    [columns] by name. `score` scores rows of such inputs, [n, width] each, by the same executable.
    """

    manifest: Manifest
    inputs: Mapping[str, Row]
    dense: Weights
    outputs: Scores
    score: Callable[[Mapping[str, Row]], Scores]


def comparable(manifest: Manifest, other: Manifest) -> bool:
    """Report whether features and sequences of two versions have the same columns, and their outputs the same names."""

    def shape(m: Manifest) -> Any:
        histories = {s.name: (s.width, [(c.name, c.offset, c.width) for c in s.columns], s.time) for s in m.sequences}
        return m.width, sorted((f.name, f.offset, f.width) for f in m.features), histories, m.outputs

    return bool(shape(manifest) == shape(other))


def movers(side: ScoredRow, other: ScoredRow) -> tuple[list[dict[str, Any]], int]:
    """Return how far the score falls if one thing is as under the generation of a comparable() version, as JSON.

    At most MOST_MOVED changes, the largest first, and the number of smaller ones that were left out.
    """
    parts: list[tuple[str, str | None, str, int, int]]
    parts = [(f"feature {f.name}", f.name, MATRIX, f.offset, f.width) for f in side.manifest.features]
    parts += [(f"history {s.name}", None, s.name, 0, s.width) for s in dense_sequences(side.manifest.sequences)]
    changed = [p for p in parts if _differs(side.inputs[p[2]][0], other.inputs[p[2]][0], *p[3:])]
    rows = {name: np.repeat(row, len(changed), 0) for name, row in side.inputs.items()}
    for n, (_, _, name, offset, width) in enumerate(changed):
        rows[name][n, offset : offset + width] = other.inputs[name][0, offset : offset + width]
    figures: list[dict[str, Any]] = []
    if changed:
        scores = side.score(rows)
        for n, (kind, feature, *_) in enumerate(changed):
            figures.append(_moved(kind, feature, side.outputs, {o: s[n] for o, s in scores.items()}))
    if not _equal(side.dense, other.dense):
        scores = other.score(side.inputs)
        figures.append(_moved("dense weights", None, side.outputs, {o: s[0] for o, s in scores.items()}))
    figures.sort(key=lambda moved: -abs(np.nan_to_num(moved["score_change"])))
    return figures[:MOST_MOVED], max(0, len(figures) - MOST_MOVED)


def additions(side: ScoredRow) -> dict[str, np.float32]:
    """Return by feature how far the score falls without its rows: as if they were zeros."""
    row = side.inputs[MATRIX][0]
    read = [f for f in side.manifest.features if f.table and row[f.offset : f.offset + f.width].any()]
    if not read:
        return {}
    rows = {name: np.repeat(own, len(read), 0) for name, own in side.inputs.items()}
    for n, f in enumerate(read):
        rows[MATRIX][n, f.offset : f.offset + f.width] = 0.0
    scores = side.score(rows)
    without = [{output: values[n] for output, values in scores.items()} for n in range(len(read))]
    return {f.name: largest_change(changes(side.outputs, each)) for f, each in zip(read, without)}


def changes(scores: Scores, others: Scores) -> dict[str, Row]:
    """Return scores minus others, float32 [columns] by output."""
    return {name: values - others[name] for name, values in scores.items()}


def largest_change(by_output: Scores) -> np.float32:
    """Return the change furthest from 0, of all outputs and columns."""
    every = np.concatenate(list(by_output.values()))
    largest: np.float32 = every[np.argmax(np.abs(np.nan_to_num(every)))]
    return largest


def _moved(what: str, feature: str | None, scores: Scores, without: Scores) -> dict[str, Any]:
    by = changes(scores, without)
    return {"what": what, "feature": feature, "score_change": largest_change(by), "outputs": by}


def _differs(some: Row, others: Row, offset: int, width: int) -> bool:
    columns = slice(offset, offset + width)
    return not np.array_equal(some[columns], others[columns], equal_nan=True)


def _equal(some: Weights, others: Weights) -> bool:
    return some is others or (
        some.keys() == others.keys() and all(a is others[n] or np.array_equal(a, others[n]) for n, a in some.items())
    )
