"""Codes are kept beside the rows that a version ranks, through deltas and rollbacks, and beside no others."""

import numpy as np

from freshet_serving.processor.extensions.top_items.ranked_rows import RankedRowWatcher
from tests.support.packages import open_version
from tests.support.ranked import manifest, ranked_delta, write_ranked


def codes_of(version):
    (arrays,) = [arrays for arrays in version.change.frame.arrays if "code_stale" in arrays]
    return arrays


def test_only_versions_that_rank_items_have_codes():
    assert RankedRowWatcher.of(manifest(notes={}), {}, {}) is None
    # Its rows are not in memory.
    assert RankedRowWatcher.of(manifest(), {}, {}) is None


def test_deltas_and_rollbacks_mark_rows_and_catch_up(tmp_path):
    version = open_version(write_ranked(tmp_path, range(100)), 4)
    arrays = codes_of(version)
    assert arrays["code_count"][0] == 100
    while version.maintain():
        pass
    assert not arrays["code_stale"].any()
    scales = arrays["code_scales"][:101].copy()
    version.apply(ranked_delta(1, [3, 200], [7]))
    # A delta's codes are made before it returns, in memory that readers have mapped.
    assert codes_of(version)["code_scales"] is arrays["code_scales"]
    assert not arrays["code_stale"].any()
    assert np.flatnonzero(arrays["code_scales"][:101] != scales).tolist() == [3, 7, 100]
    version.rollback(0)
    assert arrays["code_stale"].any()
    while version.maintain():
        pass
    assert np.flatnonzero(arrays["code_scales"][:100] != scales[:100]).tolist() == []
    assert arrays["code_scales"][100] < 0
    assert version.memory()["beside"] > 0
