"""A summary of pieces against numpy over all rows at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.evaluation.row_layers import RowChunk
from freshet_serving.models.evaluation.table_summary import (
    ADMITTED_AFTER,
    TableSummary,
    doubling_bins,
    norm_bins,
    norm_edge,
    summarise,
)

STEPS = 1000


def pieces(counts, ages, rows, cut):
    for part in (slice(None, cut), slice(cut, None)):
        keys = np.arange(len(counts))[part]
        yield RowChunk(keys, rows[part], counts[part], STEPS - ages[part])


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 2**40), min_size=1, max_size=40), seed=st.integers(0, 99), cut=st.integers(0, 40))
def test_every_saving_equals_its_row_by_row_count(counts, seed, cut):
    random = np.random.default_rng(seed)
    counts = np.array(counts, np.int64)
    ages, rows = random.integers(0, STEPS, len(counts)), random.standard_normal((len(counts), 3)).astype(np.float32)
    done = []
    found = summarise(TableSummary("t", 3, "float32", STEPS), pieces(counts, ages, rows, cut), done.append)
    assert sum(done) == found.rows == len(counts)
    assert found.lookups == counts.sum()
    assert found.rows_by_frequency.sum() == found.rows_by_age.sum() == found.rows_by_norm.sum() == len(counts)
    sizes = np.linalg.norm(rows.astype(np.float64), axis=1)
    admitted = [s for s in found.savings() if s.key == "admit_after"]
    assert [s.value for s in admitted] == (list(ADMITTED_AFTER) if counts.sum() else [])
    for s in found.savings():
        if s.key == "admit_after":
            gone, lost = counts < s.value, np.minimum(counts, s.value - 1).sum()
        else:
            gone = ages > s.value if s.key == "evict_after_steps" else sizes < s.value
            lost = counts[gone].sum()
        assert s.rows == gone.sum(), s
        assert s.rows > 0 or s.key == "admit_after"
        assert s.lookups == pytest.approx(lost / counts.sum()) if counts.sum() else math.isnan(s.lookups)


def test_table_without_rows_or_counts_reports_only_known_figures():
    empty = TableSummary("t", 3, "float32")
    assert (empty.savings(), empty.median_norm(), empty.counted, empty.aged) == ([], 0.0, False, False)
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, 1.0], [1e30, 0.0]], np.float32)
    empty.add(RowChunk(np.arange(4), rows, None, None))
    assert (empty.rows, empty.counted, empty.aged) == (4, False, False)
    assert {s.key for s in empty.savings()} == {"evict_below_norm"}
    assert all(math.isnan(s.lookups) for s in empty.savings())


def test_hashed_table_gets_no_admission_or_eviction_advice():
    counts = np.arange(1, 9)
    rows = np.ones((8, 2), np.float32)
    summary = TableSummary("t", 2, "float32", STEPS, hashed=True)
    summary.add(RowChunk(counts, rows, counts, counts))
    assert (summary.lookups, summary.savings()) == (36, [])


def test_bins_include_their_lower_edge_and_exclude_the_upper():
    assert doubling_bins(np.array([0, 1, 2, 3, 4, 2**40, 2**62])).tolist() == [0, 1, 2, 2, 3, 41, 63]
    edges = np.array([norm_edge(i) for i in range(1, 400)])
    assert norm_bins(edges * 1.0000001).tolist() == list(range(1, 400))
    assert norm_bins(edges[1:] * 0.9999999).tolist() == list(range(1, 399))
    assert norm_bins(np.array([0.0, np.nan, np.inf])).tolist() == [0, 0, 479]
