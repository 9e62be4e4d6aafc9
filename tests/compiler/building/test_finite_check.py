"""Rows that are not numbers are refused by the name of their table."""

import numpy as np
import pytest

from freshet_serving.compiler.building.finite_check import CHECKED_ROWS, check_rows
from freshet_serving.processor.errors import BadInput


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_row_that_is_no_number_is_refused_wherever_it_is(value):
    rows = np.zeros((CHECKED_ROWS + 2, 1), np.float32)
    check_rows("user", rows)
    rows[-1] = value
    with pytest.raises(BadInput, match="table 'user': expected finite rows, got NaN or infinity"):
        check_rows("user", rows)


def test_quantised_rows_are_numbers():
    check_rows("user", np.zeros((3, 4), np.int8))
