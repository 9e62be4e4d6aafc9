import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.evaluation.changed_rows import changed_rows
from freshet_serving.models.evaluation.row_layers import RowLayer, RowLayers
from freshet_serving.processor.repository.log.contents import NO_SCALES

NOBODY = np.empty(0, np.int64)


def table(held):
    keys = np.array(list(held), np.int64)
    rows = np.array(list(held.values()), np.float32).reshape(-1, 1)
    return RowLayers("t", 1, [RowLayer(keys, rows, NO_SCALES, NOBODY)])


tables = st.dictionaries(st.integers(-9, 9), st.integers(-4, 4), max_size=12)


@settings(deadline=None)
@given(before=tables, after=tables, most=st.integers(1, 4))
def test_changed_rows_equal_the_difference_of_two_dictionaries(before, after, most):
    found = changed_rows(table(after), table(before), lambda _: None, most)
    moved = {key: abs(after[key] - before[key]) for key in after.keys() & before.keys() if after[key] != before[key]}
    assert found.born == len(after.keys() - before.keys())
    assert found.gone == len(before.keys() - after.keys())
    assert found.moved == len(moved)
    furthest = sorted(moved, key=lambda key: (-moved[key], key))[:most]
    assert found.furthest == [(key, moved[key], abs(before[key]), abs(after[key])) for key in furthest]
