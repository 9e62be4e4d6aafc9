"""Rows in two tiers: the same table, to the bit, whatever leaves memory, comes back, is read ahead or compacted."""

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import rule

from freshet_serving.models.embedding import cold_rows
from freshet_serving.models.embedding.optimizer import row_optimizer
from freshet_serving.models.embedding.row_budget import RowBudget
from freshet_serving.models.embedding.tiered_rows import LEAST_ROWS, MAPPED_NBYTES
from freshet_serving.models.embedding.variable import EmbeddingVariable, Eviction
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.rows import LOGGED
from freshet_serving.processor.tables import row_log
from freshet_serving.processor.tables.scratch_file import ScratchFile
from tests.models.embedding.test_variable import DIM, RATE, TableMachine, assert_same, int64s, some_ids

SEGMENT = 8


@pytest.fixture
def small_segments(monkeypatch):
    for module in (cold_rows, row_log):
        monkeypatch.setattr(module, "SEGMENT_RECORDS", SEGMENT)
    monkeypatch.setattr(row_log, "MOST_RECORDS", 1 << 16)
    monkeypatch.setattr(cold_rows, "MOVED_RECORDS", 3)


def make_table(folder, most=4, optimizer="adagrad", nbytes=1):
    table = EmbeddingVariable("t", DIM, row_optimizer(optimizer), seed=5, budget=RowBudget(nbytes, folder))
    table.tiers.most = most or table.tiers.most
    return table


class TieredMachine(TableMachine):
    """TableMachine, of tables that have room for a few rows in memory."""

    folder = None
    prefetched = None
    wanted_ids = 0

    def make(self):
        return make_table(self.folder, optimizer=self.optimizer_name)

    @rule()
    def rows_beyond_the_budget_leave(self):
        self.table.shrink_to_budget()
        assert self.table.tiers.hot <= max(4, self.wanted_ids)

    @rule(ids=some_ids)
    def read_ahead(self, ids):
        ids = np.unique(int64s(ids))
        self.prefetched = ids, self.table.tiers.prefetch(ids)

    @rule()
    def a_stretch_begins(self):
        if self.prefetched is not None:
            ids, prefetched = self.prefetched
            self.table.tiers.enter_window(ids, prefetched)
            self.wanted_ids = max(self.wanted_ids, len(ids))
            refs = self.table.find(ids)
            assert (refs < LOGGED).all()
            assert self.table.tiers.hot + np.count_nonzero(refs < 0) <= max(4, len(ids))

    @rule()
    def the_log_is_compacted(self):
        # Only who stages compacts: what was read ahead is used before, or read again.
        self.prefetched = None
        self.table.tiers.compact_log()
        assert self.table.tiers.cold._log.emptiest() < 0

    @rule(ids=some_ids)
    def pooled_rows_are_those_of_either_tier(self, ids):
        from freshet_serving.processor.kernels.rows import gather

        table = np.array(self.table.descriptor(), np.int64)
        known = [key for key in ids if key in self.rows]
        rows = np.empty((len(known), DIM), np.float32)
        with self.table.reading():
            gather(table, self.table.find(int64s(known)), rows)
        assert rows.tolist() == [self.rows[key][0].tolist() for key in known]

    def check_numbers(self, refs):
        assert all(0 <= r < self.peak for r in refs[refs < LOGGED])


def test_tiered_table_equals_a_table_in_memory(small_segments, tmp_path):
    class Machine(TieredMachine):
        folder = tmp_path

    machine = Machine.TestCase
    machine.settings = settings(deadline=None, max_examples=30, stateful_step_count=25)
    machine().runTest()


def learn(table, ids, step):
    refs = table.insert(int64s(ids))
    sums = np.full((len(ids), DIM), step / 7, np.float32)
    table.update(refs, sums, np.ones(len(ids), np.int64), RATE, step)


def test_least_read_rows_leave_memory(tmp_path):
    table = make_table(tmp_path)
    for step in range(1, 4):
        learn(table, [0, 1, 2, 3], step)
    for key in range(4, 9):
        learn(table, [key], key)
    table.shrink_to_budget()
    assert np.flatnonzero(table.find(np.arange(9)) < LOGGED).tolist() == [0, 1, 2, 3]


def test_rows_of_a_prefetch_window_stay_in_memory(tmp_path):
    table = make_table(tmp_path, most=6)
    for step in range(1, 4):
        learn(table, [0, 1, 2, 3, 4, 5], step)
    learn(table, [10, 11, 12], 4)
    table.shrink_to_budget()
    ids = np.arange(10, 14)
    table.tiers.enter_window(ids, table.tiers.prefetch(ids))
    assert (table.find(ids[:3]) < LOGGED).all()
    # Room for the one that has no row yet.
    assert table.tiers.hot == 5


def test_row_changed_after_its_prefetch_is_read_again(tmp_path):
    table, twin = make_table(tmp_path), make_table(tmp_path, most=1000)
    for one in (table, twin):
        learn(one, list(range(20)), 1)
        one.shrink_to_budget()
    prefetched = table.tiers.prefetch(np.arange(20))
    for one in (table, twin):
        learn(one, list(range(12)), 2)
        one.remove(int64s([3, 15]))
        one.shrink_to_budget()
    table.tiers.enter_window(np.arange(20), prefetched)
    assert_same(table.export(), twin.export())


def test_log_is_at_most_twice_the_size_of_live_rows(tmp_path, small_segments):
    table = make_table(tmp_path)
    random = np.random.default_rng(0)
    for step in range(1, 300):
        learn(table, np.unique(random.integers(0, 64, 6)).tolist(), step)
        table.shrink_to_budget()
        table.tiers.compact_log()
    cold = table.tiers.cold
    assert cold.compactions > 50
    assert cold.log_nbytes <= (2 * len(cold) + 2 * SEGMENT) * cold.record_nbytes


def test_lookups_and_checkpoints_continue_during_compaction_and_prefetch(tmp_path, small_segments):
    table, twin = make_table(tmp_path, most=64), make_table(tmp_path, most=10_000)
    stop, errors = threading.Event(), []

    def beside():
        random = np.random.default_rng(1)
        try:
            while not stop.is_set():
                table.tiers.compact_log()
                table.tiers.prefetch(np.unique(random.integers(0, 512, 40)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=beside)
    thread.start()
    random = np.random.default_rng(0)
    try:
        for step in range(1, 300):
            ids = np.unique(random.integers(0, 512, 24)).tolist()
            for one in (table, twin):
                one.shrink_to_budget()
                learn(one, ids, step)
            if step % 5 == 0:
                assert_same(table.changes(), twin.changes())
                assert_same(table.export(), twin.export())
                for one in (table, twin):
                    one.clear_changed()
                    assert not len(one.changes().keys)
                assert table.evict(Eviction(after_steps=60), step) == twin.evict(Eviction(after_steps=60), step)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert_same(table.export(), twin.export())
    assert table.tiers.cold.compactions > 0


def test_full_disk_keeps_rows_in_memory_and_is_logged_once(tmp_path, monkeypatch, caplog):
    table, twin = make_table(tmp_path), make_table(tmp_path, most=1000)

    def full(self, start, nbytes):
        raise OSError(28, "No space left on device")

    take = ScratchFile.take
    monkeypatch.setattr(ScratchFile, "take", full)
    for one in (table, twin):
        learn(one, list(range(30)), 1)
        one.shrink_to_budget()
    table.shrink_to_budget()
    assert table.tiers.hot == 30
    assert [record.message for record in caplog.records] == [
        "table 't': the disk is full, so its rows stay in memory and exceed the budget"
    ]
    monkeypatch.setattr(ScratchFile, "take", take)
    table.shrink_to_budget()
    assert caplog.records[-1].message == "table 't': the disk has free space again"
    assert table.tiers.hot == 4
    assert_same(table.export(), twin.export())


def test_copy_of_a_large_table_is_a_scratch_file(tmp_path, monkeypatch):
    table = make_table(tmp_path)
    rows = table.tiers.empty((MAPPED_NBYTES // 4, 1), np.float32)
    assert rows.shape == (MAPPED_NBYTES // 4, 1)
    assert rows.base is not None

    def full(self, start, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ScratchFile, "take", full)
    with pytest.raises(
        BadInput, match="table 't': cannot write 16 MiB of scratch for a copy of its rows: No space left"
    ):
        table.tiers.empty((MAPPED_NBYTES // 4, 1), np.float32)


def test_invalid_scratch_folder_is_refused_naming_the_table(tmp_path):
    with pytest.raises(BadInput, match="table 't': scratch folder is not writable: No such file"):
        make_table(tmp_path / "nowhere")


def test_budget_covers_rows_slots_bookkeeping_and_prefetch(tmp_path):
    budget = RowBudget(1 << 20, tmp_path)
    tiers = EmbeddingVariable("t", 16, row_optimizer("adagrad"), budget=budget).tiers
    assert tiers.most == int((1 << 20) // (2 * 16 * 4 + 29) * 0.6)
    assert tiers.most + tiers.window_ids <= (1 << 20) / (2 * 16 * 4 + 29)
    assert EmbeddingVariable("t", 16, row_optimizer("sgd"), budget=RowBudget(1, tmp_path)).tiers.most == LEAST_ROWS
