"""Rows of a large request share parts, which are computed in steps.

Equality of steps with one run is tested in kernels/test_pool.py and package/test_combiners.py.
"""

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import COMBINER, KIND, KIND_MORE, OFFSET
from freshet_serving.processor.package import COMBINER_OF_CODE, COMBINERS, Feature, Input, Manifest, Output, TableEntry
from freshet_serving.processor.package.combiners import Combiner
from tests.support.packages import make_inputs, manifest

SMALL = manifest()
PLAN = SparsePlan(SMALL)


def splits(*at):
    return np.array(at, np.int64)


def test_features_equal_in_all_rows_are_distinguished_from_varying_ones():
    users = [n for n, f in enumerate(SMALL.features) if f.input == "user"]
    assert PLAN.row_invariants(PLAN.bind_inputs(make_inputs(range(5))), 100) is None
    row_invariants = PLAN.row_invariants(PLAN.bind_inputs(make_inputs(range(5)) | {"user": np.array([1])}), 100)
    assert row_invariants.ids == 1
    (part,) = row_invariants.parts
    np.testing.assert_array_equal(part.pooling.plan, PLAN.plan[users])
    np.testing.assert_array_equal(row_invariants.varying.plan, np.delete(PLAN.plan, users, 0))
    tags = Ragged(Strings.of(["a", "b", "c"]), splits(0, 3))
    assert PLAN.row_invariants(PLAN.bind_inputs(make_inputs(range(5)) | {"tags": tags}), 100).ids == 3


def steps(combiner, max_ids, length=45):
    """Return the steps of a request whose only feature is one list for all rows."""
    feature = Feature("a", "ids", "a", table="t", combiner=combiner, width=2)
    entries = [TableEntry("t", 2, 50)]
    whole = Manifest(
        "m", 1, "", 0.0, [Input("a", "int64", ragged=True)], [feature], entries, [Output("score")], 2, {}, {}
    )
    plan = SparsePlan(whole)
    bound = plan.bind_inputs({"a": Ragged(np.arange(length), splits(0, length))})
    return plan.row_invariants(bound, max_ids).parts


@pytest.mark.parametrize("combiner", [one.name for one in COMBINERS.values() if one.merge])
def test_pieces_of_a_list_are_combined_as_its_combiner_says(combiner):
    pieces = steps(combiner, 10)
    merge = COMBINERS[COMBINERS[combiner].merge].code
    assert [piece.pooling.plan[0, COMBINER] for piece in pieces] == [merge] * 5
    assert [piece.pooling.plan[0, KIND] == KIND_MORE for piece in pieces] == [False] + [True] * 4
    assert [piece.divisor for piece in pieces] == [1] * 4 + [COMBINERS[combiner].divisor(45)]
    assert [piece.bound.ids for piece in pieces] == [10, 10, 10, 10, 5]


@pytest.mark.parametrize("max_ids", [1, 10])
def test_list_whose_combiner_cannot_be_merged_stays_whole(monkeypatch, max_ids):
    """A combiner that is no sum of pieces, such as a maximum, names no merge; its lists are never taken apart."""
    monkeypatch.setitem(COMBINER_OF_CODE, COMBINERS["mean"].code, Combiner("most", COMBINERS["mean"].code, "", 0))
    (step,) = steps("mean", max_ids)
    assert step.pooling.plan[0, COMBINER] == COMBINERS["mean"].code
    assert (step.bound.ids, step.divisor) == (45, 1)


def test_pieces_of_every_merged_list_are_summed_undivided():
    """A piece that was divided, too, would be wrong for large requests alone."""
    assert [COMBINERS[one.merge].power for one in COMBINERS.values() if one.merge] == [0, 0, 0]


def test_features_are_in_order_only_as_they_lie_in_the_matrix():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features]
    assert plan.in_order(names)
    assert not plan.in_order(names[:-1])
    assert not plan.in_order([*names[1:], names[0]])


def test_features_alone_lie_side_by_side():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features][::-1]
    widths = [f.width for f in made.features][::-1]
    pooling = plan.pooling(names)
    assert pooling.plan[:, OFFSET].tolist() == np.cumsum([0, *widths[:-1]]).tolist()
