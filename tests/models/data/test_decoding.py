"""Files of strangers, decoded aside: the same rows as in this process, and bombs that are refused."""

import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.data import decoding, decoding_child
from freshet_serving.models.data.decoding import DecoderPool
from freshet_serving.models.data.decoding_child import FRAME_NBYTES, HEAD, frames, main, plain
from freshet_serving.models.data.files import ParquetFile
from freshet_serving.processor.errors import BadInput, NotReady
from tests.support.waiting import until

ROWS = 40_000
# The sound file needs 256 MiB in all, half of it for imports and threads.
MEMORY_NBYTES = 320 << 20


@pytest.fixture(scope="module")
def decoders():
    made = DecoderPool(MEMORY_NBYTES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A file of several pieces, with every kind of column."""
    path = tmp_path_factory.mktemp("sound") / "sound.parquet"
    n = np.arange(ROWS)
    lists = pa.ListArray.from_arrays(pa.array(np.minimum(np.arange(ROWS + 1), 9), pa.int32()), pa.array(np.arange(9)))
    words = pa.array([f"w{i % 7}" for i in range(ROWS)])
    table = pa.table({"id": n, "city": words, "kind": words.dictionary_encode(), "seen": lists, "price": n / 3})
    pq.write_table(table, path, row_group_size=18_000)
    return path


def test_pieces_contain_the_rows_that_this_process_decodes(decoders, sound):
    file, names = ParquetFile(sound), ["kind", "seen", "id"]
    pieces = list(file.pieces(dict.fromkeys(names), 0))
    assert len(pieces) == 3
    for number, piece in enumerate(pieces):
        here = pa.Table.from_batches([plain(batch) for batch in piece.read()])
        assert pa.Table.from_batches(decoders.piece(sound, names, number)).equals(here)
    assert len(decoders._idle) == 1


def test_process_is_kept_for_a_reader_that_leaves_with_the_last_batch(decoders, sound):
    batches = decoders.rows(sound, [0, 1])
    process = decoders._idle[-1]
    assert next(batches).num_rows == 2
    batches.close()
    assert decoders._idle[-1] is process
    assert process.poll() is None


def test_rows_of_all_columns_are_read_by_number(decoders, sound):
    wanted = [0, 1, 17_999, 18_000, ROWS - 1]
    found = pa.Table.from_batches(decoders.rows(sound, wanted))
    assert found["id"].to_pylist() == wanted
    assert found.column_names == ["id", "city", "kind", "seen", "price"]
    assert found["kind"].type == pa.string()


def test_concurrent_readers_have_own_processes_that_end_with_them(decoders, sound):
    first, second = decoders.rows(sound, [0, 18_000, 36_000]), decoders.piece(sound, ["id"], 1)
    assert next(first)["id"][0].as_py() == 0
    assert next(second)["id"][0].as_py() == 18_000
    first.close()
    assert list(second) == []
    assert len(decoders._idle) <= 1
    assert next(decoders.piece(sound, ["id"], 2))["id"][0].as_py() == 36_000


def repeated_string(path):
    array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 100_000]))
    # Without Arrow's own schema it is read as what Parquet has: strings.
    pq.write_table(pa.table({"bomb": array}), path, compression="zstd", store_schema=False)


def dictionary_column(path):
    array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 100_000]))
    pq.write_table(pa.table({"bomb": array}), path, compression="zstd")


def shared_prefix(path):
    array = pa.array(["x" * 50_000] * 8_000)
    options = {"use_dictionary": False, "column_encoding": {"bomb": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"bomb": array}), path, compression="zstd", **options)


def one_long_list(path):
    values = pa.array(np.zeros(20_000_000, np.int8))
    array = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    pq.write_table(pa.table({"bomb": array}), path, compression="zstd")


def one_large_string(path):
    pq.write_table(pa.table({"bomb": [b"x" * (FRAME_NBYTES + 1)]}), path, compression="zstd")


def nulls_in_a_list(path):
    values = pa.nulls(20_000_000, pa.int64())
    array = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    pq.write_table(pa.table({"bomb": array}), path, compression="zstd")


@pytest.mark.parametrize(
    "bomb",
    [repeated_string, dictionary_column, shared_prefix, one_long_list, one_large_string, nulls_in_a_list],
    ids=lambda bomb: bomb.__name__,
)
def test_small_file_that_expands_to_gigabytes_is_refused(decoders, sound, bomb, tmp_path):
    path = tmp_path / "bomb.parquet"
    bomb(path)
    assert path.stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    # Where nothing is left, a thread of the library is what cannot be had first.
    reasons = r"^bomb\.parquet: .*(memory|malloc|realloc|MiB|bytes in a row|worker thread)"
    with pytest.raises(BadInput, match=reasons) as refused:
        list(decoders.piece(path, ["bomb"], 0))
    assert "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)
    assert pa.total_allocated_bytes() - before <= FRAME_NBYTES
    # The next file is decoded as ever.
    assert next(decoders.piece(sound, ["id"], 0))["id"][0].as_py() == 0


def test_missing_or_damaged_file_is_refused(decoders, sound, tmp_path):
    with pytest.raises(BadInput, match=r"gone\.parquet: cannot be decoded"):
        next(decoders.piece(tmp_path / "gone.parquet", ["id"], 0))
    damaged = tmp_path / "damaged.parquet"
    data = bytearray(sound.read_bytes())
    data[4:2000] = bytes(1996)
    damaged.write_bytes(data)
    with pytest.raises(BadInput, match=r"damaged\.parquet: cannot be read as a Parquet file"):
        next(decoders.piece(damaged, ["id"], 0))


def dying(answered=b"B123"):
    """A process that ends when it is asked, in the middle of its answer."""
    code = f"import sys; sys.stdin.readline(); sys.stdout.buffer.write({answered!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_replacement_process_decodes_the_rest_after_a_crash(sound):
    decoders, told = DecoderPool(), io.BytesIO()
    pool = pa.default_memory_pool()
    request = {"path": str(sound), "names": None, "rows": [5, 18_000], "piece": 0}
    try:
        main(io.BytesIO(json.dumps(request).encode() + b"\n"), told)
        # The first of two frames, and a part of the second.
        _, nbytes = HEAD.unpack(told.getvalue()[: HEAD.size])
        decoders._idle.append(dying(told.getvalue()[: HEAD.size + nbytes + 20]))
        found = pa.Table.from_batches(decoders.rows(sound, [5, 18_000]))
        assert found["id"].to_pylist() == [5, 18_000]
    finally:
        pa.set_memory_pool(pool)
        decoders.close()


def test_file_that_crashes_decoders_is_refused_in_one_line(sound):
    decoders = DecoderPool()
    decoders._idle += [dying(), dying()]
    try:
        with pytest.raises(
            BadInput, match=r"^sound\.parquet: cannot be decoded within .*: the decoding process ended 2 times$"
        ):
            list(decoders.piece(sound, ["id"], 0))
        assert len(list(decoders.rows(sound, [5]))) == 1
    finally:
        decoders.close()


def test_unstartable_process_is_retryable_and_not_blamed_on_the_file(sound, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(NotReady, match="cannot start the decoding process: No such file"):
        list(DecoderPool().piece(sound, ["id"], 0))


def test_process_has_no_secrets_outlasts_shutdown_signals_and_ends_with_its_parent(monkeypatch, sound):
    monkeypatch.setenv("FRESHET_ADMIN_TOKEN", "secret")
    decoders = DecoderPool()
    try:
        list(decoders.rows(sound, [0]))
        (process,) = decoders._idle
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            assert b"secret" not in file.read()
        assert os.environ["FRESHET_ADMIN_TOKEN"] == "secret"
        assert os.getsid(process.pid) == process.pid
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        assert len(list(decoders.rows(sound, [1]))) == 1
        assert decoders._idle == [process]
        # All that a parent's end does to it.
        process.stdin.close()
        until(lambda: process.poll() is not None)
    finally:
        decoders.close()


def test_frame_exceeding_the_size_limit_is_not_read(monkeypatch, sound):
    decoders = DecoderPool()
    monkeypatch.setattr(decoding, "FRAME_NBYTES", 1 << 10)
    monkeypatch.setattr(decoding, "OVERHEAD_NBYTES", 0)
    with pytest.raises(BadInput, match="the decoding process ended"):
        list(decoders.piece(sound, ["id"], 0))
    assert decoders._idle == []


def test_batch_is_split_until_its_parts_fit_in_frames(monkeypatch):
    monkeypatch.setattr(decoding_child, "FRAME_NBYTES", 1000)
    batch = pa.record_batch({"a": np.arange(1000)})
    parts = list(frames(batch, "x"))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert max(part.num_rows for part in parts) <= 63
    assert len(list(frames(batch.slice(0, 0), "x"))) == 1


def test_requests_are_answered_in_sequence(sound):
    requests = [{"path": str(sound), "names": None, "rows": rows, "piece": 0} for rows in ([3], [], [4])]
    told, kinds = io.BytesIO(), b""
    pool = pa.default_memory_pool()
    try:
        main(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in requests)), told)
    finally:
        pa.set_memory_pool(pool)
    told.seek(0)
    while head := told.read(HEAD.size):
        kind, nbytes = HEAD.unpack(head)
        told.read(nbytes)
        kinds += kind
    assert kinds == b"BDDBD"
