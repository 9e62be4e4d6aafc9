"""Attribute a change of score to features and dense weights, by replacing one at a time from another generation.

Everything but one thing is as in the explained generation; that one is taken from the other, and the same executable
scores the row again. The scores of all features are one matrix, run bucket by bucket. The changes need not add up to
the whole: a network lets features interact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Weights
from freshet_serving.processor.package import Manifest

MOST_MOVED = 64

Row = NDArray[np.float32]
Scores = Mapping[str, Row]


class ScoredRow(NamedTuple):
    """A row as one generation scores it.

    Attributes:
        manifest: The version's manifest.
        x: float32 [width], the dense graph's input.
        dense: The dense weights.
        outputs: float32 [columns] by name.
        score: Scores rows [n, width] by the same executable.
    """

    manifest: Manifest
    x: Row
    dense: Weights
    outputs: Scores
    score: Callable[[Row], Scores]


def comparable(one: Manifest, other: Manifest) -> bool:
    """Report whether the features of two versions have the same columns, and their outputs the same names.

    Args:
        one: Manifest of a version.
        other: Manifest of another.
    """

    def shape(m: Manifest) -> Any:
        return m.width, sorted((f.name, f.offset, f.width) for f in m.features), m.outputs

    return bool(shape(one) == shape(other))


def movers(side: ScoredRow, other: ScoredRow) -> tuple[list[dict[str, Any]], int]:
    """Return how far the score falls if one thing is as in `other`, as JSON, the largest change first.

    Args:
        side: The explained row.
        other: The same row under a generation of a comparable() version.

    Returns:
        At most MOST_MOVED changes, and the number of smaller ones that were left out.
    """
    features = [f for f in side.manifest.features if _differs(side.x, other.x, f.offset, f.width)]
    changed = np.repeat(side.x[None], len(features), 0)
    for row, f in zip(changed, features):
        row[f.offset : f.offset + f.width] = other.x[f.offset : f.offset + f.width]
    found: list[dict[str, Any]] = []
    if features:
        scores = side.score(changed)
        for n, f in enumerate(features):
            found.append(_moved(f"feature {f.name}", f.name, side.outputs, {o: s[n] for o, s in scores.items()}))
    if not _equal(side.dense, other.dense):
        scores = other.score(np.ascontiguousarray(side.x[None]))
        found.append(_moved("dense weights", None, side.outputs, {o: s[0] for o, s in scores.items()}))
    found.sort(key=lambda moved: -abs(np.nan_to_num(moved["score_change"])))
    return found[:MOST_MOVED], max(0, len(found) - MOST_MOVED)


def changes(scores: Scores, others: Scores) -> dict[str, Row]:
    """Return scores minus others, by output and column.

    Args:
        scores: float32 [columns] by output.
        others: The same outputs of another generation.
    """
    return {name: values - others[name] for name, values in scores.items()}


def _moved(what: str, feature: str | None, scores: Scores, without: Scores) -> dict[str, Any]:
    fallen: Sequence[Row] = list((by := changes(scores, without)).values())
    every = np.concatenate(fallen)
    largest = every[np.argmax(np.abs(np.nan_to_num(every)))]
    return {"what": what, "feature": feature, "score_change": largest, "outputs": by}


def _differs(some: Row, others: Row, offset: int, width: int) -> bool:
    columns = slice(offset, offset + width)
    return not np.array_equal(some[columns], others[columns], equal_nan=True)


def _equal(some: Weights, others: Weights) -> bool:
    return some is others or (
        some.keys() == others.keys() and all(a is others[n] or np.array_equal(a, others[n]) for n, a in some.items())
    )
