"""ServedTable against a model of it: a dict per epoch."""

from unittest import mock

import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels import key_filter
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.kernels.pointers import load_i64
from freshet_serving.processor.kernels.row_stamps import ABSENT_STAMP
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.package import ROW_TYPES, TableDelta, TableEntry, map_file, parse_tensors, write_tensors
from freshet_serving.processor.tables import table as table_module
from freshet_serving.processor.tables.quantise import dequantise, quantise
from freshet_serving.processor.tables.table import RowVersions, ServedTable, descriptor, descriptors, packed
from tests.processor.kernels.stamps import stamps

DIM = 4


def row_of(key, tag):
    return np.arange(DIM, dtype=np.float32) + np.float32(key % 1000) + np.float32(tag) * 1000


def table_arrays(keys, tag=0):
    keys = np.array(sorted(keys), np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(len(keys)))
    assert hash_index.build(index.ctypes.data, len(index), keys) == -1
    rows = np.array([row_of(k, tag) for k in keys], np.float32).reshape(len(keys), DIM)
    return {"keys": keys, "index": index, "rows": rows}


def served(keys, filtered=False):
    return ServedTable(TableEntry("t", DIM, len(keys)), table_arrays(keys), filtered=filtered)


def delta(upserts, removed, tag):
    keys = np.array(upserts, np.int64)
    rows = np.array([row_of(k, tag) for k in upserts], np.float32).reshape(len(upserts), DIM)
    return TableDelta(keys, rows, np.array(removed, np.int64))


def exported(table, epoch):
    keys, rows = table.export(epoch)
    return {int(k): tuple(r) for k, r in zip(keys, rows)}


def expected(model):
    return {k: tuple(row_of(k, tag)) for k, tag in model.items()}


keys = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 12)
steps = st.lists(
    st.tuples(st.sampled_from(["apply", "apply", "apply", "undo", "retire"]), st.lists(keys, unique=True, max_size=30)),
    max_size=25,
)


FORMS = {
    "any keys": (st.sets(keys, max_size=20), False),
    "row numbers": (st.integers(1, 80).map(range), False),
    "filtered": (st.sets(keys, max_size=20).map(lambda base: {-1, *base}), True),
}


@pytest.mark.parametrize(("bases", "filtered"), FORMS.values(), ids=FORMS.keys())
@settings(max_examples=70, deadline=None)
@given(steps=steps, settle=st.integers(1, 40), data=st.data())
def test_any_mix_of_changes_equals_a_dict_at_every_epoch(bases, filtered, steps, settle, data):
    """Rows by number equal those by the index, and a filter never denies an id that a reader finds."""
    base = data.draw(bases)
    table = served(base, filtered)
    assert ("changed" in table.arrays) == (set(base) == set(range(len(base))) != set())
    assert ("filter" in table.arrays) == filtered
    with mock.patch.object(table_module, "SETTLE_ROWS", settle):
        live_through(table, base, steps, data)


def denied(described, keys, epoch):
    """Return the keys that have a row as of an epoch and that the filter of a descriptor denies."""
    refs = np.empty(len(keys), np.int64)
    row_kernels.look_up(described, epoch, keys, refs)
    return [key for key, ref in zip(keys.tolist(), refs.tolist()) if ref >= 0 and not admits(described, key)]


@nb.njit(nb.boolean(nb.int64[::1], nb.int64))
def admits(described, key):
    mixed = hash_index.mix(key)
    capacity, filter_ = described[row_kernels.CAPACITY // 8], described[row_kernels.FILTER // 8]
    bits = key_filter.bits_of(mixed)
    return load_i64(key_filter.word_of(filter_, hash_index.home_of(mixed, capacity))) & bits == bits


def test_filter_denies_most_ids_that_were_never_there():
    table = served(range(1, 1000), filtered=True)
    random = np.random.default_rng(0)
    table.apply(delta(random.integers(10**6, 10**9, 3000).tolist(), [], 1), 1)
    described = np.array(table.descriptor())
    assert denied(described, np.arange(1, 1000), 1) == []
    assert sum(admits(described, key) for key in random.integers(10**10, 10**12, 2000).tolist()) < 100


def test_only_tables_whose_unknown_row_is_zeros_have_a_filter():
    arrays = table_arrays([3, 5])
    for spec, has in (
        (TableEntry("t", DIM, 2), True),
        (TableEntry("t", DIM, 2, default=[0.0, -0.0, 0.0, 0.0]), False),
        (TableEntry("t", DIM, 2, default=[1.0, 0.0, 0.0, 0.0]), False),
        (TableEntry("t", DIM, 2, unknown_key=9), False),
    ):
        assert ("filter" in ServedTable(spec, arrays, filtered=True).arrays) == has
    assert "filter" not in served(range(5), filtered=True).arrays


def refs_of(table, keys, epoch, by_number=True):
    """Return the refs of keys as a reader finds them, with the bits of changed rows or by the index alone."""
    described, refs = np.array(table.descriptor()), np.empty(len(keys), np.int64)
    if not by_number:
        described[row_kernels.NUMBERED // 8] = 0
    row_kernels.look_up(described, epoch, keys, refs)
    return refs.tolist()


def live_through(table, base, steps, data):
    sought = np.array(sorted({*base, *(key for _, chosen in steps for key in chosen)}), np.int64)
    models = [dict.fromkeys(base, 0)]
    applied = []
    handed_out = {}
    epoch, publish_seq, tag = 0, 1, 0
    for action, chosen in steps:
        publish_seq += 1
        table.reclaim(publish_seq - 1, publish_seq)
        if action == "apply":
            tag += 1
            cut = data.draw(st.integers(0, len(chosen)))
            versions = table.apply(delta(chosen[:cut], chosen[cut:], tag), tag)
            model = {k: v for k, v in models[-1].items() if k not in chosen[cut:]} | dict.fromkeys(chosen[:cut], tag)
            applied.append((versions, tag, epoch))
            models.append(model)
            epoch = tag
        elif action == "undo" and applied:
            versions, _, epoch = applied.pop()
            models.pop()
            table.undo(versions, publish_seq + 1)
        elif action == "retire" and applied:
            versions, oldest, _ = applied.pop(0)
            table.retire(versions, publish_seq + 1)
            models = models[1:]
            assert oldest <= epoch or not applied
        assert exported(table, epoch if not applied else applied[-1][1]) == expected(models[-1])
        for (_, _, before), model in zip(applied, models):
            assert exported(table, before) == expected(model)
            assert refs_of(table, sought, before) == refs_of(table, sought, before, by_number=False)
            assert stamps(table.descriptor(), sought, before) == [model.get(key, ABSENT_STAMP) for key in sought]
        newest = epoch if not applied else applied[-1][1]
        assert refs_of(table, sought, newest) == refs_of(table, sought, newest, by_number=False)
        assert table.rows == len(models[-1])
        if "filter" in table.arrays:
            # Readers of each index that there was: as of epochs that they may be pinned to.
            handed_out[table.arrays["index"].ctypes.data] = (table.arrays, np.array(table.descriptor()), newest)
            for _, described, seen in handed_out.values():
                assert denied(described, sought, seen) == []


def test_only_keys_equal_to_row_numbers_skip_the_index(monkeypatch, tmp_path):
    monkeypatch.setattr("freshet_serving.processor.memory.PIECE_NBYTES", 16)
    assert "changed" in served(range(7)).arrays
    for keys in ([], [1, 2, 3], [0, 1, 2, 3, 5], [-1, 0, 1]):
        assert "changed" not in served(keys).arrays
    arrays = table_arrays(range(3))
    budgeted = ServedTable(TableEntry("t", DIM, 3), arrays, budget_nbytes=1 << 20, scratch=tmp_path)
    assert "changed" not in budgeted.arrays


def test_row_numbers_skip_the_index_also_where_rows_changed():
    table = served(range(70))
    versions = table.apply(delta([5, 64, 70], [6], 1), 1)
    first, second, _, _ = versions.slots + 70
    sought = np.array([4, 5, 6, 63, 64, 65, 70, -1])
    table.arrays["index"][:, 1] = hash_index.EMPTY
    assert refs_of(table, sought, 1) == [4, first, -2, 63, second, 65, -2, -2]
    assert refs_of(table, sought, 0) == [4, 5, 6, 63, 64, 65, -2, -2]


def test_undo_takes_back_heads_that_are_a_store_ahead_of_the_index():
    """As a writer leaves them that ends between the two stores."""
    table = served(range(70))
    heads, index = table.arrays["heads"], table.arrays["index"]
    before = index.copy()
    versions = table.apply(delta([5], [6], 1), 1)
    index[:] = before
    table.undo(versions, 2)
    assert (heads[5], heads[6]) == (5, 6)
    assert refs_of(table, np.array([5, 6]), 2) == [5, 6]


def test_heads_by_number_are_those_of_the_index_once_changed():
    table = served(range(70))
    for epoch in range(1, 6):
        versions = table.apply(delta([epoch, 64], [epoch + 20], epoch), epoch)
        table.retire(versions, epoch)
        table.reclaim(epoch, epoch + 1)
        changed = [key for key in range(70) if table.arrays["changed"][key // 64] >> (key % 64) & 1]
        head_of = dict(table.arrays["index"][table.arrays["index"][:, 1] != hash_index.EMPTY].tolist())
        assert {key: int(table.arrays["heads"][key]) for key in changed} == {key: head_of[key] for key in changed}


def test_rows_of_dense_ids_are_packed_in_key_order():
    keys = np.array([2, 0, 3, 1])
    rows = np.array([row_of(key, 0) for key in keys])
    arrays = packed(keys, rows, "int8", frequencies=(keys * 10).astype(np.uint32))
    assert arrays["keys"].tolist() == [0, 1, 2, 3]
    assert arrays["frequencies"].tolist() == [0, 10, 20, 30]
    stored = quantise(rows[np.argsort(keys)], "int8")
    np.testing.assert_array_equal(arrays["rows"], stored.rows)
    np.testing.assert_array_equal(arrays["scales"], stored.scales)
    assert "changed" in ServedTable(TableEntry("t", DIM, 4, "int8"), arrays).arrays
    kept = np.array([2, 0, 4, 1])
    assert packed(kept, rows)["keys"].tolist() == kept.tolist()


def test_slots_of_superseded_rows_are_reused_after_their_readers_leave():
    table = served([1])
    for tag in range(1, 200):
        table.reclaim(tag, tag + 1)
        versions = table.apply(delta([1, 2, 3], [], tag), tag)
        table.retire(versions, tag + 1)
    assert table.nbytes["arena"] <= 9 * (DIM * 4 + 16)


def retired_thrice(rows):
    """A table with three large deltas, none of which can be undone; settled(), how many of their rows stand alone."""
    table = served([1])
    for tag in range(1, 4):
        table.retire(table.apply(delta(list(range(10, 10 + rows)), [], tag), tag), tag + 1)
    return table, lambda: 3 * rows - sum(len(versions.keys) for _, versions in table._retired)


def test_small_delta_reclaims_twice_its_rows_of_earlier_large_ones():
    table, settled = retired_thrice(1000)
    table.reclaim(10, 11)
    assert settled() == table_module.SETTLE_ROWS
    table.reclaim(10, 11, 700)
    assert settled() == table_module.SETTLE_ROWS + 1400
    assert exported(table, 3) == {1: tuple(row_of(1, 0))} | {k: tuple(row_of(k, 3)) for k in range(10, 1010)}
    for _ in range(10):
        table.reclaim(10, 11)
    assert settled() == 3000
    assert exported(table, 3) == {1: tuple(row_of(1, 0))} | {k: tuple(row_of(k, 3)) for k in range(10, 1010)}
    # What two of the three held is there to be used again.
    table.apply(delta(list(range(5000, 7000)), [], 4), 4)
    assert table.nbytes["arena"] == 3000 * (DIM * 4 + 16)


def test_full_arena_reclaims_all_retired_rows(monkeypatch):
    monkeypatch.setattr(table_module, "MIN_ARENA_SLOTS", 3100)
    table, _ = retired_thrice(1000)
    table.reclaim(10, 11, 2000)
    table.apply(delta(list(range(5000, 7000)), [], 4), 4)
    assert table.rows == 3001


def test_reader_of_an_old_epoch_sees_old_rows_during_growth():
    table = served(range(10))
    before, _kept = np.array(table.descriptor()), table.arrays
    table.apply(delta(list(range(5, 5000)), [0], 1), 1)
    after = np.array(table.descriptor())
    ref = row_kernels.resolve(before.ctypes.data, 7, 0)
    assert ref >= 0
    rows = np.empty((1, DIM), np.float32)
    row_kernels.gather(before, np.array([ref]), rows)
    np.testing.assert_array_equal(rows[0], row_of(7, 0))
    assert row_kernels.resolve(before.ctypes.data, 4000, 0) == hash_index.ABSENT
    assert row_kernels.resolve(after.ctypes.data, 4000, 1) >= 0


def test_reader_in_another_process_needs_only_spec_and_arrays():
    table = served(range(10))
    table.apply(delta([3, 50], [4], 1), 1)
    elsewhere = {name: array.copy() for name, array in table.arrays.items() if name not in ("arena", "meta")}
    elsewhere |= {name: table.arrays[name][:8].copy() for name in ("arena", "meta")}
    table_row = np.array(descriptor(table.spec, elsewhere))
    assert not set(table_row[[0, 2, 4, 5, 7]].tolist()) & set(table.descriptor())
    keys, refs = np.empty(table_row[1], np.int64), np.empty(table_row[1], np.int64)
    count = row_kernels.live(table_row, 1, keys, refs)
    rows = np.empty((count, DIM), np.float32)
    row_kernels.gather(table_row, refs[:count], rows)
    found = {int(k): tuple(r) for k, r in zip(keys[:count], rows)}
    assert found == exported(table, 1)
    assert len(found) == 10


def test_index_does_not_grow_when_ids_come_and_go():
    table = served(range(100))
    previous = []
    for tag in range(1, 120):
        table.reclaim(tag, tag + 1)
        wave = list(range(1000 * tag, 1000 * tag + 50))
        versions = table.apply(delta(wave, previous, tag), tag)
        table.retire(versions, tag + 1)
        previous = wave
    assert table.nbytes["index"] < 16 * 1000


@pytest.mark.parametrize(
    "break_it",
    [
        lambda a: a.pop("index"),
        lambda a: a.update(rows=a["rows"][:-1]),
        lambda a: a.update(keys=a["keys"].astype(np.int32)),
        lambda a: a["index"].__setitem__((0, 1), 99),
        lambda a: a["index"].__setitem__((slice(None), 1), 0),
        lambda a: a.update(index=a["index"][:3]),
    ],
)
def test_table_file_that_does_not_match_the_manifest_is_refused(break_it):
    arrays = table_arrays(range(5))
    break_it(arrays)
    with pytest.raises(Corrupt):
        ServedTable(TableEntry("t", DIM, 5), arrays)


@pytest.mark.parametrize("dtype", ROW_TYPES)
def test_table_with_deltas_equals_the_table_published_whole(dtype):
    random = np.random.default_rng(3)
    keys = np.arange(60, dtype=np.int64)
    rows = random.standard_normal((60, DIM)).astype(np.float32)
    table = ServedTable(TableEntry("t", DIM, 40, dtype), packed(keys[:40], rows[:40], dtype))
    newer = rows.copy()
    newer[20:] *= np.float32(random.standard_normal())
    table.apply(TableDelta(keys[20:], newer[20:], np.array([3])), 1)
    kept = np.delete(keys, 3)
    whole = ServedTable(TableEntry("t", DIM, 59, dtype), packed(kept, newer[kept], dtype))
    for got, wanted in zip(table.export(1), whole.export(0)):
        assert got.tobytes() == wanted.tobytes()
    np.testing.assert_array_equal(whole.export(0)[1], dequantise(quantise(newer[kept], dtype), dtype))
    assert table.export(0)[1].tobytes() == dequantise(quantise(rows[:40], dtype), dtype).tobytes()


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize(("rows", "dim"), [(5, 3), (0, 4), (33, 1)])
def test_every_tensor_of_a_table_file_can_be_mapped_directly(tmp_path, dtype, rows, dim):
    arrays = packed(np.arange(rows), np.ones((rows, dim), np.float32), dtype)
    with open(tmp_path / "t.safetensors", "wb") as file:
        write_tensors(file, arrays, {})
    data = map_file(tmp_path / "t.safetensors")
    read = parse_tensors(data, "t").arrays
    assert read["rows"].ctypes.data % 64 == 0
    ServedTable(TableEntry("t", dim, rows, dtype), read)
    for name, array in read.items():
        assert not array.size or data.ctypes.data <= array.ctypes.data < data.ctypes.data + data.nbytes, name


@pytest.mark.parametrize(
    "scales",
    [
        None,
        np.ones(4, np.float32),
        np.ones((5, 1), np.float32),
        np.ones(5, np.float16).astype(np.float64),
        np.array([1, 1, np.nan, 1, 1], np.float32),
        np.array([1, 1, -1, 1, 1], np.float32),
        np.array([1, np.inf, 1, 1, 1], np.float32),
    ],
    ids=["none", "too few", "a matrix", "float64", "NaN", "negative", "infinite"],
)
def test_invalid_scales_are_refused(scales):
    arrays = packed(np.arange(5), np.ones((5, DIM), np.float32), "int8")
    arrays.pop("scales")
    if scales is not None:
        arrays["scales"] = scales
    with pytest.raises(Corrupt, match="scales"):
        ServedTable(TableEntry("t", DIM, 5, "int8"), arrays)


def test_unexpected_scales_or_wrong_row_type_are_refused():
    plain = packed(np.arange(5), np.ones((5, DIM), np.float32))
    with pytest.raises(Corrupt, match="expected 0 float32 scales for float32"):
        ServedTable(TableEntry("t", DIM, 5), plain | {"scales": np.ones(5, np.float32)})
    for dtype in ("float16", "bfloat16", "int8"):
        with pytest.raises(Corrupt, match=f"of {dtype}, got float32"):
            ServedTable(TableEntry("t", DIM, 5, dtype), plain)


def test_model_without_tables_has_one_zero_descriptor_row():
    assert descriptors([]).tolist() == [[0] * TABLE_FIELDS]


def test_tombstone_slot_is_reused_only_after_a_later_flip():
    table = served([1])
    tombstone = table.apply(delta([], [1], 1), 1)
    table.retire(tombstone, 2)
    table.reclaim(2, 3)
    # Settled; but a reader that stands at flip 2 may be on its way to look at it.
    assert not set(tombstone.slots) & set(table.apply(delta([5], [], 2), 2).slots)
    table.reclaim(3, 4)
    assert set(tombstone.slots) == set(table.apply(delta([6], [], 3), 3).slots)


def test_rows_are_reclaimed_only_when_every_reader_sees_them():
    table = served([1])
    table.retire(table.apply(delta([1], [], 1), 1), 5)
    table.reclaim(4, 6)
    assert exported(table, 0) == {1: tuple(row_of(1, 0))}
    table.reclaim(5, 6)
    assert exported(table, 0) == exported(table, 1) == {1: tuple(row_of(1, 1))}


def test_interrupted_undo_leaves_the_table_torn(monkeypatch):
    table, versions = served([1, 2, 3]), RowVersions()
    table.apply(delta([2, 5], [1], 1), 1, versions)
    assert not table.torn

    def interrupted(*_):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(row_kernels, "unpublish", interrupted)
        with pytest.raises(MemoryError):
            table.undo(versions, 2)
    assert table.torn
    table.undo(versions, 2)
    assert not table.torn
