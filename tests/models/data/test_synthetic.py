import numpy as np
import pytest

from freshet_serving.models.data.source import Batch
from freshet_serving.models.data.synthetic import FIELDS, START_TIME, SyntheticSource
from tests.models.data.sources import check_batches, everything, joined, plain


def rows_of(source: SyntheticSource, start: int, rows: int) -> Batch:
    return next(source.batches(rows, start))


def auc(label: np.ndarray, score: np.ndarray) -> float:
    """The chance that a positive row scores above a negative one; the few ties count by place."""
    rank = np.argsort(np.argsort(score)) + 1
    positives = label.sum()
    return float((rank[label > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives)))


def test_resumed_reader_yields_the_remaining_batches():
    check_batches(SyntheticSource(seed=3, rows=10_000), 3000, 10_000)


def test_batches_do_not_depend_on_their_size_or_their_start():
    source = SyntheticSource(seed=1)
    whole = rows_of(source, 4000, 300)
    parts = [rows_of(SyntheticSource(seed=1), start, 100) for start in (4000, 4100, 4200)]

    assert joined(parts) == joined([whole])
    assert everything(whole.slice(100, 200)) == everything(parts[1])
    assert joined([rows_of(SyntheticSource(seed=2), 4000, 300)]) != joined([whole])
    assert (source.count_rows(), SyntheticSource(rows=5).count_rows()) == (None, 5)


def test_a_far_row_is_reached_without_those_before_it():
    far = rows_of(SyntheticSource(), 10**9, 4)

    assert far.start == 10**9
    assert far.columns["item_id"].min() >= 10**9 // 4096 * 4096 // 250


def test_columns_have_the_declared_types_and_ranges():
    source = SyntheticSource(users=50, rows=5000)
    batch = rows_of(source, 0, 5000)
    hour, user = batch.columns["hour"], batch.columns["user_id"]
    tags = plain(batch.columns["tags"])

    assert source.schema.fields == FIELDS
    assert set(user.tolist()) == set(range(50))
    assert np.array_equal(hour, batch.time // 3600 % 24)
    assert {len(t) for t in tags} == {1, 2, 3, 4}
    assert all(len(set(t)) == len(t) for t in tags)
    assert (batch.columns["price"] > 0).all()
    assert all(c.startswith(b"category-") for c in plain(batch.columns["category"]))


def test_time_goes_forward_at_the_given_rate():
    batch = rows_of(SyntheticSource(rows_per_s=4.0), 0, 4096 * 2)

    assert (np.diff(batch.time) > 0).all()
    assert batch.time[0] >= START_TIME
    assert batch.time[-1] == pytest.approx(START_TIME + 2048, abs=1)


def test_popularity_is_uneven_and_items_are_replaced_over_time():
    source = SyntheticSource()
    early, late = (rows_of(source, start, 40_960).columns["item_id"] for start in (0, 409_600))
    counts = np.sort(np.bincount(early))[::-1]

    assert counts[:100].sum() > 0.4 * counts.sum()
    assert early.max() < 1000 + 40_960 / 250
    assert late.min() >= 409_600 // 250
    assert not set(early.tolist()) >= set(late.tolist())


def test_labels_follow_the_true_probability():
    source = SyntheticSource(seed=5)
    batch = rows_of(source, 0, 81_920)
    truth = source.truth(batch)
    deciles = np.array_split(np.argsort(truth), 10)

    assert np.array_equal(truth[5000:5100], source.truth(batch.slice(5000, 5100)))
    assert 0.15 < batch.label.mean() < 0.4
    for rows in deciles:
        assert batch.label[rows].mean() == pytest.approx(truth[rows].mean(), abs=0.02)
    assert 0.72 < auc(batch.label, truth) < 0.85


def test_frozen_oracle_loses_its_auc_within_100k_rows():
    source = SyntheticSource(seed=2)
    now = rows_of(source, 300_000, 20_000)
    past = Batch(now.columns, now.label, now.time - 100_000 / 2.0, now.start)
    fresh, stale = auc(now.label, source.truth(now)), auc(now.label, source.truth(past))

    assert fresh - stale > 0.06
