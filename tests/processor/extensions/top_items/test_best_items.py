"""The items that count are ranked by their products, and successors beside them."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.top_items.best_items import RankedTable, best_items
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed

KEYS = np.arange(100, 140)
ROWS = np.random.default_rng(5).standard_normal((len(KEYS), 4)).astype(np.float32)
USERS = np.random.default_rng(6).standard_normal((2, 6)).astype(np.float32)
NONE = np.empty(0, np.int64)


@pytest.fixture
def rows():
    tensors = packed(KEYS, ROWS, "float32")
    table = ServedTable(TableEntry("items", 4, len(KEYS)), tensors)
    codes = RowCodes(table, tensors, 4)
    while codes.refresh(0):
        pass
    descriptor = np.array(table.descriptor(), np.int64)
    # The table stays while its rows are read.
    yield RankedTable(descriptor, codes.arrays, descriptor[None], 0, 4)  # noqa: PT022


def rank(rows, allowed=None, excluded=(NONE, NONE), successors=(), k=5):
    return best_items(rows, USERS, None, allowed, list(excluded), successors, k, lambda rows_read: True)


def order(scores, k=5):
    return [key for key, _ in sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:k]]


def products(user):
    return dict(zip(KEYS.tolist(), (ROWS @ USERS[user, :4]).tolist()))


def test_scan_and_allowed_keys_rank_alike(rows):
    for ranked in (rank(rows), rank(rows, allowed=[KEYS, KEYS])):
        assert [r.keys.tolist() for r in ranked] == [order(products(user)) for user in (0, 1)]


def test_allowed_keys_are_those_of_each_user(rows):
    ranked = rank(rows, allowed=[KEYS[:3], KEYS[5:6]])
    assert [sorted(r.keys.tolist()) for r in ranked] == [KEYS[:3].tolist(), KEYS[5:6].tolist()]


@pytest.mark.parametrize("some", [None, [KEYS[:20], KEYS[:20]]])
def test_successors_have_scores_of_their_own(rows, some):
    # The last one is no item that is allowed, where only some are.
    nobody = RankedRows(NONE, np.empty(0, np.float32))
    more = [RankedRows(np.array([103, 130]), np.array([90.0, 80.0], np.float32)), nobody]
    first, second = rank(rows, some, successors=more)
    scores = {key: score for key, score in products(0).items() if some is None or key < 120}
    scores |= {103: 90.0} if some else {103: 90.0, 130: 80.0}
    assert first.keys.tolist() == order(scores)
    assert second.keys.tolist() == order({k: s for k, s in products(1).items() if some is None or k < 120})


def test_excluded_keys_are_in_no_list(rows):
    best = rank(rows)[0].keys
    assert not set(rank(rows, excluded=(best, NONE))[0].keys.tolist()) & set(best.tolist())
