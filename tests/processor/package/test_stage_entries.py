"""Lookups of stages agree with inputs and tables; polynomials say how many rows of a stage are one run."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest, StageLookup, weight_rows
from freshet_serving.processor.package.part_checks import validate_growth
from freshet_serving.processor.package.stage_entries import MAX_TERMS, GrowthTerm, StageGrowth
from tests.processor.features.test_stage_rows import DIM, manifest


def with_lookup(**more):
    whole = manifest()
    first, *rest = whole.stage.lookups
    return replace(whole, stage=replace(whole.stage, lookups=[replace(first, **more), *rest]))


def test_manifest_with_lookups_round_trips():
    assert Manifest.from_json(manifest().to_json()) == manifest()


def test_stage_without_lookups_is_written_as_before():
    whole = manifest()
    plain = replace(whole, stage=replace(whole.stage, lookups=[]))
    assert "lookups" not in json.loads(plain.to_json())["stage"]
    assert Manifest.from_json(plain.to_json()) == plain


def test_lookups_count_as_features_over_their_tables():
    found = [(f.name, f.kind, f.input, f.column, f.table) for f in manifest().lookups[1:]]
    assert found == [
        ("rows.past", "ids", "past", -1, "items"),
        ("rows.pair.0", "id", "pair", 0, "items"),
        ("rows.pair.1", "id", "pair", 1, "items"),
        ("rows.word.-1", "string", "word", -1, "words"),
    ]
    assert [f.width for f in manifest().lookups[1:]] == [DIM, DIM, DIM, 1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"input": "none"}, "'none' is not an input or a transform"),
        ({"table": "none"}, "'none' is not among manifest.tables"),
        ({"name": "rows.pair"}, "expected a name of its own"),
        ({"name": ""}, "expected a name of its own"),
        ({"input": "price", "columns": []}, "expected int64 or string, got float32"),
        ({"columns": [0]}, "expected columns of 'past', which has 0"),
        ({"input": "pair", "columns": [2]}, "expected columns of 'pair', which has 2"),
    ],
)
def test_lookup_that_does_not_fit_is_refused(more, message):
    with pytest.raises(BadInput, match=message):
        with_lookup(**more).to_json()


def test_rows_never_decide_which_rows_are_read():
    whole = manifest()
    outputs = [*whole.stage.outputs, Input("key", "int64")]
    with pytest.raises(BadInput, match="expected float32 of a stage with lookups"):
        replace(whole, stage=replace(whole.stage, outputs=outputs)).to_json()


def test_lookup_has_no_columns_unless_it_names_them():
    assert StageLookup("rows", "past", "items").columns == []


def test_weight_has_rows_of_its_last_dimension_and_a_scalar_one():
    assert [weight_rows(shape) for shape in ((), (3,), (2, 3), (4, 2, 3), (0, 3))] == [
        (1, 1),
        (1, 3),
        (2, 3),
        (8, 3),
        (0, 3),
    ]


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
