"""Rows on disk: written once, read in any order, moved by compaction alone."""

import threading

import numpy as np
import pytest

from freshet_serving.models.embedding import cold_rows
from freshet_serving.models.embedding.cold_rows import ColdRows
from freshet_serving.processor.kernels.rows import LOG_ROW

DIM, SLOTS = 3, 4


@pytest.fixture
def cold(tmp_path):
    return ColdRows("t", DIM, SLOTS, tmp_path)


def parts_of(keys):
    keys = np.asarray(keys, np.int64)
    rows, slots = np.outer(keys, np.ones(DIM)).astype(np.float32), np.outer(keys, np.full(SLOTS, 2)).astype(np.float32)
    return keys, rows, slots, np.stack([keys, keys + 1], axis=1), keys % 2 == 0


@pytest.mark.parametrize("near_nbytes", [0, 1 << 20])
def test_records_are_read_in_the_requested_order(cold, monkeypatch, near_nbytes):
    monkeypatch.setattr(cold_rows, "NEAR_NBYTES", near_nbytes)
    monkeypatch.setattr(cold_rows, "READ_NBYTES", 4096)
    records = cold.append(*parts_of(range(5000)))
    wanted = np.random.default_rng(0).permutation(records)[:900]
    rows, slots = cold.read(wanted)
    assert rows[:, 0].tolist() == cold.keys[wanted].tolist()
    assert slots[:, 0].tolist() == (2 * cold.keys[wanted]).tolist()
    assert cold.read(wanted[:0])[0].shape == (0, DIM)


def test_row_is_stored_where_serving_kernels_expect_it(cold):
    records = cold.append(*parts_of([7, 8, 9]))
    at = int(records[1]) * cold.record_nbytes + LOG_ROW
    assert cold.log[at : at + 4 * DIM].view(np.float32).tolist() == [8.0] * DIM
    assert cold.record_nbytes % 8 == 0


def test_nearby_records_are_read_together(cold, monkeypatch):
    records = cold.append(*parts_of(range(1000)))
    reads = []
    read = type(cold._log.file).read

    def counted(file, at, into):
        reads.append(into.nbytes)
        read(file, at, into)

    monkeypatch.setattr(type(cold._log.file), "read", counted)
    cold.read(records[::2])
    assert len(reads) == 1
    monkeypatch.setattr(cold_rows, "NEAR_NBYTES", cold.record_nbytes)
    cold.read(records[[0, 1, 2, 500, 501, 999]])
    assert reads[1:] == [3 * cold.record_nbytes, 2 * cold.record_nbytes, cold.record_nbytes]


def test_compaction_keeps_live_records_at_their_reported_positions(cold):
    records = cold.append(*parts_of(range(40_000)))
    cold.drop(records[:30_000])
    where = dict(zip(cold.keys[records[30_000:]].tolist(), records[30_000:].tolist()))

    def move(old, new):
        for one, other in zip(old.tolist(), new.tolist()):
            assert where[int(cold.keys[one])] == one
            where[int(cold.keys[one])] = other

    before = cold.log_nbytes
    cold.compact(threading.Lock(), move)
    assert cold.compactions == 2
    assert cold.log_nbytes < before
    assert len(cold) == 10_000
    assert sorted(where) == list(range(30_000, 40_000))
    rows, _ = cold.read(np.array(list(where.values())))
    assert rows[:, 0].tolist() == list(where)
    assert cold.books[list(where.values()), 1].tolist() == [key + 1 for key in where]
    assert sorted(cold.keys[cold.changed()].tolist()) == [key for key in sorted(where) if key % 2 == 0]
    assert sorted(cold.present().tolist()) == sorted(where.values())


def test_records_beyond_the_first_segment_are_tracked(cold):
    records = np.concatenate([cold.append(*parts_of(range(n, n + 7000))) for n in range(0, 42_000, 7000)])
    assert cold.keys[records].tolist() == list(range(42_000))
    assert len(set(records.tolist())) == 42_000
