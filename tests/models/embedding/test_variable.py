"""EmbeddingVariable against a dict: whatever happens to it, and whatever of that a checkpoint or a delta carries."""

import dataclasses

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from freshet_serving.models.embedding import id_rows, variable
from freshet_serving.models.embedding.admission import AdmitAll, CountingBloom, ExactCounts
from freshet_serving.models.embedding.optimizer import OPTIMIZERS, row_optimizer
from freshet_serving.models.embedding.variable import Changes, EmbeddingVariable, Eviction, RowInitializer
from freshet_serving.processor.kernels.hashing import init_rows

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
        self.table, self.follower = self.make(), self.make()
        self.rows, self.changed, self.removed = {}, set(), set()
        self.step = self.peak = 0

    def make(self):
        return make_table(self.optimizer_name)

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
        met = np.arange(1, len(ids) + 1)
        self.table.update(refs, sums, met, RATE, self.step)
        rows = np.array([self.rows[k][0] for k in ids], np.float32).reshape(-1, DIM)
        slots = np.array([self.rows[k][1] for k in ids], np.float32).reshape(len(ids), self.optimizer.slots_a_row(DIM))
        self.optimizer.update(np.arange(len(ids)), sums, rows, slots, RATE, self.step)
        for key, row, slot, times in zip(ids, rows, slots, met.tolist()):
            self.rows[key] = [row, slot, self.step, self.rows[key][3] + times]
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
            self.rows[key][:3] = [row, slots, 1]
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
        assert [key for piece in self.table.pieces(2) for key in piece.keys.tolist()] == everything.keys.tolist()
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
        other = self.make()
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
        self.check_numbers(refs)

    def check_numbers(self, refs):
        assert all(0 <= r < self.peak for r in refs)


FILTERS = {
    "at once": lambda: AdmitAll(),
    "counts": lambda: ExactCounts(3),
    "bloom": lambda: CountingBloom(3, 2000, 1e-6),
}


class SparingMachine(RuleBasedStateMachine):
    """A table that admits and evicts, its follower by increments, and a dict with plain numpy: rows by SGD."""

    @initialize(how=st.sampled_from(sorted(FILTERS)), kind=st.sampled_from(["uniform", "normal", "zeros"]))
    def start(self, how, kind):
        self.how, self.initial = how, RowInitializer(kind, 0.5)
        self.table, self.follower = self.make(), self.make()
        # By id: [row, last step, lookups]; occurrences of those that wait.
        self.rows, self.waiting, self.gone = {}, {}, set()
        self.step = 0

    def make(self):
        return EmbeddingVariable("t", DIM, row_optimizer("sgd"), 5, self.initial, FILTERS[self.how]())

    @rule(ids=st.lists(st.integers(0, 9) | any_id, max_size=12), seed=st.integers(0, 99))
    def learn(self, ids, seed):
        self.step += 1
        refs = self.table.insert(int64s(ids))
        for key in ids:
            if key not in self.rows:
                self.waiting[key] = self.waiting.get(key, 0) + 1
        for key in set(ids) - self.rows.keys():
            if self.how == "at once" or self.waiting[key] >= 3:
                self.rows[key] = [self.initial.rows(int64s([key]), 5, DIM)[0], 0, 0]
                self.gone.discard(key)
                if self.how != "bloom":
                    del self.waiting[key]
        assert [r >= 0 for r in refs] == [key in self.rows for key in ids]
        learned = sorted({key for key in ids if key in self.rows})
        sums = np.random.default_rng(seed).standard_normal((len(learned), DIM), np.float32)
        met = int64s(ids.count(key) for key in learned)
        self.table.update(self.table.find(int64s(learned)), sums, met, RATE, self.step)
        for key, gradient, times in zip(learned, sums, met.tolist()):
            row, _, lookups = self.rows[key]
            self.rows[key] = [row - np.float32(RATE) * gradient, self.step, lookups + times]

    @rule(after_steps=st.integers(0, 4), below_norm=st.sampled_from([0.0, 0.05, 0.3]))
    def evict(self, after_steps, below_norm):
        old = {key for key, (_, last, _) in self.rows.items() if after_steps and self.step - last > after_steps}
        small = {key for key, (row, *_) in self.rows.items() if np.linalg.norm(row.astype(np.float64)) < below_norm}
        assert self.table.evict(Eviction(after_steps, below_norm), self.step) == len(old | small)
        for key in old | small:
            del self.rows[key]
            self.gone.add(key)

    @rule()
    def the_follower_takes_the_increment_and_takes_over(self):
        changes, filtered = self.table.changes(), self.table.admission.changes()
        assert set(changes.removed.tolist()) == self.gone
        self.follower.restore(changes)
        self.follower.admission.restore(filtered)
        self.table.clear_changed()
        assert not any(len(part) for name, part in self.table.admission.changes().items() if name != "counters")
        self.gone = set()
        assert_same(self.follower.export(), self.table.export())
        self.table, self.follower = self.follower, self.table

    @rule()
    def a_full_checkpoint_takes_over(self):
        self.the_follower_takes_the_increment_and_takes_over()
        other = self.make()
        other.restore(self.table.export())
        other.admission.restore(self.table.admission.export())
        other.clear_changed()
        self.table = other

    @rule(key=any_id, tag=st.integers(1, 9))
    def somebody_else_gives_a_row_and_it_waits_no_longer(self, key, tag):
        row = np.full((1, DIM), tag / 8, np.float32)
        self.table.overwrite(int64s([key]), row, int64s([]), RATE, self.step)
        self.rows[key] = [row[0], self.step, self.rows.get(key, (None, 0, 0))[2]]
        self.gone.discard(key)
        if self.how != "bloom":
            self.waiting.pop(key, None)

    @invariant()
    def the_table_holds_what_the_dict_holds(self):
        if not hasattr(self, "table"):
            return
        held, ids = self.table.export(), sorted(self.rows)
        assert held.keys.tolist() == ids
        assert held.rows.tolist() == [self.rows[key][0].tolist() for key in ids]
        assert held.last_step.tolist() == [self.rows[key][1] for key in ids]
        assert held.counts.tolist() == [self.rows[key][2] for key in ids]


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    """Tables that start with four rows, so that they grow and rehash all the time, and are scanned in parts."""
    monkeypatch.setattr(id_rows, "FIRST_ROWS", 4)
    monkeypatch.setattr(variable, "SCANNED_ROWS", 3)


def test_table_equals_a_dict_under_growth_shrinking_and_restore():
    run = TableMachine.TestCase
    run.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    run().runTest()


def test_table_with_admission_and_eviction_equals_a_dict():
    run = SparingMachine.TestCase
    run.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    run().runTest()


def test_different_seed_gives_different_rows_within_the_limit():
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


def test_table_does_not_grow_when_ids_come_and_go():
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


def test_eviction_scans_every_row_of_a_table_larger_than_a_part():
    table = make_table("sgd")
    table.insert(np.arange(50))
    table.remove(np.arange(0, 50, 9))
    read = table.find(np.arange(10, 18))
    table.update(read, np.zeros((len(read), DIM), np.float32), np.ones(len(read), np.int64), RATE, 9)
    assert table.evict(Eviction(after_steps=5), 9) == 44 - len(read)
    assert table.evict(Eviction(), 10**6) == 0
    assert table.evict(Eviction(below_norm=9.0), 9) == len(read)
    assert len(table) == 0


def test_initial_values_have_the_named_distribution():
    ids = np.arange(-20_000, 20_000)
    assert not RowInitializer("zeros", 0.1).rows(ids, 3, 8).any()
    normal, uniform = RowInitializer("normal", 0.1).rows(ids, 3, 8), RowInitializer("uniform", 0.1).rows(ids, 3, 8)
    for kind, rows in (("normal", normal), ("uniform", uniform)):
        assert rows.dtype == np.float32
        assert (RowInitializer(kind, 0.1).rows(ids, 4, 8) != rows).mean() > 0.99
    assert np.isfinite(normal).all()
    assert abs(normal.mean()) < 0.001
    assert normal.std() == pytest.approx(0.1, rel=0.01)
    assert np.mean(np.abs(normal) < 0.1) == pytest.approx(0.6827, abs=0.005)
    assert np.mean(np.abs(normal) > 0.3) == pytest.approx(0.0027, abs=0.0005)
    assert abs(np.corrcoef(normal[:, 0], normal[:, 1])[0, 1]) < 0.02
    assert uniform.std() == pytest.approx(0.1 / 3**0.5, rel=0.01)
    assert uniform.min() >= -0.1
    assert uniform.max() < 0.1
