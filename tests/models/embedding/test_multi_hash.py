"""When tables are hashed, and how; and a hashed table pooled against a dictionary of its rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.multi_hash import CODE_BITS, MOST_CODES, choice, key_transform
from freshet_serving.models.embedding.optimizer import row_optimizer
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.key_codes import CODES
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry, feature_width
from freshet_serving.processor.package.transform_rules import shape_of
from freshet_serving.processor.package.transforms import HASHES, ColumnShape, codes_a_value
from freshet_serving.processor.tables.table import descriptors

DIM = 3
F32 = np.float32
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-4, 4)


@pytest.mark.parametrize(
    ("ids", "rows", "how"),
    [
        (0, 10, "none"),
        (1000, 1000, "none"),
        (1001, 1000, "k_way"),
        (2500, 1000, "k_way"),
        (2501, 1000, "binary_code"),
        (10**9, 10**6, "k_way"),
        (10**10, 10**6, "binary_code"),
        (float("inf"), 2**31 - 1, "binary_code"),
    ],
)
def test_table_is_hashed_only_with_fewer_rows_than_ids(ids, rows, how):
    assert choice(ids, rows) == how


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(32, 2**31 - 1), how=st.sampled_from(HASHES), keys=st.just(0) | st.integers(1, MOST_CODES))
def test_hashed_table_never_exceeds_its_row_limit(rows, how, keys):
    transform = key_transform("t", "x", 0, how, rows, 0 if how == "quotient_remainder" else keys)
    assert shape_of(transform, [ColumnShape("int64")]) == ColumnShape("int64", 0, True)
    _, first, second = transform.integers
    most = {"quotient_remainder": first + second, "k_way": first * second}.get(how, second << first)
    assert rows // 4 <= most <= rows or (how == "binary_code" and first * second + second > 64)
    if keys and how != "quotient_remainder":
        assert codes_a_value(transform) == keys


@pytest.mark.parametrize(("rows", "bits", "keys"), [(1_000, 7, 6), (10_000, 11, 4), (10**6, 18, 3), (4, 2, 1)])
def test_binary_code_uses_the_fewest_keys_that_distinguish_ids(rows, bits, keys):
    assert key_transform("t", "x", 0, "binary_code", rows).integers == [0, bits, keys]
    assert bits * keys >= CODE_BITS or rows < 16


def pooled(transform, combiner, most, lists):
    """A list feature over a hashed table, by the plan: what it is like, and the rows of its table by key."""
    width = feature_width(combiner, DIM, most)
    manifest = Manifest(
        "m", 1, "", 0.0, [Input("x", "int64", 0, True)],
        [Feature("x", "ids", "t", table="rows", combiner=combiner, max_length=most, width=width)],
        [TableEntry("rows", DIM, 0)], [Output("y")], width, {}, {}, transforms=[transform],
    )  # fmt: skip
    table, plan = EmbeddingVariable("rows", DIM, row_optimizer("sgd"), seed=9), SparsePlan(manifest)
    splits = np.cumsum([0] + [len(row) for row in lists])
    bound = plan.bind_inputs({"x": Ragged(np.array([v for row in lists for v in row], np.int64), splits)})
    # Every other row is there; the others are keys that nothing has touched yet.
    table.insert(np.unique(bound.keep[0].values)[::2])
    out = np.zeros((len(lists), width), F32)
    counts = np.zeros((1, 2), np.int64)
    plan.fill(BatchView(descriptors([table.descriptor()]), 0, [bound], np.array([[0, len(lists)]]), counts), out)
    held = table.export()
    row_invariants = plan.row_invariants(bound, 3) if len(lists) == 1 else None
    if row_invariants is not None:
        again = np.zeros((1, width), F32)
        for part in row_invariants.parts:
            part.fill(descriptors([table.descriptor()]), 0, again, counts)
        assert again.tobytes() == out.tobytes(), "and in parts to the bit"
    return out, dict(zip(held.keys.tolist(), held.rows))


@settings(deadline=None, max_examples=50)
@given(
    lists=st.lists(st.lists(INT64, max_size=6), min_size=1, max_size=4),
    how=st.sampled_from(HASHES),
    combiner=st.sampled_from(["sum", "mean", "sqrtn", "none"]),
    most=st.integers(1, 4),
    rows=st.integers(32, 200),
)
def test_hashed_table_pools_like_a_dictionary_of_its_rows(lists, how, combiner, most, rows):
    transform = key_transform("t", "x", 0, how, rows)
    out, known = pooled(transform, combiner, most, lists)
    for got, row in zip(out, lists):
        values = row[:most]
        keys = CODES[how](np.array(values, np.int64), *transform.integers[1:]).tolist()
        found = [[known.get(key, np.zeros(DIM, F32)) for key in of_value] for of_value in keys]
        if combiner == "none":
            wanted = np.zeros((most, DIM), F32)
            for place, rows_of_value in enumerate(found):
                wanted[place] = np.add.reduce(rows_of_value, dtype=F32)
            assert got[: most * DIM].tobytes() == wanted.tobytes()
            assert got[most * DIM :].tolist() == [float(place < len(values)) for place in range(most)]
            continue
        wanted = np.zeros(DIM, F32)
        for part in (part for rows_of_value in found for part in rows_of_value):
            wanted += part
        count = max(1, len(values))
        wanted /= {"sum": F32(1), "mean": F32(count), "sqrtn": np.sqrt(F32(count))}[combiner]
        assert got.tobytes() == wanted.tobytes()
