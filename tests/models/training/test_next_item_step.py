"""Sizes of executables of the next item: few, and never too small."""

from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.dense_step import fewest_size
from freshet_serving.models.training.next_item_step import FEWEST_CANDIDATES, SIZES, NextItemStep


@pytest.mark.parametrize(("number", "size"), [(1, 64), (64, 64), (65, 72), (3706, 3840), (4096, 4096), (4097, 4608)])
def test_candidates_fit_the_next_size(number, size):
    assert fewest_size(number, FEWEST_CANDIDATES, SIZES) == size


@pytest.mark.parametrize(("rows", "size"), [(200, 200), (128, 128), (33, 128), (32, 32), (9, 32), (8, 8), (1, 8)])
def test_histories_fit_one_of_few_sizes(rows, size):
    step = SimpleNamespace(_most=2, _settings=SimpleNamespace(batch_rows=256))
    assert NextItemStep._histories_size(step, rows) == size
