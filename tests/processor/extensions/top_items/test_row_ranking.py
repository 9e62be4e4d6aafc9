"""Rows by their products against plain numpy: any table, after deltas and rollbacks, as of any epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.top_items import row_ranking
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.row_ranking import rank_rows
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.package import TableDelta, TableEntry
from freshet_serving.processor.tables.table import ServedTable

# Whole numbers have exact products, so ties are ties.
numbers = st.integers(-3, 3)
ids = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 12)


def made_rows(keys, tag, dim):
    return np.array([[(key * (j + 3) + tag * 7) % 5 - 2 for j in range(dim)] for key in keys], np.float32).reshape(
        len(keys), dim
    )


class CodedTable(ServedTable):
    """A table whose codes are told of every change, as its version's writer does."""

    def __init__(self, spec, arrays, more=100):
        super().__init__(spec, arrays)
        self.codes = RowCodes(self, arrays, spec.dim, more)

    def apply(self, delta, epoch):
        self.codes.changing([delta.keys, delta.removed])
        return super().apply(delta, epoch)

    def undo(self, versions, safe_seq):
        self.codes.changing([versions.keys])
        super().undo(versions, safe_seq)

    def refresh(self, epoch):
        while self.codes.refresh(epoch):
            pass


def served(keys, dim, rows=None):
    keys = np.array(sorted(keys), np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(len(keys)))
    assert hash_index.build(index.ctypes.data, len(index), keys) == -1
    rows = made_rows(keys.tolist(), 0, dim) if rows is None else rows
    return CodedTable(TableEntry("t", dim, len(keys)), {"keys": keys, "index": index, "rows": rows})


def always(rows):
    return True


def ranked(table, epoch, vectors, excluded=None, k=5, proceed=always):
    vectors = np.array(vectors, np.float32)
    excluded = [np.empty(0, np.int64) for _ in vectors] if excluded is None else excluded
    found = rank_rows(np.array(table.descriptor()), epoch, table.codes.arrays, vectors, excluded, k, proceed)
    return [(r.keys.tolist(), r.scores.tolist()) for r in found]


def reference(contents, vector, excluded, k, dim):
    """contents: key -> tag of its row."""
    rows = {key: made_rows([key], tag, dim)[0] for key, tag in contents.items() if key not in excluded}
    best = sorted(rows, key=lambda key: (-float(rows[key] @ vector), key))[:k]
    return best, [float(rows[key] @ vector) for key in best]


@settings(max_examples=60, deadline=None)
@given(
    st.sets(ids, max_size=40),
    st.lists(st.tuples(st.lists(ids, max_size=12, unique=True), st.lists(ids, max_size=6, unique=True)), max_size=4),
    st.sampled_from([1, 3, 31, 32, 33]),
    st.lists(st.lists(numbers, min_size=33, max_size=33), min_size=1, max_size=4),
    st.integers(1, 60),
    st.integers(0, 4),
    st.sets(st.integers(0, 8)),
    st.data(),
)
def test_best_rows_are_those_of_numpy_in_every_epoch(keys, deltas, dim, vectors, k, undone, refreshed, data):
    table, contents = served(keys, dim), dict.fromkeys(keys, 0)
    epochs, versions = [dict(contents)], []
    oldest, moves = 0, 0

    def refresh(epoch):
        nonlocal oldest, moves
        moves += 1
        if moves in refreshed:
            # Only while no reader is left that reads an older epoch.
            table.refresh(epoch)
            oldest = epoch

    refresh(0)
    for tag, (upserts, removed) in enumerate(deltas, 1):
        removed = [key for key in removed if key not in upserts]
        changes = TableDelta(np.array(upserts, np.int64), made_rows(upserts, tag, dim), np.array(removed, np.int64))
        versions.append(table.apply(changes, tag))
        contents = {key: t for key, t in contents.items() if key not in removed} | dict.fromkeys(upserts, tag)
        epochs.append(contents)
        refresh(tag)
    for _ in range(min(undone, len(versions))):
        table.undo(versions.pop(), 100)
        epochs.pop()
        oldest = min(oldest, len(epochs) - 1)
        refresh(len(epochs) - 1)
    vectors = [vector[:dim] for vector in vectors]
    known = sorted(set().union(*epochs)) or [0]
    excluded = [data.draw(st.lists(st.sampled_from(known), max_size=8)) for _ in vectors]
    for epoch, there in list(enumerate(epochs))[oldest:]:
        found = ranked(table, epoch, vectors, [np.array(keys, np.int64) for keys in excluded], k)
        for result, vector, without in zip(found, vectors, excluded):
            assert result == reference(there, np.array(vector, np.float32), without, k, dim)


def test_equal_rows_tie_wherever_they_lie():
    random = np.random.default_rng(1)
    row, vector = random.standard_normal((2, 50)).astype(np.float32)
    keys = random.choice(2**40, 1000, replace=False)
    table = served(keys.tolist(), 50, np.tile(row, (1000, 1)))
    alone = ranked(served([7], 50, row[np.newaxis]), 0, [vector])[0][1][0]
    assert ranked(table, 0, [vector], k=1000) == [(sorted(keys.tolist()), [alone] * 1000)]
    # Nor does it matter which vectors share the scan.
    assert ranked(table, 0, [*random.standard_normal((4, 50)), vector], k=3)[4][1] == [alone] * 3


def test_products_that_are_no_numbers_do_not_count():
    rows = np.array([[np.inf, 1], [np.nan, 1], [np.inf, 1], [2, 1]], np.float32)
    table = served([1, 2, 3, 4], 2, rows)
    assert ranked(table, 0, [[0, 1], [1, 1]]) == [([4], [1.0]), ([1, 3, 4], [np.inf, np.inf, 3.0])]


def test_scan_ends_when_it_is_not_to_proceed(monkeypatch):
    monkeypatch.setattr(row_ranking, "POSITIONS", 64)
    table, seen = served(range(500), 4), []

    def proceed(rows):
        seen.append(rows)
        return len(seen) < 3

    ranked(table, 0, [[1, 1, 1, 1]], proceed=proceed)
    assert len(seen) == 3
    seen.clear()
    ranked(table, 0, [[1, 1, 1, 1]], proceed=lambda rows: seen.append(rows) is None)
    assert sorted(seen) == seen
    assert seen[-1] == 500
    stop = len(seen) - 3
    seen.clear()
    ranked(table, 0, [[1, 1, 1, 1]], proceed=lambda rows: seen.append(rows) is None and len(seen) < stop)
    assert 0 < seen[-1] < 500


def test_many_vectors_are_asked_about_after_fewer_rows():
    table, found = served(range(700), 4), []
    for count in (1, 100, 1000):
        seen = []
        ranked(table, 0, np.ones((count, 4)), proceed=lambda rows, seen=seen: seen.append(rows) is None)
        found.append(max(np.diff([0, *seen])))
    assert found == [700, 640, 64]


@pytest.mark.parametrize("keys", [(), (5,)])
def test_small_tables_are_ranked(keys):
    assert len(ranked(served(keys, 4), 0, [[1, 1, 1, 1]])[0][0]) == len(keys)


def test_row_of_unknown_keys_is_never_ranked():
    keys = np.array([1, 2], np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(2))
    assert hash_index.build(index.ctypes.data, len(index), keys) == -1
    arrays = {"keys": keys, "index": index, "rows": np.ones((2, 1), np.float32)}
    table = CodedTable(TableEntry("t", 1, 2, unknown_key=-7), arrays)
    table.apply(TableDelta(np.array([-7]), np.array([[9]], np.float32), np.empty(0, np.int64)), 1)
    assert ranked(table, 1, [[1.0]]) == [([1, 2], [1.0, 1.0])]


def test_vectors_may_read_the_first_numbers_of_rows_alone():
    table = served(range(40), 40)
    vector = [float(n % 3 - 1) for n in range(35)]
    assert ranked(table, 0, [vector]) == [
        reference(dict.fromkeys(range(40), 0), np.append(vector, [0.0] * 5), (), 5, 40)
    ]
