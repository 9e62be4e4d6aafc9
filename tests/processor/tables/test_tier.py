"""A table with a memory budget against a dict per epoch: the same rows at any budget, whatever moves meanwhile."""

import mmap
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.kernels import lookup_notes, pool
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.kernels.row_stamps import ABSENT_STAMP
from freshet_serving.processor.memory import attach, share
from freshet_serving.processor.package import TableDelta, TableEntry, map_file, parse_tensors, write_tensors
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.processor.tables import row_log as rowlog
from freshet_serving.processor.tables import tier
from freshet_serving.processor.tables.quantise import dequantise, quantise
from freshet_serving.processor.tables.table import ServedTable, descriptor, packed
from freshet_serving.processor.versions.replica import WRITTEN_BY_READERS
from tests.processor.kernels.stamps import stamps

DIM = 5
SLOT_NBYTES = DIM * 4 + tier.SLOT_BOOKS_NBYTES


@pytest.fixture(autouse=True, scope="module")
def _small_parts():
    """Segments of a few records and slices of a few rows, so that a small table meets every seam."""
    patch = pytest.MonkeyPatch()
    for module, name, value in (
        (rowlog, "SEGMENT_RECORDS", 8),
        (rowlog, "MOST_RECORDS", 1 << 12),
        (tier, "SEGMENT_RECORDS", 8),
        (tier, "COMPACT_RECORDS", 3),
        (tier, "MOVES", 4),
    ):
        patch.setattr(module, name, value)
    yield
    patch.undo()


def rows_of(keys, tag):
    keys = np.asarray(keys, np.int64)
    return (keys[:, None] % 1000 + np.arange(DIM) / 8 + tag * 1000).astype(np.float32).reshape(len(keys), DIM)


def make_table(keys, slots, scratch, dtype="float32", frequencies=None):
    keys = np.array(sorted(keys), np.int64)
    arrays = packed(keys, rows_of(keys, 0), dtype, frequencies)
    spec = TableEntry("t", DIM, len(keys), dtype)
    kept = DIM * {"float32": 4, "int8": 1}[dtype] + (4 if dtype == "int8" else 0) + tier.SLOT_BOOKS_NBYTES
    return ServedTable(spec, arrays, budget_nbytes=slots * kept, scratch=scratch)


def read(descriptor, epoch):
    """{key: row} of a table as of an epoch, by the kernels that readers use."""
    keys, refs = np.empty(descriptor[1], np.int64), np.empty(descriptor[1], np.int64)
    count = row_kernels.live(descriptor, epoch, keys, refs)
    rows = np.empty((count, DIM), np.float32)
    row_kernels.gather(descriptor, refs[:count], rows)
    return {int(k): tuple(r) for k, r in zip(keys[:count], rows)}


def log_rows(table):
    """Records of the table's log that live."""
    return int(table._tier._log._live.sum())


@pytest.fixture
def moved(monkeypatch):
    """How many rows tables have promoted and demoted, by the name of the move."""
    counts = Counter()

    def counting(name, move):
        def count(*arguments):
            done = move(*arguments)
            counts[name] += done
            return done

        return count

    for name in ("promote", "demote"):
        monkeypatch.setattr(tier.Tier, name, counting(name, getattr(tier.Tier, name)))
    return counts


def look_up(table, ids, epoch=0):
    """The rows of `ids` by the fused kernel, as a batch. table: a ServedTable or its descriptor."""
    row = table.descriptor() if isinstance(table, ServedTable) else table
    ids = np.ascontiguousarray(ids, np.int64)
    plan = np.zeros((1, pool.PLAN_FIELDS), np.int64)
    plan[0] = (pool.KIND_ONE, 0, 0, 0, 0, 0, 0, DIM, 1)
    out, counts = np.empty((len(ids), DIM), np.float32), np.zeros((1, 2), np.int64)
    inputs = np.array([[[ids.ctypes.data, len(ids), 1, 0]]], np.int64)
    spans, tables = np.array([[0, len(ids)]], np.int64), np.array([row], np.int64)
    pool.run(tables, plan, np.zeros((1, 4), np.float32), inputs, spans, epoch, out, counts)
    return out


@dataclass
class State:
    """One published state: what a reader that pins it holds, and what it has to see."""

    publish_seq: int
    epoch: int
    wanted: dict
    tags: dict
    descriptor: np.ndarray = field(repr=False)
    arrays: dict = field(repr=False)


class World:
    """A writer of one table and readers pinned to states that it has published."""

    def __init__(self, table, dtype):
        self.table, self.dtype = table, dtype
        self.applied, self.pinned = [], []
        self.epoch = self.tag = 0
        model = dict.fromkeys(table.export(0)[0].tolist(), 0)
        self.publish(model, publish_seq=1)

    def publish(self, model, publish_seq=None):
        self.model = model
        keys = sorted(model)
        values = [dequantise(quantise(rows_of([k], model[k]), self.dtype), self.dtype)[0] for k in keys]
        wanted = {k: tuple(v) for k, v in zip(keys, values)}
        descriptor = np.array(self.table.descriptor())
        publish_seq = publish_seq or self.state.publish_seq + 1
        self.state = State(publish_seq, self.epoch, wanted, model, descriptor, self.table.arrays)

    @property
    def oldest(self):
        return min([self.state.publish_seq, *(s.publish_seq for s in self.pinned)])

    def apply(self, upserts, removed):
        self.table.reclaim(self.oldest, self.state.publish_seq + 1)
        self.tag += 1
        keys = np.array(upserts, np.int64)
        versions = self.table.apply(TableDelta(keys, rows_of(keys, self.tag), np.array(removed, np.int64)), self.tag)
        self.applied.append((versions, self.tag, self.epoch, self.model))
        self.epoch = self.tag
        model = {k: v for k, v in self.model.items() if k not in removed} | dict.fromkeys(upserts, self.tag)
        self.publish(model)

    def undo(self):
        versions, undone, self.epoch, model = self.applied.pop()
        self.publish(model)
        self.pinned = [s for s in self.pinned if s.epoch < undone]
        self.table.undo(versions, self.state.publish_seq + 1)
        self.epoch = self.tag
        self.publish(model)

    def retire(self):
        self.table.retire(self.applied.pop(0)[0], self.state.publish_seq)

    def check(self):
        for state in (self.state, *self.pinned):
            assert read(state.descriptor, state.epoch) == state.wanted
            assert stamps(state.descriptor, [*state.tags, 41], state.epoch) == [*state.tags.values(), ABSENT_STAMP]
        assert self.table.rows == len(self.model)


keys = st.integers(0, 40) | st.integers(-(2**63), 2**63 - 1).filter(lambda key: key != 41)
ACTIONS = (
    "apply", "apply", "undo", "retire", "retire", "promote", "demote", "demote", "tend", "tend", "flip", "pin", "unpin",
)  # fmt: skip
actions = st.sampled_from(ACTIONS)


@settings(max_examples=250, deadline=None)
@given(
    base=st.sets(keys, max_size=30),
    budget=st.integers(1, 40),
    dtype=st.sampled_from(["float32", "int8"]),
    steps=st.lists(st.tuples(actions, st.lists(keys, unique=True, max_size=20)), max_size=40),
    data=st.data(),
)
def test_rows_are_equal_for_any_budget_and_any_moves(tmp_path_factory, base, budget, dtype, steps, data):
    table = make_table(base, budget, tmp_path_factory.getbasetemp(), dtype)
    world, books = World(table, dtype), table._tier
    for action, chosen in steps:
        safe = world.state.publish_seq + 1
        if action == "apply":
            cut = data.draw(st.integers(0, len(chosen)))
            world.apply(chosen[:cut], chosen[cut:])
        elif action == "undo" and world.applied:
            world.undo()
        elif action == "retire" and world.applied:
            world.retire()
        elif action == "promote":
            books.promote(table._row, np.array(chosen, np.int64), np.ones(len(chosen), np.uint8))
        elif action == "demote":
            hot = np.flatnonzero(books._settled[: table._slots.bump])
            books.demote(table._row, hot[: data.draw(st.integers(0, len(hot)))], safe)
        elif action == "tend":
            look_up(table, np.array([*world.model, *chosen] * 8, np.int64), world.epoch)
            table.maintain(world.oldest, safe, 0.0)
        elif action == "flip":
            world.publish(world.model)
        elif action == "pin":
            world.pinned.append(world.state)
        elif action == "unpin" and world.pinned:
            world.pinned.pop(data.draw(st.integers(0, len(world.pinned) - 1)))
        world.check()
    # Once nothing is undoable and nobody reads, the table comes back to its budget, and the log to what lives in it.
    world.pinned.clear()
    while world.applied:
        world.retire()
    for _ in range(600):
        world.publish(world.model)
        if not table.maintain(world.oldest, world.state.publish_seq + 1, 0.0) and table._slots.used <= budget:
            break
    world.check()
    assert table._slots.used == table.tier.hot_rows <= budget
    held = {r for s in range(table._slots.bump) if books._settled[s] for r in [int(table._meta[s, 1])]}
    held |= set(table._index[:, 1].tolist())
    assert log_rows(table) == sum(r >= row_kernels.LOGGED for r in held)


def test_training_frequencies_choose_the_initial_hot_rows(tmp_path):
    frequencies = np.array([5, 900, 1, 7, 900, 0], np.uint32)
    table = make_table(range(6), 3, tmp_path, frequencies=frequencies)
    assert table.tier.hot_rows == 3
    look_up(table, np.repeat([1, 4, 3], 640))
    assert table.tier.hot_lookups == pytest.approx(1920, abs=16)
    assert table.tier.cold_lookups == 0
    look_up(table, np.repeat([0, 2, 5], 640))
    assert table.tier.hot_lookups == pytest.approx(1920, abs=16)
    assert table.tier.cold_lookups == pytest.approx(1920, abs=16)


def test_frequently_read_rows_move_into_memory_and_others_move_out(tmp_path, moved):
    table = make_table(range(100), 10, tmp_path, frequencies=np.arange(100, dtype=np.uint32))
    publish_seq = 1
    for _ in range(60):
        look_up(table, np.repeat(np.arange(10), 64))
        table.maintain(publish_seq, publish_seq + 1, 0.0)
        publish_seq += 1
    before = table.tier
    look_up(table, np.repeat(np.arange(10), 64))
    assert table.tier.hot_lookups - before.hot_lookups == pytest.approx(640, abs=16)
    assert before.hot_rows == 10
    assert 10 <= moved["demote"] < 20
    assert before.log_nbytes == 0, "rows of the file go back without being written"


def test_other_process_needs_only_spec_and_arrays_and_limited_writes(tmp_path):
    """Maps the same files again, for reading only where readers may not write: a stray store would be the end of it."""
    table = make_table(range(30), 4, tmp_path)
    table.retire(table.apply(TableDelta(np.arange(10), rows_of(range(10), 1), np.empty(0, np.int64)), 1), 2)
    for publish_seq in range(2, 12):
        table.maintain(publish_seq, publish_seq + 1, 0.0)
    assert 0 < table.tier.hot_rows <= 4
    assert log_rows(table) > 0
    arrays = table.arrays
    mapped = {}
    for name, handle in zip(arrays, share(list(arrays.values()), "test")):
        access = mmap.ACCESS_WRITE if name in WRITTEN_BY_READERS else mmap.ACCESS_READ
        file = mmap.mmap(handle.mapping.fd, os.fstat(handle.mapping.fd).st_size, access=access)
        mapped[name] = attach(file, handle.offset, handle.dtype, handle.shape)
    before = table.tier
    got = look_up(descriptor(table.spec, mapped), np.tile(np.arange(30), 40), 1)
    wanted = np.concatenate([rows_of(range(10), 1), rows_of(range(10, 30), 0)])
    np.testing.assert_array_equal(got, np.tile(wanted, (40, 1)))
    assert table.tier.hot_lookups > before.hot_lookups
    assert table.tier.cold_lookups > before.cold_lookups


@pytest.mark.parametrize("period", [1, 2, 8, 26, 64])
def test_sampling_is_uniform_over_the_positions_of_a_repeated_request(period):
    drawn = np.zeros(period, np.int64)
    for lookups in range(period * 2000):
        drawn[lookups % period] += lookup_notes.sampled(lookups)
    np.testing.assert_allclose(drawn / 2000, 1 / lookup_notes.SAMPLE, atol=0.02)


def test_maintenance_without_a_flip_frees_at_most_one_slice(tmp_path):
    table = make_table(range(100), 10, tmp_path, frequencies=np.arange(100, dtype=np.uint32))
    for _ in range(60):
        look_up(table, np.repeat(np.arange(10), 64))
        assert table.maintain(1, 2, 0.0) in (True, False)
    assert table._slots.bump <= 10 + tier.MOVES
    assert table.tier.hot_rows >= 10 - 2 * tier.MOVES


def change_some(table, tag, publish_seq):
    """Apply and retire a delta of 10 of 40 keys."""
    keys = np.random.default_rng(tag).choice(40, 10, replace=False).astype(np.int64)
    table.retire(table.apply(TableDelta(keys, rows_of(keys, tag), np.empty(0, np.int64)), tag), publish_seq)


def test_log_stays_bounded_under_deltas(tmp_path):
    table = make_table(range(40), 4, tmp_path)
    sizes, publish_seq = [], 1
    for tag in range(1, 120):
        publish_seq += 1
        change_some(table, tag, publish_seq)
        for _ in range(12):
            table.maintain(publish_seq, publish_seq + 1, 0.0)
            publish_seq += 1
        sizes.append(table.tier.log_nbytes)
    assert table.tier.compactions > 10
    assert log_rows(table) <= 40
    assert max(sizes) <= 24 * 8 * (16 + 24), "twice what lives, the tail, and what waits for a flip"


def test_full_disk_keeps_rows_in_memory_and_serves_them(tmp_path, monkeypatch):
    table = make_table(range(20), 2, tmp_path)
    keys = np.arange(20, dtype=np.int64)
    table.retire(table.apply(TableDelta(keys, rows_of(keys, 1), np.empty(0, np.int64)), 1), 2)

    refused = []

    def full(self, start, nbytes):
        refused.append(nbytes)
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("freshet_serving.processor.tables.scratch_file.ScratchFile.take", full)
        for publish_seq in range(2, 30):
            table.maintain(publish_seq, publish_seq + 1, 0.0)
        assert refused
        assert table.tier.hot_rows == 20
        np.testing.assert_array_equal(look_up(table, keys, 1), rows_of(keys, 1))
    for publish_seq in range(30, 60):
        table.maintain(publish_seq, publish_seq + 1, 0.0)
    assert table.tier.hot_rows == 2
    assert log_rows(table) == 18
    np.testing.assert_array_equal(look_up(table, keys, 1), rows_of(keys, 1))


def test_dropping_the_pages_of_a_mapped_file_changes_no_row(tmp_path):
    keys = np.arange(5000, dtype=np.int64)
    with open(tmp_path / "t.safetensors", "wb") as file:
        write_tensors(file, packed(keys, rows_of(keys, 0)), {})
    arrays = parse_tensors(map_file(tmp_path / "t.safetensors"), "t").arrays
    table = ServedTable(TableEntry("t", DIM, 5000), arrays, budget_nbytes=100 * SLOT_NBYTES, scratch=tmp_path)
    for now_s in (0.0, 10.0, 100.0):
        np.testing.assert_array_equal(look_up(table, keys), rows_of(keys, 0))
        table.maintain(1, 2, now_s)
    np.testing.assert_array_equal(look_up(table, keys), rows_of(keys, 0))


def test_budget_requires_a_writable_folder(tmp_path):
    with pytest.raises(BadInput, match="a memory budget requires a scratch folder"):
        make_table(range(3), 2, None)
    with pytest.raises(BadInput, match="scratch folder is not writable"):
        make_table(range(3), 2, tmp_path / "missing")


@pytest.mark.parametrize("frequencies", [np.ones(4, np.uint32), np.ones(3, np.int64), np.ones((3, 1), np.uint32)])
def test_frequencies_that_do_not_match_the_keys_are_refused(tmp_path, frequencies):
    arrays = packed(np.arange(3), rows_of(range(3), 0))
    with pytest.raises(Corrupt, match="expected 3 uint32 frequencies"):
        ServedTable(TableEntry("t", DIM, 3), arrays | {"frequencies": frequencies})
    with pytest.raises(BadInput, match="expected 3 uint32 frequencies"):
        packed(np.arange(3), rows_of(range(3), 0), "float32", frequencies)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_readers_never_see_a_wrong_row_while_rows_move(tmp_path, moved, dtype):
    """Deltas write the values that keys have had all along, so a reader of any state must find those and no others."""
    keys = np.arange(300, dtype=np.int64)
    wanted = dequantise(quantise(rows_of(keys, 0), dtype), dtype)
    table = make_table(keys, 40, tmp_path, dtype)
    lock, stop = threading.Lock(), threading.Event()
    pins, state, wrong = np.full(2, 1 << 62), [(1, 0, table.descriptor(), table.arrays)], []

    def serve(reader):
        random = np.random.default_rng(reader)
        while not stop.is_set():
            while True:
                publish_seq, epoch, descriptor, keep = state[0]
                pins[reader] = publish_seq
                if state[0][0] == publish_seq:
                    break
            ids = random.zipf(1.2, 500) % 300
            if not np.array_equal(look_up(descriptor, ids, epoch), wanted[ids]):
                wrong.append((reader, publish_seq))
            del keep
            pins[reader] = 1 << 62

    def publish(epoch):
        state[0] = (state[0][0] + 1, epoch, table.descriptor(), table.arrays)

    def maintain():
        with lock:
            publish_seq, epoch = state[0][:2]
            if table.maintain(min(int(pins.min()), publish_seq), publish_seq + 1, 0.0):
                publish(epoch)
        return True

    readers = [threading.Thread(target=serve, args=(n,)) for n in range(2)]
    periodic_thread = PeriodicThread(maintain, busy_interval_s=0.0)
    for thread in (*readers, periodic_thread):
        thread.start()
    random = np.random.default_rng(9)
    for epoch in range(1, 150):
        changed = random.choice(keys, 20, replace=False)
        with lock:
            table.reclaim(min(int(pins.min()), state[0][0]), state[0][0] + 1)
            versions = table.apply(TableDelta(changed, rows_of(changed, 0), np.empty(0, np.int64)), epoch)
            publish(epoch)
            table.retire(versions, state[0][0])
        for _ in range(20):
            periodic_thread.join(0.0005)
            if table._slots.used <= 40:
                break
    give_up_s = time.monotonic() + 60
    while moved["promote"] <= 10 and time.monotonic() < give_up_s:
        periodic_thread.join(0.005)
    stop.set()
    periodic_thread.close()
    for reader in readers:
        reader.join()
    assert not wrong
    assert table.tier.compactions > 0
    assert moved["promote"] > 10
    assert moved["demote"] > 100


def test_segment_is_not_reused_while_readers_may_see_it(tmp_path, monkeypatch):
    table = make_table(range(40), 4, tmp_path)
    log, emptied, publish_seq = table._tier._log, {}, 1
    free_segment = log.free_segment

    def noted(segment, safe_seq):
        emptied[segment] = publish_seq
        free_segment(segment, safe_seq)

    monkeypatch.setattr(log, "free_segment", noted)
    for tag in range(1, 60):
        publish_seq += 1
        change_some(table, tag, publish_seq)
        for _ in range(12):
            table.maintain(publish_seq, publish_seq + 1, 0.0)
            assert not [segment for segment in log._free if emptied.get(segment) == publish_seq]
    assert len(emptied) > 3


def test_drained_counts_equal_the_repetitions_of_each_row(tmp_path):
    books = make_table(range(10), 4, tmp_path)._tier
    notes = [3, 7, 7, 3, 7, 5]
    books.arrays["ring"][row_kernels.RING_HEADER : row_kernels.RING_HEADER + len(notes)] = notes
    books.arrays["ring"][0] = len(notes)
    keys, counts = books._drain()
    assert (keys.tolist(), counts.tolist()) == ([7, 3, 5], [3, 2, 1])
