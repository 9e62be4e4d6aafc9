"""Polynomials of what a stage computes: their cells, the rows of one run, and manifests that carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.part_checks import validate_growth
from freshet_serving.processor.package.stage_entries import MAX_TERMS, GrowthTerm, StageGrowth

ATTENTION = StageGrowth([GrowthTerm(0, 0, 7.0), GrowthTerm(1, 1, 10.0), GrowthTerm(1, 2, 2.0)])


@given(cells=st.integers(1, 1 << 30), length=st.integers(1, 5_000), rows=st.integers(1, 70_000))
def test_rows_of_a_run_are_the_most_that_stay_within(cells, length, rows):
    at_once = ATTENTION.rows_within(cells, length, rows)
    assert 1 <= at_once <= rows
    assert at_once == 1 or ATTENTION.cells(at_once, length) <= cells
    assert at_once == rows or ATTENTION.cells(at_once + 1, length) > cells


@pytest.mark.parametrize(
    ("growth", "message"),
    [
        (StageGrowth([]), r"growth.terms: expected 1 to 32, got 0"),
        (StageGrowth([GrowthTerm(1, 1, 1.0)] * (MAX_TERMS + 1)), r"growth.terms: expected 1 to 32, got 33"),
        (StageGrowth([GrowthTerm(1, 9, 1.0)]), r"expected powers from 0 to 4, got 1 and 9"),
        (StageGrowth([GrowthTerm(1, 1, -1.0)]), r"expected factors above 0, got -1.0"),
        (StageGrowth([GrowthTerm(1, 1, float("nan"))]), r"expected factors above 0, got nan"),
        (StageGrowth([GrowthTerm(1, 1, 1.0)], ["other"]), r"growth.sized_by: 'other' is not an input"),
    ],
)
def test_growth_that_is_no_polynomial_is_refused(growth, message):
    with pytest.raises(BadInput, match=message):
        validate_growth(growth, {"past"})
