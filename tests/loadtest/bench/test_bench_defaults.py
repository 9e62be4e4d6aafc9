import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.bench_defaults import grid, interval, page
from loadtest.bench.labelled_tables import TABLES

pytestmark = pytest.mark.tensorflow


def test_interval_is_zero_for_equal_scores_and_excludes_zero_otherwise():
    random = np.random.default_rng(0)
    labels = (random.random(600) < 0.3).astype(np.float32)
    good, poor = (labels + random.normal(0, spread, 600).astype(np.float32) for spread in (0.5, 3))
    assert interval(labels, [(good, good)]) == (0, 0)
    low, high = interval(labels, [(good, poor), (good, poor)])
    assert 0 < low < high < 0.5


def test_grid_has_the_default_batch_and_larger_ones():
    assert {settings.batch_rows for settings in grid(32)} == {32, 128}
    assert {settings.batch_rows for settings in grid(512)} == {128, 512}


def test_page_has_a_line_per_table_and_names_unmeasured_ones():
    names = list(TABLES)
    result = {"rows": 700, "default": "a", "best": "b", "auc": [0.7, 0.71], "difference": [-0.01, -0.02, 0.005]}
    text = page({names[1]: result})
    assert f"| {names[1]} | 700 | a | 0.7000 | b | 0.7100 | -0.0100 (-0.0200 to +0.0050) |" in text
    assert f"Not measured: {names[0]}; " in text
    assert "Not measured" not in page(dict.fromkeys(names, result))
