"""Every combiner gives a list in pieces what it gives the whole list: the pieces of large divided requests."""

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import COMBINER_OF_CODE, COMBINERS, feature_width
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed

DIM, ROWS, MOST = 3, 50, 45
IDS = np.arange(MOST) % ROWS


def plan_and_tables(combiner):
    entry = TableEntry("t", DIM, ROWS)
    rows = np.random.default_rng(7).normal(size=(ROWS, DIM)).astype(np.float32)
    table = ServedTable(entry, packed(np.arange(ROWS), rows))
    width = feature_width(combiner, DIM, MOST)
    feature = Feature("a", "ids", "a", table="t", combiner=combiner, max_length=MOST, width=width)
    inputs = [Input("a", "int64", ragged=True)]
    plan = SparsePlan(Manifest("m", 1, "", 0.0, inputs, [feature], [entry], [Output("score")], width, {}, {}))
    return plan, np.array([table.descriptor()], np.int64), table


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("max_ids", [1, 10, 44, MOST])
def test_list_in_pieces_equals_the_whole_list(combiner, max_ids):
    plan, tables, table = plan_and_tables(combiner)
    bound = plan.bind_inputs({"a": Ragged(IDS, np.array([0, MOST]))})
    whole, counts = np.zeros((1, plan.width), np.float32), np.zeros((1, 2), np.int64)
    plan.fill(BatchView(tables, 0, [bound], np.array([[0, 1]]), counts), whole)

    steps = plan.row_invariants(bound, max_ids).parts
    row = np.zeros_like(whole)
    for step in steps:
        step.fill(tables, 0, row, counts)

    assert len(steps) == (-(-MOST // max_ids) if COMBINERS[combiner].merge else 1)
    np.testing.assert_array_equal(row, whole)
    assert table.rows == ROWS


def test_codes_are_those_of_packages_that_exist():
    assert {one.name: code for code, one in COMBINER_OF_CODE.items()} == {"sum": 0, "mean": 1, "sqrtn": 2, "none": 3}
