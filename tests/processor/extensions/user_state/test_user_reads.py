"""What a request is named by, and the rows whose stamps decide: the values and keys that its lookups read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.extensions.user_state.user_reads import UserReads
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.row_stamps import ABSENT_STAMP
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableDelta, TableEntry, divided
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed

DIM, IDS, MOST = 2, 10, 4
FEATURES = [
    Feature("user", "id", "user", side="user", table="user", offset=0, width=DIM),
    Feature("list", "ids", "list", side="user", table="item", combiner="mean", max_length=MOST, offset=2, width=DIM),
    Feature("age", "float", "age", side="user", offset=4),
    Feature("item", "id", "item", side="item", table="item", offset=5, width=DIM),
]


def manifest():
    inputs = [
        Input("user", "int64"),
        Input("list", "int64", ragged=True),
        Input("age", "float32"),
        Input("item", "int64"),
    ]
    tables = [TableEntry("user", DIM, IDS), TableEntry("item", DIM, IDS)]
    made = Manifest("m", 1, "", 0.0, inputs, FEATURES, tables, [Output("score")], 7, {}, {})
    return replace(made, graphs=divided(made, [("u0", 3)]))


PLAN = SparsePlan(manifest())
READS = UserReads(manifest().graphs["user"], PLAN)
KEYS = st.integers(-3, 12)
users = st.tuples(KEYS, st.lists(KEYS, max_size=7), st.sampled_from([0.0, -0.0, 1.5, float("nan")]))


def bound(user, items=(1, 2)):
    key, listed, age = user
    columns = {
        "user": np.array([key]),
        "list": Ragged(np.array(listed, np.int64), np.array([0, len(listed)])),
        "age": np.array([age], np.float32),
        "item": np.array(items),
    }
    return PLAN.bind_inputs(columns)


def content(request):
    return bytes(READS.content(READS.inputs(request)[1]))


@given(one=users, other=users)
def test_content_is_equal_only_of_equal_user_inputs(one, other):
    assert (content(bound(one)) == content(bound(other))) == (repr(one) == repr(other))


def test_content_is_not_of_candidates():
    user = (3, [1, 2], 0.5)
    assert content(bound(user)) == content(bound(user, (7, 8, 9)))


def test_stamps_are_those_of_the_keys_that_are_looked_up():
    tables = [ServedTable(spec, packed(np.arange(IDS), np.ones((IDS, DIM), np.float32))) for spec in manifest().tables]
    tables[0].apply(TableDelta(np.array([3]), np.ones((1, DIM), np.float32), np.array([4])), 5)
    tables[1].apply(TableDelta(np.array([1, 50]), np.ones((2, DIM), np.float32), np.empty(0, np.int64)), 6)
    described = descriptors([table.descriptor() for table in tables])

    def stamps(user, epoch):
        return READS.stamps(described, READS.inputs(bound(user))[1], epoch).tolist()

    assert stamps((3, [1, 2, 50, 60, 1, 1], 0.0), 6) == [5, 6, 0, 6, ABSENT_STAMP]
    assert stamps((3, [1, 2, 50, 60, 1, 1], 0.0), 5) == [5, 0, 0, ABSENT_STAMP, ABSENT_STAMP]
    assert stamps((4, [], 0.0), 6) == [ABSENT_STAMP]
    assert READS.tables == {0, 1}


@pytest.mark.parametrize("filler", [pool.BY_ENTITY, pool.BY_STAGE, pool.BY_EXTENSION])
def test_request_whose_user_inputs_are_filled_later_has_none(filler):
    request = bound((3, [1], 0.0))
    words = np.frombuffer(request.words, np.int64).reshape(-1, pool.INPUT_FIELDS).copy()
    words[PLAN.source("item"), pool.FILLED_BY] = filler
    assert READS.inputs(request._replace(words=words.tobytes()))[0] >= 0
    words[PLAN.source("list"), pool.FILLED_BY] = filler
    assert READS.inputs(request._replace(words=words.tobytes()))[0] == -1
