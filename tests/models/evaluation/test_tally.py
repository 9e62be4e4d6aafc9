"""Against the definitions, over all pairs of rows; in parts, in little memory, in any order."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.evaluation import tally as module
from freshet_serving.models.evaluation.tally import CLIP, ScoreTally, ranks_of

rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.booleans(),
        st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32)),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=30,
)


def columns(drawn):
    keys, labels, scores, weights = zip(*drawn)
    return (
        np.array(labels, np.float32),
        np.array(scores, np.float32),
        np.array(weights, np.float32),
        np.array(keys, np.int64),
    )


def auc_of_pairs(rows):
    """rows: (label, score, weight)."""
    pairs = [(w * v, (p > n) + (p == n) / 2) for yes, p, w in rows if yes for no, n, v in rows if not no]
    total = sum(weight for weight, _ in pairs)
    return sum(weight * won for weight, won in pairs) / total if total else math.nan


def loss_of(rows):
    total = sum(w for _, _, w in rows)
    clipped = [(y, min(max(float(s), CLIP), 1 - CLIP), w) for y, s, w in rows]
    return -sum(w * math.log(p if y else 1 - p) for y, p, w in clipped) / total if total else math.nan


@given(rows, st.integers(1, 7))
def test_each_key_has_the_metrics_of_its_rows(drawn, step):
    tally, whole = ScoreTally(), columns(drawn)
    for first in range(0, len(drawn), step):
        tally.add(*(column[first : first + step] for column in whole))
    counts = tally.counts()
    assert tally.rows == counts.rows.sum() == len(drawn)
    keys = counts.keys[counts.firsts()].tolist()
    assert keys == sorted({key for key, *_ in drawn})
    losses, weight = np.add.reduceat(counts.losses(), counts.firsts()), np.add.reduceat(counts.weight, counts.firsts())
    for key, auc, loss, total in zip(keys, counts.aucs(), losses, weight):
        own = [(y, s, w) for k, y, s, w in drawn if k == key]
        assert auc == pytest.approx(auc_of_pairs(own), abs=1e-9, nan_ok=True)
        assert loss == pytest.approx(loss_of(own) * total if total else 0, abs=1e-6, rel=1e-9)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_ranks_follow_the_order_of_scores_with_ties(scores):
    array = np.array(scores, np.float32)
    ranks = ranks_of(array)
    assert ((ranks[:, None] < ranks) == (array[:, None] < array)).all()
    assert ((ranks[:, None] == ranks) == (array[:, None] == array)).all()


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 64)


def random_rows(count, seed=0, keys=1):
    random = np.random.default_rng(seed)
    scores = random.random(count, np.float32)
    return (random.random(count) < scores).astype(np.float32), scores, random.integers(0, keys, count)


@pytest.mark.usefixtures("little")
def test_excess_distinct_scores_keep_sums_and_approximate_the_auc():
    labels, scores, _ = random_rows(5000)
    exact, small = ScoreTally(), ScoreTally(most=500)
    for tally in (exact, small):
        for first in range(0, 5000, 50):
            tally.add(labels[first : first + 50], scores[first : first + 50])
    wanted, got = exact.counts(), small.counts()
    assert exact.bits == 0
    assert small.bits > 0
    assert len(got) < 500 + 2 * 64 + 50
    for part in ("rows", "weight", "positive", "predicted"):
        assert getattr(got, part).sum() == pytest.approx(getattr(wanted, part).sum())
    negative = got.weight - got.positive
    bound = (got.positive * negative).sum() / 2 / (got.positive.sum() * negative.sum())
    assert 0 < abs(got.aucs()[0] - wanted.aucs()[0]) <= bound < 0.003


@pytest.mark.usefixtures("little")
def test_sampled_tally_keeps_whole_keys():
    labels, scores, keys = random_rows(4000, keys=400)
    exact, small = ScoreTally(), ScoreTally(most=600, sampled=True)
    for tally in (exact, small):
        for first in range(0, 4000, 50):
            part = slice(first, first + 50)
            tally.add(labels[part], scores[part], None, keys[part])
    wanted, got = exact.counts(), small.counts()
    assert small.halvings > 0
    assert len(got) <= 600 + 2 * 64 + 50
    kept = set(got.keys.tolist())
    assert 0 < len(kept) < 400
    both = wanted.taken(np.isin(wanted.keys, list(kept)))
    assert (both.keys.tolist(), both.rows.tolist()) == (got.keys.tolist(), got.rows.tolist())


@pytest.mark.usefixtures("little")
def test_newest_rows_are_counted_after_a_flush():
    labels, scores, _ = random_rows(1000)
    tally = ScoreTally()
    for first in range(0, 1000, 30):
        tally.add(labels[first : first + 30], scores[first : first + 30])
    newest = ScoreTally()
    newest.add(labels[-40:], scores[-40:])
    assert tally.newest(40).aucs() == newest.counts().aucs()
    assert tally.newest(40).rows.sum() == 40
    assert ScoreTally().newest(3).rows.sum() == 0


def test_non_finite_scores_are_excluded_and_counted():
    tally = ScoreTally()
    tally.add(np.array([1, 0, 1, 0], np.float32), np.array([0.5, np.nan, np.inf, 0.1], np.float32))
    assert (tally.rows, tally.lost) == (2, 2)
    assert tally.counts().aucs().tolist() == [1.0]


def test_scores_outside_0_to_1_have_only_an_auc():
    tally = ScoreTally()
    tally.add(np.array([1, 0], np.float32), np.array([7, -3], np.float32))
    assert tally.counts().aucs().tolist() == [1.0]
    assert np.isnan(tally.counts().losses().sum())
