"""Good retrains pass, and each way in which a night goes wrong is named with its figure."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.models.config.gate_section import GateConfig
from freshet_serving.models.training import version_gate
from freshet_serving.models.training.newest_events import RankedEvents
from freshet_serving.models.training.version_gate import (
    KEPT_MOVES,
    HeldOut,
    Judgement,
    ServedVersion,
    VersionFigures,
    auc_drop,
    moves_from_notes,
)
from freshet_serving.models.training.window_guard import auc_error

ROWS = 4000
BOUNDS = GateConfig()
FEATURES = frozenset({"user", "item", "price"})
FIGURES = VersionFigures(
    50_000, 0.2, HeldOut("held-out AUC", 0.75, 0.01), {"user": 0.97, "item": 0.99}, {"price": (12.0, 30.0)}, ["country"]
)


def judge(*what):
    return Judgement(*what).verdict()


def sigmoid(odds):
    return (1 / (1 + np.exp(-odds))).astype(np.float32)


def night(seed, rows=ROWS, noise=0.3):
    """Labels of some rows, and their scores by two models that learned them, each with an error of its own."""
    random = np.random.default_rng(seed)
    odds = random.normal(-1.5, 1.2, rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    old, new = (sigmoid(odds + random.normal(0, noise, rows)) for _ in range(2))
    return labels, old, new


def served(scores, **changes):
    made = ServedVersion(4, FEATURES, FIGURES, {}, scores, {"user": 0.9, "item": 0.98})
    return replace(made, **changes)


def verdict(labels, old, new, figures=FIGURES, features=FEATURES, bounds=BOUNDS, **changes):
    return judge(bounds, labels, new, figures, features, served(old, **changes))


def test_good_retrains_pass():
    refused = [seed for seed in range(300) if verdict(*night(seed, 500 + 40 * (seed % 100))).refused]
    assert refused == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda labels, old, new: (1 - labels, old, 1 - new), "orders the rows against version 4"),
        (
            lambda labels, old, new: (labels, old, np.random.default_rng(1).permutation(new)),
            "AUC 0.* version 4 has 0.7",
        ),
        (lambda labels, old, new: (0 * labels, old, new), "all labels of the 4,000 newest rows are 0"),
        (lambda labels, old, new: (0 * labels + 1, old, new), "all labels of the 4,000 newest rows are 1"),
        (lambda labels, old, new: (labels, old, np.where(labels > 0, np.nan, new)), "scores are not numbers"),
        (lambda labels, old, new: (labels, old, 0 * new + 0.25), "all 4,000 scores are 0.25"),
        (lambda labels, old, new: (labels, old, new * 0.5), "mean score over mean label"),
        (lambda labels, old, new: (labels, old, (new > 0.5) * 0.98 + 0.01), "log-loss"),
    ],
)
def test_bad_night_is_refused_with_its_figure(fault, reason, seed):
    labels, old, new = (np.asarray(part, np.float32) for part in fault(*night(seed)))
    assert_refused(verdict(labels, old, new), reason)


def assert_refused(verdict, reason):
    assert any(re.search(reason, line) for line in verdict.refused), verdict.refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trained_rows": 5000}, "trained on 5,000 rows, expected at least 25,000 .*: 20,000 too few"),
        ({"held_out": HeldOut("held-out AUC", 0.5, 0.01)}, "held-out AUC 0.5000, version 4 has 0.7500: worse by 0.25"),
        (
            {"coverage": {"user": 0.4, "item": 0.99}},
            "40.0% of the ids of 'user' have a row that is not all 0, expected at least 80.0%",
        ),
        ({"values": {"price": (12_000.0, 30_000.0)}}, "feature 'price' has other units: its values are 1e.03 times"),
        ({"constant": ["country", "price"]}, "feature 'price' has one value in all 4,000 newest rows"),
    ],
)
def test_figure_of_its_own_refuses_a_version(changes, reason):
    assert_refused(verdict(*night(1), figures=replace(FIGURES, **changes)), reason)


def test_lost_feature_is_named():
    assert_refused(verdict(*night(1), features=FEATURES - {"item"}), "feature 'item' is missing, which version 4 reads")


def test_ids_that_the_served_version_does_not_know_are_refused():
    assert_refused(verdict(*night(1), coverage={"user": 0.01, "item": 0.98}), "1.0% of the ids of 'user' are ids that")


def test_rows_delivered_twice_are_reported_and_served():
    labels, old, new = night(3)
    before, usual = replace(FIGURES, repeated=0.02), replace(FIGURES, repeated=0.06)
    twice = judge(BOUNDS, labels, new, replace(FIGURES, repeated=0.12), FEATURES, served(old, figures=before))
    assert not twice.refused
    assert twice.reported == [
        "12.0% of the 4,000 newest rows are there more than once, 2.0% of those of version 4: rows may have been"
        " delivered twice"
    ]
    assert not judge(BOUNDS, labels, new, usual, FEATURES, served(old, figures=before)).reported
    assert not verdict(labels, old, new, replace(FIGURES, repeated=0.5)).reported


def test_tenth_more_score_is_reported_and_served():
    labels, old, new = night(1, 20_000)
    scaled = verdict(labels, old, np.minimum(1.15 * new * labels.mean() / new.mean(), 1))
    assert not scaled.refused
    assert "the mean score is 1.15 times the mean label" in scaled.reported


def test_few_rows_are_not_judged_by_their_scores():
    labels, old, new = night(1, 99)
    assert not verdict(labels, old, 1 - new).refused
    assert "99 newest rows, 100 are needed to compare scores" in verdict(labels, old, new).unjudged


def test_one_class_among_few_rows_may_be_chance():
    labels, old, new = night(1, 100)
    rare = replace(FIGURES, mean_label=0.01)
    judged = judge(BOUNDS, 0 * labels, new, FIGURES, FEATURES, served(old, figures=rare))
    assert not judged.refused
    assert "all labels of the 100 newest rows are 0" in judged.unjudged


def test_first_version_is_judged_by_what_is_there():
    labels, _, new = night(1)
    first = judge(BOUNDS, labels, new, FIGURES, FEATURES, None)
    assert not first.refused
    assert first.unjudged == ["no version to compare with"]
    assert_refused(judge(BOUNDS, 0 * labels, new, FIGURES, FEATURES, None), "all labels")
    assert_refused(judge(BOUNDS, labels, 0 * new, FIGURES, FEATURES, None), "all 4,000 scores are 0")


def test_version_before_without_figures_is_compared_by_scores_alone():
    labels, old, new = night(1)
    judged = verdict(labels, old, new, figures=replace(FIGURES, trained_rows=1))
    assert judged.refused
    judged = judge(BOUNDS, labels, new, replace(FIGURES, trained_rows=1), FEATURES, served(old, figures=None))
    assert not judged.refused
    assert "version 4 has no figures of its own to compare with" in judged.unjudged


def test_labels_that_fit_neither_version_are_refused():
    labels, old, new = night(1)
    known = replace(FIGURES, held_out=HeldOut("held-out AUC", 0.75, 0.03))
    random = np.random.default_rng(1).permutation(labels)
    anew = replace(FIGURES, held_out=HeldOut("held-out AUC", 0.52, 0.03))
    judged = judge(BOUNDS, random, new, anew, FEATURES, served(old, figures=known))
    assert_refused(judged, "the labels fit neither version 4 .* nor the held-out scores")
    better = judge(BOUNDS, random, new, known, FEATURES, served(old, figures=known))
    assert not any("fit neither" in line for line in better.refused)


def test_usual_differences_widen_the_bound(monkeypatch):
    monkeypatch.setattr(version_gate, "SIGMAS", 3.0)
    labels, old, new = night(1, noise=0.1)
    worse = sigmoid(np.log(new / (1 - new)) + np.random.default_rng(3).normal(0, 0.9, len(new)))
    calm = GateConfig(loss_rise=10.0, calibration=10.0)
    assert_refused(verdict(labels, old, worse, bounds=calm), "AUC")
    assert not verdict(labels, old, worse, bounds=calm, moves={"auc": [0.05] * 5}).refused


def test_held_out_rows_of_other_users_differ_until_usual_differences_are_known():
    worse = replace(FIGURES, held_out=HeldOut("held-out AUC", 0.63, 0.01))
    assert not verdict(*night(1), figures=worse).refused
    assert_refused(verdict(*night(1), figures=worse, moves={"held_out": [0.01] * 5}), "held-out AUC 0.6300")


def test_differences_are_remembered_up_to_a_limit():
    judged = verdict(*night(1), moves={"auc": [0.01] * KEPT_MOVES})
    assert len(judged.moves["auc"]) == KEPT_MOVES
    assert judged.moves["auc"][-1] != 0.01
    assert moves_from_notes(judged.moves) == judged.moves
    assert moves_from_notes({"auc": [1.0, math.nan, "x", True], "loss": 3}) == {"auc": [1.0]}
    assert moves_from_notes([]) == {}


def test_figures_survive_notes_and_foreign_notes_are_none():
    notes = json.loads(json.dumps(FIGURES.to_notes()))
    assert VersionFigures.from_notes(notes) == FIGURES
    empty = VersionFigures.from_notes(json.loads(json.dumps(VersionFigures().to_notes())))
    assert math.isnan(empty.mean_label)
    assert empty.held_out.figure == ""
    broken = {"coverage": 3}, {"trained_rows": "x"}, {"values": {"a": [1]}}, {"held_out": {"value": 1}}
    for foreign in (None, [], *broken):
        assert VersionFigures.from_notes(foreign) is None


def test_difference_of_two_aucs_has_a_smaller_error_than_either():
    labels, old, new = night(1)
    auc, drop, error = auc_drop(labels, old, new)
    pairs = old[labels > 0][:, None] > old[labels == 0][None, :]
    assert auc == pytest.approx(pairs.mean(), abs=1e-6)
    drops = [auc_drop(*night(seed))[1] for seed in range(60)]
    assert error == pytest.approx(np.std(drops), rel=0.3)
    assert abs(drop) < 5 * error
    assert error < 0.6 * auc_error(auc, labels.sum(), (1 - labels).sum())


NO_ROWS = np.empty(0, np.float32)
ITEMS = VersionFigures(50_000, held_out=HeldOut("held-out NDCG", 0.3, 0.01), coverage={"item": 0.99})


def ranks(seed, events=2000, step=0):
    """Ranks of the same events by one of two models alike, each with an error of its own."""
    usual = np.random.default_rng(7).geometric(0.05, events)
    moved = usual + np.random.default_rng(seed).integers(-2, 3, events) + step
    return RankedEvents(np.maximum(moved, 1), 10, False, {"item": 0.99})


def ranked_verdict(old, new, **changes):
    before = served(None, figures=ITEMS, coverage={"item": 0.99}, ranked=old)
    return judge(BOUNDS, NO_ROWS, NO_ROWS, replace(ITEMS, **changes), FEATURES, before, new)


def test_good_retrains_of_a_next_item_network_pass():
    assert [seed for seed in range(50) if ranked_verdict(ranks(seed), ranks(seed + 1000)).refused] == []
    assert ranked_verdict(ranks(1), ranks(2)).unjudged == []


def test_items_that_rank_lower_are_refused_by_ndcg():
    reason = ranked_verdict(ranks(1), ranks(2, step=6)).refused[0]
    assert re.match(r"NDCG@10 0\.\d+, version 4 has 0\.\d+ on the same 2,000 rows: worse by", reason)


def test_items_that_lost_their_rows_are_refused():
    reasons = ranked_verdict(ranks(1), ranks(2), coverage={"item": 0.4}).refused
    assert any("40.0% of the ids of 'item' have a row" in reason for reason in reasons)


def test_histories_of_one_vector_are_refused():
    assert ranked_verdict(ranks(1), replace(ranks(2), alike=True)).refused == [
        "all 2,000 histories have the same vector"
    ]


def test_events_that_the_version_before_cannot_rank_are_said_to_be_unjudged():
    assert ranked_verdict(None, ranks(2)).unjudged == ["version 4 cannot rank the newest events"]
    assert "99 newest rows" in ranked_verdict(None, ranks(2, events=99)).unjudged[0]
