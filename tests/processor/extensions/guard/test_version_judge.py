"""Good retrains and bad ones, as the same rows' scores show them."""

import json

import numpy as np
import pytest

from freshet_serving.processor.extensions.guard.version_judge import (
    LEARN,
    LEAST_READABLE,
    LIMITS,
    MOST_CHANGES,
    VersionJudge,
    version_figures,
)
from freshet_serving.processor.watching import IN_LINE, OUT_OF_LINE, UNJUDGED, RequestScores

ROWS = 256


def logits(rows=ROWS, seed=0):
    return np.random.default_rng(seed).standard_normal(rows) - 2.0


def scores(values, refused=0, lookups=(1000, 50), **others):
    """Scores of an output "ctr"; the last rows are refused."""
    outputs = {"ctr": np.asarray(values, np.float32).reshape(len(values), -1), **others}
    unread = np.arange(len(values)) >= len(values) - refused
    return RequestScores(~unread, unread, outputs, lookups)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def retrained(noise=0.3, seed=1):
    """The scores of a model that was trained anew on nearly the same rows."""
    return scores(sigmoid(logits() + noise * np.random.default_rng(seed).standard_normal(ROWS)))


SERVED = scores(sigmoid(logits()))
BAD = {
    "labels_all_0": (sigmoid(logits() * 0.1 - 10), "mean"),
    "labels_inverted": (1 - sigmoid(logits()), "mean"),
    "labels_shuffled": (np.random.default_rng(5).permutation(sigmoid(logits())), "disorder"),
    "order_reversed": (sigmoid(-4 - logits()), "disorder"),
    "constant": (np.full(ROWS, 0.15), "constant"),
    "nan": (np.where(np.arange(ROWS) == 7, np.nan, sigmoid(logits())), "nonfinite"),
    "flattened": (0.15 + sigmoid(logits()) * 0.01, "spread"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_retrain_is_out_of_line(name):
    values, kind = BAD[name]
    verdict = VersionJudge().judge(SERVED, scores(values))
    assert (verdict.outcome, verdict.kind) == (OUT_OF_LINE, kind), verdict.reason
    assert "ctr" in verdict.reason


@pytest.mark.parametrize("seed", range(5))
def test_good_retrain_is_in_line(seed):
    verdict = VersionJudge().judge(SERVED, retrained(0.6, seed))
    assert verdict.outcome == IN_LINE, verdict.reason
    assert verdict.rows == ROWS


def test_unchanged_version_has_figures_of_zero():
    figures = {figure.kind: figure.value for figure in version_figures(SERVED, SERVED)}
    assert figures.keys() == {*LIMITS, "evidence"}
    assert not any(value for kind, value in figures.items() if kind not in ("evidence", "disorder"))
    assert figures["disorder"] == pytest.approx(0, abs=1e-12)


def test_limits_are_learned_from_good_changes():
    judge, livelier = VersionJudge(), retrained(1.2)
    assert judge.judge(SERVED, livelier).outcome == IN_LINE
    for seed in range(LEARN):
        judge.learn(judge.judge(SERVED, retrained(0.2, seed)).figures)
    verdict = judge.judge(SERVED, livelier)
    assert (verdict.outcome, verdict.kind) == (OUT_OF_LINE, "disorder")
    assert f"the last {LEARN} changed it by up to" in verdict.reason


def test_what_was_learned_is_recalled_and_nothing_else():
    judge, again = VersionJudge(), VersionJudge()
    for seed in range(LEARN):
        judge.learn(judge.judge(SERVED, retrained(0.2, seed)).figures)
    again.recall(json.loads(json.dumps(judge.to_json())))
    assert again.to_json() == judge.to_json()
    again.recall(None)
    again.recall([7, [], ["mean"], ["other", "", [1.0]], ["mean", "ctr", ["x"]], ["mean", "ctr", [float("nan")]]])
    assert again.to_json() == judge.to_json()


def test_nothing_that_is_learned_lifts_a_limit_above_its_ceiling():
    judge, shuffled = VersionJudge(), scores(BAD["labels_shuffled"][0])
    for _ in range(MOST_CHANGES + 5):
        judge.learn(version_figures(SERVED, shuffled))
    assert judge.judge(SERVED, shuffled).kind == "disorder"


def test_few_rows_are_not_judged():
    few = scores(sigmoid(logits(LEAST_READABLE - 1)))
    verdict = VersionJudge().judge(few, scores(np.full(LEAST_READABLE - 1, 0.5)))
    assert (verdict.outcome, verdict.reason) == (UNJUDGED, "expected at least 64 kept rows to score, got 63")


def test_few_rows_that_are_refused_are_not_judged():
    rows = LEAST_READABLE - 1
    verdict = VersionJudge().judge(scores(sigmoid(logits(rows))), scores(np.full(rows, 0.5), refused=rows))
    assert (verdict.outcome, verdict.unreadable) == (UNJUDGED, rows)
    assert verdict.reason == "it cannot read 63 of the kept rows; expected at least 64 kept rows to score, got 0"


@pytest.mark.parametrize("refused", [ROWS - LEAST_READABLE + 1, ROWS])
def test_version_that_reads_few_or_no_rows_is_out_of_line(refused):
    verdict = VersionJudge().judge(SERVED, scores(np.full(ROWS, 0.5), refused=refused))
    assert (verdict.outcome, verdict.kind, verdict.unreadable) == (OUT_OF_LINE, "unreadable", refused)
    assert f"{100 * refused / ROWS:.3g}% of the rows that are requested cannot be read" in verdict.reason


def test_few_rows_with_a_nan_are_out_of_line():
    few = scores(sigmoid(logits(40)))
    values = few.outputs["ctr"].copy()
    values[3] = np.nan
    assert VersionJudge().judge(few, scores(values)).kind == "nonfinite"


def test_rows_that_are_too_much_alike_are_not_judged():
    repeated = scores(np.resize(sigmoid(logits(4)), ROWS))
    verdict = VersionJudge().judge(repeated, scores(np.zeros(ROWS)))
    assert verdict.outcome == UNJUDGED
    assert "as good as 4 different ones" in verdict.reason


def test_rows_that_the_new_version_cannot_read_are_out_of_line():
    verdict = VersionJudge().judge(SERVED, scores(sigmoid(logits()), refused=40))
    assert (verdict.kind, verdict.unreadable) == ("unreadable", 40)
    assert verdict.reason.startswith("15.6% of the rows that are requested cannot be read, limit 10%")


def test_rows_without_time_are_no_rows_that_cannot_be_read():
    half = np.arange(ROWS) < ROWS // 2
    late = RequestScores(half, np.zeros(ROWS, bool), SERVED.outputs, (500, 25))
    verdict = VersionJudge().judge(SERVED, late)
    assert (verdict.outcome, verdict.rows, verdict.unreadable) == (IN_LINE, ROWS // 2, 0)


def test_ids_that_the_new_version_does_not_know_are_out_of_line():
    verdict = VersionJudge().judge(SERVED, scores(sigmoid(logits()), lookups=(1000, 600)))
    assert verdict.kind == "unknown"
    assert verdict.reason.startswith("55% more of the looked-up ids would have no row")


def test_turned_vectors_are_no_disorder():
    random = np.random.default_rng(3)
    vectors = random.standard_normal((ROWS, 8)).astype(np.float32)
    turn = np.linalg.qr(random.standard_normal((8, 8)))[0].astype(np.float32)
    assert VersionJudge().judge(scores(vectors), scores(vectors @ turn)).outcome == IN_LINE
    assert VersionJudge().judge(scores(vectors), scores(np.ones((ROWS, 8)))).kind == "constant"


def test_outputs_that_only_one_version_has_are_left_out():
    other = np.zeros((ROWS, 1), np.float32)
    assert VersionJudge().judge(SERVED, scores(sigmoid(logits()), more=other)).outcome == IN_LINE
    renamed = RequestScores(SERVED.scored, SERVED.refused, {"cvr": SERVED.outputs["ctr"]})
    verdict = VersionJudge().judge(SERVED, renamed)
    assert (verdict.outcome, verdict.reason) == (UNJUDGED, "the two versions have no scores of one output to compare")
