"""A batch shared out and put together again: every row once, in order, whatever its columns are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.parallel.batch_slices import decoded, encoded, slice_of
from freshet_serving.processor.columns import Ragged, Strings, slice_column
from tests.models.training.streams import make_batch


@given(st.integers(0, 500), st.integers(1, 70))
def test_every_row_belongs_to_one_process_in_order(rows, processes):
    slices = [slice_of(rows, n, processes) for n in range(processes)]
    assert [row for slice_ in slices for row in range(*slice_)] == list(range(rows))
    sizes = [stop - start for start, stop in slices]
    assert max(sizes) - min(sizes) <= 1


def plain(column):
    if isinstance(column, Ragged):
        return plain(column.values), column.row_splits.tolist()
    return column.tolist() if isinstance(column, Strings) else (column.dtype, column.tobytes())


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (7, 31), (9, 10), (5, 5)])
def test_columns_labels_and_shares_round_trip(start, stop):
    batch = make_batch(60, seed=1)
    batch.columns["spent"] = Ragged(np.arange(120, dtype=np.float32) / 8, np.arange(0, 122, 2))
    batch = batch.slice(10, 50)
    share = np.linspace(0, 1, 40).astype(np.float32)
    names = list(batch.columns)
    message = encoded(batch.columns, names, batch.label, share, start, stop)
    columns, label, shares = decoded(message, names)
    assert list(columns) == names
    for name, column in columns.items():
        assert plain(column) == plain(slice_column(batch.columns[name], start, stop)), name
    assert np.array_equal(label, batch.label[start:stop])
    assert np.array_equal(shares, share[start:stop])


def test_slice_excludes_strings_of_other_rows():
    batch = make_batch(400, seed=1)
    share = np.zeros(400, np.float32)
    whole, some = (encoded(batch.columns, list(batch.columns), batch.label, share, 0, n) for n in (400, 40))
    assert len(some) < len(whole) / 5
