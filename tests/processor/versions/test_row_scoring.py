"""Scores travel between the processes of a server unchanged."""

import numpy as np

from freshet_serving.processor.versions.row_scoring import dump_scores, parse_scores
from freshet_serving.processor.watching import RequestScores


def test_scores_are_the_same_in_another_process():
    outputs = {"click": np.array([[0.5], [0.0]], np.float32), "buy": np.array([[np.nan], [0.0]], np.float32)}
    scores = RequestScores(np.array([True, False]), np.array([False, True]), outputs, (7, 2))
    copied = parse_scores(dump_scores(scores))
    assert copied.outputs.keys() == outputs.keys()
    assert all(np.array_equal(copied.outputs[name], array, equal_nan=True) for name, array in outputs.items())
    assert (copied.scored.tolist(), copied.refused.tolist(), copied.lookups) == ([True, False], [False, True], (7, 2))
