"""Sizes of executables of the next item: few, and never too small."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.dense_step import fewest_size
from freshet_serving.models.training.next_item_step import FEWEST_CANDIDATES, SIZES


@pytest.mark.parametrize(("number", "size"), [(1, 64), (64, 64), (65, 72), (3706, 3840), (4096, 4096), (4097, 4608)])
def test_candidates_fit_the_next_size(number, size):
    assert fewest_size(number, FEWEST_CANDIDATES, SIZES) == size
