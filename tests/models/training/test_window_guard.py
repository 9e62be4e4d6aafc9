"""The guard's judgement: what is out of line is held, and of thousands of good windows none is."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.training.window_guard import FIRST_WINDOWS, WindowGuard, WindowScores, auc_error, row_losses

CONFIG = GuardConfig()


def figures_of(random, rows=2000, rate=0.2, sharp=1.0, times=1.0, shuffled=False, rise=None):
    """A window of a stream of this share of labels that are 1, scored by a model that knows `sharp` of it."""
    logit = random.normal(0, sharp, rows) + math.log(rate / (1 - rate))
    scores = 1 / (1 + np.exp(-logit))
    labels = (random.random(rows) < scores).astype(np.float32)
    if shuffled:
        random.shuffle(labels)
    window = WindowScores()
    window.add(labels, np.minimum(scores * times, 1 - 1e-6).astype(np.float32), None)
    if rise is not None:
        window.again(labels, scores.astype(np.float32), forgetful(labels, scores, rise))
    return window.figures()


def forgetful(labels, scores, rise):
    """Scores by which the log-loss of every row is higher by the share `rise`."""
    losses = row_losses(labels, scores.astype(np.float32)) * (1 + rise)
    return np.where(labels == 1, np.exp(-losses), -np.expm1(-losses)).astype(np.float32)


def inverted(random, rows, rate=0.07):
    """A window whose labels are inverted, scored by a model that knows the rows."""
    scores = 1 / (1 + np.exp(-(random.normal(0, 1, rows) + math.log(rate / (1 - rate)))))
    window = WindowScores()
    window.add((random.random(rows) >= scores).astype(np.float32), scores.astype(np.float32), None)
    return window.figures()


def judged(guard, windows):
    return [reason for reason in map(guard.judge, windows) if reason]


@pytest.mark.long
@pytest.mark.parametrize(("rows", "rate"), [(1000, 0.4), (4000, 0.1)])
def test_two_thousand_good_windows_are_never_held(rows, rate):
    random = np.random.default_rng(rows)
    # From hour to hour the stream is not the same: its rate and how much there is to know wander.
    wander = 0.15 * np.cumsum(random.normal(0, 0.2, 2000)) / 5
    guard = WindowGuard(CONFIG)
    windows = (
        figures_of(
            random,
            rows,
            rate,
            1 + 0.1 * math.sin(n / 20) + 0.05 * drift,
            1 + random.normal(0, 0.03),
            rise=random.normal(0, 0.01),
        )
        for n, drift in enumerate(np.clip(wander, -1, 1))
    )
    assert judged(guard, windows) == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"shuffled": True}, "AUC 0."),
        ({"times": 1.6}, "mean score 1."),
        ({"times": 0.5}, "mean score 0.5"),
        ({"rise": 0.5}, "the log-loss of earlier rows rose by 50%"),
        ({"rise": math.nan}, "the log-loss of earlier rows rose"),
    ],
)
def test_outlying_window_is_reported_with_its_figure_and_usual_value(fault, told):
    random = np.random.default_rng(1)
    guard = WindowGuard(CONFIG)
    assert judged(guard, [figures_of(random, rise=0.0) for _ in range(20)]) == []
    reason = guard.judge(figures_of(random, **({"rise": 0.0} | fault)))
    assert reason.startswith(told)
    assert "expected" in reason
    assert guard.judge(figures_of(random, rise=0.0)) == ""


def test_non_finite_scores_are_held_from_the_first_window():
    window = WindowScores()
    window.add(np.array([1, 0], np.float32), np.array([np.nan, 0.5], np.float32), None)
    assert WindowGuard(CONFIG).judge(window.figures()) == "1 of 2 scores are not numbers"


def test_first_windows_are_only_learned_from():
    random = np.random.default_rng(1)
    guard = WindowGuard(CONFIG)
    assert judged(guard, [figures_of(random, shuffled=n % 2 == 1) for n in range(FIRST_WINDOWS)]) == []


def test_outlying_window_is_not_learned_from():
    random = np.random.default_rng(2)
    guard = WindowGuard(CONFIG)
    judged(guard, [figures_of(random) for _ in range(10)])
    before = guard.saved()
    assert len(judged(guard, [figures_of(random, shuffled=True) for _ in range(30)])) == 30
    assert guard.saved() == before


def test_normal_windows_allow_release_and_manual_release_resets():
    random = np.random.default_rng(3)
    guard = WindowGuard(replace(CONFIG, release_windows=2))
    judged(guard, [figures_of(random) for _ in range(10)])
    assert guard.judge(figures_of(random, shuffled=True))
    assert not guard.may_release()
    assert not guard.judge(figures_of(random))
    assert not guard.may_release()
    assert not guard.judge(figures_of(random))
    assert guard.may_release()
    guard.judge(figures_of(random, shuffled=True))
    guard.reset()
    assert guard.reason == ""
    assert not judged(guard, [figures_of(random, shuffled=True) for _ in range(5)])
    nobody = WindowGuard(replace(CONFIG, release_windows=0))
    judged(nobody, [figures_of(random) for _ in range(50)])
    assert not nobody.may_release()


def test_usual_values_survive_a_restart():
    random = np.random.default_rng(4)
    guard = WindowGuard(CONFIG)
    judged(guard, [figures_of(random) for _ in range(10)])
    again = WindowGuard(CONFIG)
    again.restore(guard.saved())
    assert again.saved() == guard.saved()
    assert again.judge(figures_of(random, shuffled=True)).startswith("AUC")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", [{"shuffled": True}, {"times": 12.0}, {"rise": 2.0}])
def test_first_window_is_judged_by_the_held_out_rows(fault, seed):
    random = np.random.default_rng(seed)
    guard = WindowGuard(CONFIG)
    # 1,200 rows, about 84 of them with a label of 1: 10 % of a table of 12,000.
    guard.begin_with(figures_of(random, 1200, 0.07, 1.6))
    sound = WindowGuard(CONFIG)
    sound.restore(guard.saved())
    assert sound.judge(figures_of(random, 3600, 0.07, 1.6, rise=0.0)) == ""
    assert guard.judge(figures_of(random, 3600, 0.07, 1.6, **({"rise": 0.0} | fault)))
    assert guard._usual["auc"].windows == 1


def test_inverted_labels_are_held_after_one_short_delta():
    random = np.random.default_rng(6)
    for rows in (500, 2000, 4000):
        guard = WindowGuard(CONFIG)
        guard.begin_with(figures_of(random, 1200, 0.07))
        assert guard.judge(inverted(random, rows))


def test_first_windows_with_a_swinging_label_rate_are_not_held():
    """Labels of 5.7 to 10.5 % from one thousand rows to the next, of which the model knows nothing."""
    held = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        guard = WindowGuard(CONFIG)
        guard.begin_with(figures_of(random, 1200, float(random.uniform(0.057, 0.105)), 1.3))
        for _ in range(8):
            window = WindowScores()
            while not window.figures().enough:
                rate, scores = random.uniform(0.057, 0.105), shop_scores(random, 1000)
                labels = random.random(1000) < scores * rate / 0.08
                window.add(labels.astype(np.float32), scores, None)
                held += [seed] * bool(guard.judge(window.figures()))
    assert held == []


def shop_scores(random, rows, rate=0.08):
    return (1 / (1 + np.exp(-(random.normal(-0.6, 1.3, rows) + math.log(rate / (1 - rate)))))).astype(np.float32)


@pytest.mark.parametrize("rate", [0.002, 0.03, 0.3])
def test_windows_with_few_rows_are_seldom_held_and_not_learned(rate):
    held, random = 0, np.random.default_rng(8)
    for _ in range(20):
        guard = WindowGuard(CONFIG)
        guard.begin_with(figures_of(random, 1000, rate))
        before = guard.saved()
        for _ in range(20):
            held += bool(guard.judge(figures_of(random, 32, rate, rise=random.normal(0, 0.03))))
        assert guard.saved() == before
    assert held == 0


def test_short_windows_of_few_users_are_not_held():
    """200 rows are the sessions of two users, one of whom likes everything; so it is on MovieLens."""
    random, guard, held = np.random.default_rng(10), WindowGuard(CONFIG), 0
    guard.begin_with(figures_of(random, 20_000, 0.57, 0.8))
    window = WindowScores()
    for _ in range(1500):
        users = np.repeat(random.normal(0, 1.0, 2), 100)
        known = random.normal(0.3, 0.7, 200)
        scores = (1 / (1 + np.exp(-known))).astype(np.float32)
        window.add((random.random(200) < 1 / (1 + np.exp(-known - users))).astype(np.float32), scores, None)
        figures = window.figures()
        held += bool(guard.judge(figures))
        if figures.enough:
            window = WindowScores()
    assert held == 0


def test_first_windows_are_only_learned_without_a_usable_baseline():
    random = np.random.default_rng(9)
    for nothing in (WindowScores(), WindowScores()):
        guard = WindowGuard(CONFIG)
        guard.begin_with(nothing.figures())
        assert guard.judge(figures_of(random, shuffled=True)) == ""
        nothing.add(np.zeros(50, np.float32), np.full(50, 0.1, np.float32), None)


def test_older_checkpoint_figures_with_three_numbers_are_restored():
    guard = WindowGuard(CONFIG)
    guard.restore({"auc": [9, 0.7, 0.01], "calibration": [9, 0.0, 0.1], "loss": [9, 0.0, 0.01]})
    assert guard.judge(figures_of(np.random.default_rng(4), shuffled=True)).startswith("AUC")


def test_score_rise_of_single_label_rows_has_its_error():
    labels, window = np.zeros(64, np.float32), WindowScores()
    window.again(labels, np.full(64, 0.01, np.float32), np.full(64, 0.02, np.float32))
    figures = window.figures()
    assert figures.rise == pytest.approx(1.0, rel=0.02)
    # Labels drawn anew have a 1 in every second such batch, whose loss falls by 0.7.
    assert figures.rise_error > 0.5


def test_window_with_too_few_rows_waits_for_more():
    random, window, waited = np.random.default_rng(5), WindowScores(), 0
    while not window.figures().enough:
        scores = random.random(50).astype(np.float32)
        window.add((random.random(50) < scores).astype(np.float32), scores, None)
        waited += 1
    assert 15 <= waited <= 20
    assert window.figures().rows == 50 * waited
    alike = WindowScores()
    alike.add(np.ones(5000, np.float32), np.full(5000, 0.5, np.float32), None)
    assert not alike.figures().enough


def test_calibration_uses_weights_and_only_the_first_label():
    label = np.array([[1, 0]] * 500 + [[0, 1]] * 500, np.float32)
    score = np.array([[0.75, 0.1]] * 500 + [[0.25, 0.1]] * 500, np.float32)
    window = WindowScores()
    window.add(label, score, np.array([3] * 500 + [1] * 500, np.float32))
    figures = window.figures()
    assert figures.auc == 1.0
    assert math.exp(figures.calibration) == pytest.approx((3 * 0.75 + 0.25) / 3)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 0.85), st.integers(60, 300), st.integers(60, 300))
def test_auc_error_equals_the_scatter_of_random_draws(auc, positive, negative):
    random = np.random.default_rng(positive * negative)
    # Two normal distributions whose difference is above 0 with that probability.
    shift = NormalDist().inv_cdf(auc) * math.sqrt(2)
    draws = []
    for _ in range(200):
        ones, zeros = random.normal(shift, 1, positive), random.normal(0, 1, negative)
        draws.append(float((ones[:, None] > zeros[None, :]).mean()))
    assert auc_error(auc, positive, negative) == pytest.approx(float(np.std(draws)), rel=0.5)


@pytest.mark.parametrize(("label", "told"), [(0.0, "labels are above 0"), (1.0, "labels are below 1")])
def test_window_without_one_label_is_held(label, told):
    random = np.random.default_rng(4)
    guard = WindowGuard(CONFIG)
    assert judged(guard, [figures_of(random) for _ in range(8)]) == []
    window = WindowScores()
    scores = 1 / (1 + np.exp(-(random.normal(0, 1, 2000) - 1.4)))
    window.add(np.full(2000, label, np.float32), scores.astype(np.float32), None)
    (reason,) = judged(guard, [window.figures()])
    assert told in reason
    assert "expected about" in reason


@pytest.mark.parametrize("rate", [0.01, 0.03])
def test_rare_labels_that_a_window_happens_to_lack_are_not_missing(rate):
    random = np.random.default_rng(5)
    guard = WindowGuard(CONFIG)
    assert judged(guard, [figures_of(random, rate=rate) for _ in range(8)]) == []
    window = WindowScores()
    window.add(np.zeros(300, np.float32), np.full(300, rate, np.float32), None)
    assert judged(guard, [window.figures()]) == []
