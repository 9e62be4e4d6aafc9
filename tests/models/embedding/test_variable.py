"""EmbeddingVariable against a dict: whatever happens to it, and whatever of that a checkpoint or a delta carries."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from models.embedding import id_rows
from models.embedding.optimizer import OPTIMIZERS, row_optimizer
from models.embedding.variable import Changes, EmbeddingVariable
from processor.kernels.hashing import init_rows

DIM, RATE = 3, 0.1
PARTS = [f.name for f in dataclasses.fields(Changes)]

any_id = st.one_of(
    st.integers(0, 24),
    st.sampled_from([-(2**63), -(2**63) + 1, -2, -1, 2**63 - 2, 2**63 - 1]),
    st.integers(-(2**63), 2**63 - 1),
)
some_ids = st.lists(any_id, max_size=12)


def int64s(ids):
    return np.array(list(ids), np.int64)


def make_table(optimizer="adam", seed=5):
    return EmbeddingVariable("t", DIM, row_optimizer(optimizer), seed=seed)


def first_row(key, seed=5, limit=0.01):
    row = np.empty((1, DIM), np.float32)
    init_rows(int64s([key]), np.uint64(seed), np.float32(limit), row)
    return row[0]


def assert_same(got, wanted):
    """Two Changes, equal to the bit."""
    for part in PARTS:
        a, b = getattr(got, part), getattr(wanted, part)
        assert a.dtype == b.dtype, part
        assert a.shape == b.shape, part
        assert a.tobytes() == b.tobytes(), part


class TableMachine(RuleBasedStateMachine):
    """A table, its follower by increments, and a dict of what either has to hold."""

    @initialize(optimizer=st.sampled_from(sorted(OPTIMIZERS)))
    def start(self, optimizer):
        self.optimizer_name, self.optimizer = optimizer, row_optimizer(optimizer)
        self.table, self.follower = make_table(optimizer), make_table(optimizer)
        self.rows, self.changed, self.removed = {}, set(), set()
        self.step = self.peak = 0

    def born(self, ids):
        for key in set(ids) - self.rows.keys():
            self.rows[key] = [first_row(key), self.optimizer.fill(DIM), 0, 0]
            self.changed.add(key)
            self.removed.discard(key)
        self.peak = max(self.peak, len(self.rows))

    def gone(self, ids):
        ids = set(ids) & self.rows.keys()
        for key in ids:
            del self.rows[key]
        self.changed -= ids
        self.removed |= ids
        return len(ids)

    @rule(ids=some_ids)
    def insert(self, ids):
        refs = self.table.insert(int64s(ids))
        self.born(ids)
        assert len(set(refs.tolist())) == len(set(ids))
        assert all((a == b) == (i == j) for a, i in zip(refs, ids) for b, j in zip(refs, ids))

    @rule(ids=some_ids.map(lambda ids: list(dict.fromkeys(ids))), seed=st.integers(0, 99))
    def learn(self, ids, seed):
        refs = self.table.insert(int64s(ids))
        self.born(ids)
        self.step += 1
        sums = np.random.default_rng(seed).standard_normal((len(ids), DIM), np.float32)
        self.table.update(refs, sums, RATE, self.step)
        rows = np.array([self.rows[k][0] for k in ids], np.float32).reshape(-1, DIM)
        slots = np.array([self.rows[k][1] for k in ids], np.float32).reshape(len(ids), self.optimizer.slots_a_row(DIM))
        self.optimizer.update(np.arange(len(ids)), sums, rows, slots, RATE, self.step)
        for key, row, slot in zip(ids, rows, slots):
            self.rows[key] = [row, slot, self.step, self.rows[key][3] + 1]
            self.changed.add(key)

    @rule(ids=some_ids)
    def remove(self, ids):
        assert self.table.remove(int64s(ids)) == self.gone(ids)

    @rule(ids=some_ids, gone=some_ids, tag=st.integers(1, 9))
    def somebody_else_gives_and_takes_rows(self, ids, gone, tag):
        keys = int64s(sorted(set(ids)))
        gone = [key for key in gone if key not in ids]
        rows = np.full((len(keys), DIM), tag / 8, np.float32)
        self.table.overwrite(keys, rows, int64s(gone), RATE, 1)
        self.gone(gone)
        self.born(ids)
        for key, row, slots in zip(keys.tolist(), rows, self.optimizer.slots_of(rows, RATE, 1)):
            self.rows[key][:2] = [row, slots]
            self.changed.add(key)

    @rule()
    def what_was_not_published_counts_as_changed_once_more(self):
        before = self.table.changes()
        self.table.clear_changed()
        assert not len(self.table.changes().keys)
        self.table.mark(before)
        assert_same(self.table.changes(), before)

    @rule()
    def a_cleared_table_is_a_new_one(self):
        self.the_follower_takes_the_increment()
        everything = self.table.export()
        self.table.clear()
        assert (len(self.table), len(self.table.changes().keys)) == (0, 0)
        assert (self.table.find(everything.keys) < 0).all()
        self.table.restore(everything)
        self.peak = len(self.rows)

    @rule(ids=some_ids)
    def looking_up_gives_no_row(self, ids):
        refs = self.table.find(int64s(ids))
        assert [r >= 0 for r in refs] == [key in self.rows for key in ids]

    @rule()
    def the_follower_takes_the_increment(self):
        self.follower.restore(self.table.changes())
        self.table.clear_changed()
        self.changed, self.removed = set(), set()
        assert_same(self.follower.export(), self.table.export())
        assert not len(self.follower.changes().keys)
        assert not len(self.follower.changes().removed)

    @rule()
    def a_table_restored_from_an_export_takes_over(self):
        self.the_follower_takes_the_increment()
        other = make_table(self.optimizer_name)
        other.restore(self.table.export())
        self.table, self.peak = other, len(self.rows)

    def wanted(self, ids, removed=()):
        ids = sorted(ids)
        rows, slots, last_step, counts = ([self.rows[k][part] for k in ids] for part in range(4))
        width = self.optimizer.slots_a_row(DIM)
        return Changes(
            int64s(ids),
            np.array(rows, np.float32).reshape(-1, DIM),
            np.array(slots, np.float32).reshape(len(ids), width),
            int64s(last_step),
            int64s(counts),
            int64s(sorted(removed)),
        )

    @invariant()
    def the_table_holds_what_the_dict_holds(self):
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.rows)
        assert_same(self.table.export(), self.wanted(self.rows))
        assert_same(self.table.changes(), self.wanted(self.changed, self.removed))
        refs = self.table.find(int64s(self.rows))
        assert len(set(refs.tolist())) == len(self.rows)
        assert all(0 <= r < self.peak for r in refs)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    """Tables that start with four rows, so that they grow and rehash all the time."""
    monkeypatch.setattr(id_rows, "FIRST_ROWS", 4)


def test_a_table_is_a_dict_that_grows_shrinks_and_restores():
    run = TableMachine.TestCase
    run.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run().runTest()


@settings(deadline=None)
@given(ids=st.lists(any_id, min_size=1, max_size=60), order=st.randoms(), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_the_first_value_of_a_row_depends_on_the_seed_and_the_id_alone(ids, order, cuts):
    at_once, in_pieces = make_table(), make_table()
    at_once.insert(int64s(ids))
    shuffled = list(ids)
    order.shuffle(shuffled)
    edges = [0, *sorted(cuts), len(ids)]
    for first, last in zip(edges, edges[1:]):
        in_pieces.insert(int64s(shuffled[first:last]))
    assert_same(in_pieces.export(), at_once.export())
    export = at_once.export()
    for key, row in zip(export.keys.tolist(), export.rows):
        assert row.tobytes() == first_row(key).tobytes()


def test_another_seed_gives_other_rows_and_all_lie_within_the_limit():
    ids = np.arange(-500, 500)
    a, b = make_table(seed=1), make_table(seed=2)
    a.insert(ids)
    b.insert(ids)
    first, second = a.export().rows, b.export().rows
    assert (first != second).mean() > 0.99
    for rows in (first, second):
        assert rows.min() >= -0.01
        assert rows.max() < 0.01
        assert abs(rows.mean()) < 5e-4
        assert len(np.unique(rows)) > 0.99 * rows.size


def test_a_row_that_comes_back_starts_anew():
    table = make_table("adagrad")
    refs = table.insert(int64s([7]))
    table.update(refs, np.ones((1, DIM), np.float32), RATE, 1)
    table.remove(int64s([7]))
    table.insert(int64s([7]))
    export = table.export()
    assert export.rows[0].tobytes() == first_row(7).tobytes()
    assert export.slots[0].tolist() == pytest.approx([0.1] * DIM)
    assert (export.last_step[0], export.counts[0]) == (0, 0)
    assert table.changes().keys.tolist() == [7]
    assert not len(table.changes().removed)


def test_removed_places_are_used_again_before_new_ones():
    table = make_table()
    table.insert(np.arange(100))
    freed = set(table.find(np.arange(20, 40)).tolist())
    table.remove(np.arange(20, 40))
    assert set(table.insert(np.arange(1000, 1020)).tolist()) == freed
    assert len(table) == 100


def test_ids_that_come_and_go_do_not_grow_the_table():
    table = make_table()
    sizes = []
    for wave in range(60):
        ids = np.arange(wave * 200, wave * 200 + 200)
        table.insert(ids)
        if wave:
            table.remove(ids - 200)
        table.clear_changed()
        sizes.append((table.descriptor()[1], len(table.rows)))
    assert len(table) == 200
    assert max(sizes[5:]) == max(sizes[:5])


def test_a_restored_table_learns_on_as_the_original_does():
    table = make_table("adam")
    random = np.random.default_rng(0)

    def learn(target, step):
        ids = np.unique(random.integers(0, 50, 20))
        target.update(target.insert(ids), random.standard_normal((len(ids), DIM), np.float32), RATE, step)

    for step in range(1, 6):
        learn(table, step)
    table.remove(np.arange(0, 50, 7))
    other = make_table("adam")
    other.restore(table.export())
    state = random.bit_generator.state
    for step in range(6, 12):
        learn(table, step)
    random.bit_generator.state = state
    for step in range(6, 12):
        learn(other, step)
    assert_same(other.export(), table.export())
