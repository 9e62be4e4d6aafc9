import math

import numpy as np
import pytest

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.evaluation.quality import ScoredRows, next_step
from freshet_serving.models.evaluation.tally import CLIP


def test_confident_wrong_score_costs_much_but_not_infinity():
    for label in (0, 1):
        assert scored([label], [1 - label]).log_loss() == pytest.approx(-math.log(CLIP))


def test_empty_input_has_no_metrics():
    empty = np.empty(0, np.float32)
    assert math.isnan(auc(empty, empty))
    assert math.isnan(ScoredRows().auc())
    assert math.isnan(ScoredRows().log_loss())
    assert len(ScoredRows()) == 0


def test_metrics_of_collected_parts_equal_those_of_the_whole():
    random = np.random.default_rng(0)
    labels, scores = (random.random(50) < 0.3).astype(np.float32), random.random(50).astype(np.float32)
    parts = ScoredRows()
    for first in range(0, 50, 7):
        parts.add(labels[first : first + 7], scores[first : first + 7])
    assert len(parts) == 50
    assert parts.auc() == auc(labels, scores)
    assert parts.log_loss() == scored(labels, scores).log_loss()


def test_first_of_several_labels_counts_with_row_weights():
    labels, scores = (
        np.array([[1, 0], [0, 1], [1, 1]], np.float32),
        np.array([[0.6, 0], [0.5, 0], [0.4, 1]], np.float32),
    )
    weights = np.array([1, 2, 3], np.float32)
    both, first = ScoredRows(), ScoredRows()
    both.add(labels, scores, weights)
    first.add(labels, scores[:, 0], weights)
    assert both.auc() == first.auc() == pytest.approx(1 / 4)
    assert both.log_loss() == pytest.approx(-(math.log(0.6) + 2 * math.log(0.5) + 3 * math.log(0.4)) / 6)
    assert (len(both), both.auc_error(), sum(part.rows for part in both.deciles())) == (3, 0.0, 3)


def scored(labels, scores):
    made = ScoredRows()
    made.add(np.array(labels, np.float32), np.array(scores, np.float32))
    return made


def test_good_auc_gives_no_advice():
    assert next_step(scored([0, 1], [0.1, 0.9]), 3, ["train.optimizer"]) == ""


@pytest.mark.parametrize(
    ("labels", "steps", "named", "words"),
    [
        ([0, 0, 0, 0], 500, [], "4 held-out rows all have the same label, so there is no AUC: hold out more rows"),
        ([0, 1, 1, 0], 500, ["train.learning_rate"], "remove train.learning_rate, so that the data determine"),
        ([0, 1, 1, 0], 12, [], "after 12 steps: train again with --new-version --from-scratch --set train.epochs=5"),
        ([0, 1, 1, 0], 500, [], "check that data.label is the right column"),
    ],
)
def test_auc_near_chance_gives_one_line_of_advice(labels, steps, named, words):
    line = next_step(scored(labels, [0.5] * 4), steps, named)
    assert words in line
    assert "\n" not in line


def test_non_finite_scores_give_advice_to_train_again():
    made = scored([0, 1, 1], [0.1, np.nan, 0.9])
    assert (len(made), made.auc()) == (3, 1.0)
    assert "1 of the 3 held-out rows have a score that is not a number" in next_step(made, 500, [])
