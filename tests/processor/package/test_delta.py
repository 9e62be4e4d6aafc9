"""The delta file: round trip, its manifest in the header, every refusal, and publication that cannot be seen half."""

import contextlib
import dataclasses
import gzip
import io
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from freshet_serving.processor.package import delta as delta_module
from freshet_serving.processor.package import whole_files
from freshet_serving.processor.package.delta import (
    Delta,
    TableDelta,
    parse_delta,
    read_delta,
    stream_delta,
    write_delta,
)
from freshet_serving.processor.package.tensors import (
    all_below,
    array_crc32,
    header_checksum,
    map_file,
    parse_tensors,
    write_tensors,
)
from tests.support.packages import make_delta, manifest

ids = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(-1e6, 1e6, width=32)


@st.composite
def table_deltas(draw):
    chosen = draw(st.lists(ids, unique=True, max_size=12))
    cut = draw(st.integers(0, len(chosen)))
    dim = draw(st.integers(1, 4))
    rows = draw(hnp.arrays(np.float32, (cut, dim), elements=finite))
    return TableDelta(np.array(chosen[:cut], np.int64), rows, np.array(chosen[cut:], np.int64))


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True)
seconds = st.floats(0, 2e9)
deltas = st.builds(
    lambda parent, ahead, **parts: Delta(step=parent + ahead, parent_step=parent, **parts),
    parent=st.integers(0, 10**12),
    ahead=st.integers(1, 10**6),
    model=names,
    version=st.integers(1, 10**17),
    tables=st.dictionaries(names, table_deltas(), max_size=3),
    dense=st.dictionaries(
        st.from_regex(r"[a-z0-9_]{1,6}(/[a-z0-9_]{1,6})?", fullmatch=True),
        hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=finite),
        max_size=3,
    ),
    published_at=seconds,
    event_time=st.none() | st.tuples(seconds, seconds),
    events=st.integers(0, 10**9),
    compacted=st.booleans(),
)


def assert_same(got, wanted):
    for name in ("model", "version", "step", "parent_step", "published_at", "event_time", "events", "compacted"):
        assert getattr(got, name) == getattr(wanted, name)
    assert got.tables.keys() == wanted.tables.keys()
    for name, table in wanted.tables.items():
        for part in ("keys", "rows", "removed"):
            np.testing.assert_array_equal(getattr(got.tables[name], part), getattr(table, part))
    assert got.dense.keys() == wanted.dense.keys()
    for name, tensor in wanted.dense.items():
        np.testing.assert_array_equal(got.dense[name], tensor)


@settings(max_examples=25, deadline=None)
@given(delta=deltas)
def test_delta_round_trips(tmp_path_factory, delta):
    path = tmp_path_factory.mktemp("deltas") / f"{delta.step}.safetensors"
    write_delta(path, delta)
    assert_same(read_delta(path), delta)
    assert_same(parse_delta(path.read_bytes()), delta)


def test_deltas_have_equal_checksums_only_when_they_are_equal(tmp_path):
    plain = dataclasses.replace(make_delta(1, [1, 2], [3], tags=["a"], dense_seed=1), published_at=1.0)
    other_row = dataclasses.replace(make_delta(1, [1, 2], [3], tags=["a"], dense_seed=1, tag=2), published_at=1.0)
    later = dataclasses.replace(plain, published_at=2.0)
    seen = []
    for number, delta in enumerate([plain, plain, other_row, later]):
        write_delta(tmp_path / str(number), delta)
        seen.append(read_delta(tmp_path / str(number)).checksum)
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_header_is_the_deltas_manifest_as_documented(tmp_path):
    path = tmp_path / "7.safetensors"
    delta = make_delta(7, [1, 2], [3], tags=["a"], parent=5, dense_seed=1, compacted=True, events=42)
    delta = dataclasses.replace(delta, published_at=1700000000.25, event_time=(10.5, 20.0))
    write_delta(path, delta)
    tensors = parse_tensors(map_file(path), "delta")
    meta = tensors.metadata
    assert meta.keys() == {
        *("format", "model", "version", "step", "parent_step", "compacted", "published_at", "event_time"),
        *("events", "counts", "checksums", "checksum"),
    }
    assert (meta["format"], meta["model"], meta["version"]) == ("freshet-delta/1", "small", "1")
    assert (meta["step"], meta["parent_step"], meta["compacted"], meta["events"]) == ("7", "5", "1", "42")
    assert float(meta["published_at"]) == 1700000000.25
    assert json.loads(meta["event_time"]) == [10.5, 20.0]
    assert json.loads(meta["counts"]) == {"rows": 3, "removed": 1, "dense": 3}
    checksums = json.loads(meta["checksums"])
    assert checksums == {name: array_crc32(array) for name, array in tensors.arrays.items()}
    assert {n for n in checksums if n.startswith("tables/user/")} == {
        "tables/user/keys",
        "tables/user/rows",
        "tables/user/removed",
    }
    assert all(len(c) == 8 and int(c, 16) >= 0 for c in [*checksums.values(), meta["checksum"]])


def test_restored_step_is_stored_only_where_there_is_one(tmp_path):
    path = tmp_path / "3.safetensors"
    for delta in (make_delta(3, [1]), dataclasses.replace(make_delta(3, [1]), restores=0)):
        write_delta(path, delta)
        assert read_delta(path).restores == delta.restores
        assert (b'"restores"' in path.read_bytes()) == (delta.restores is not None)


def test_folded_run_claims_no_restored_step():
    restored = dataclasses.replace(make_delta(4, [2]), restores=1)
    assert delta_module.folded([make_delta(3, [1]), restored]).restores is None


def test_empty_delta_is_a_valid_delta(tmp_path):
    write_delta(tmp_path / "1", Delta("small", 1, 1, 0, {}))
    back = read_delta(tmp_path / "1")
    assert (back.rows, back.removed, back.event_time, back.dense) == (0, 0, None, {})


class Broken(Exception):
    pass


def refuse(*_):
    raise Broken


class FullDisk:
    """A file that takes so many bytes and then fails, as a disk that fills up does."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        self._room -= memoryview(data).nbytes
        if self._room < 0:
            raise OSError(28, "No space left on device")
        return self._file.write(data)


@pytest.mark.parametrize("room", [0, 8, 100, 2000])
def test_full_disk_during_a_write_leaves_no_file(tmp_path, monkeypatch, room):
    whole = delta_module.write_tensors
    monkeypatch.setattr(delta_module, "write_tensors", lambda file, *rest: whole(FullDisk(file, room), *rest))
    with pytest.raises(OSError, match="No space left"):
        write_delta(tmp_path / "1.safetensors", make_delta(1, range(100)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_before_the_rename_leaves_no_file(tmp_path, monkeypatch, call):
    monkeypatch.setattr(whole_files.os, call, refuse)
    with pytest.raises(Broken):
        write_delta(tmp_path / "1.safetensors", make_delta(1, [1]))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_failed_publication_keeps_the_existing_file(tmp_path, monkeypatch):
    path = tmp_path / "1.safetensors"
    write_delta(path, make_delta(1, [1]))
    before = path.read_bytes()
    monkeypatch.setattr(whole_files.os, "replace", refuse)
    with pytest.raises(Broken):
        write_delta(path, make_delta(1, [1, 2]))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["1.safetensors"]


def test_file_gets_its_name_only_after_all_bytes_are_synced(tmp_path, monkeypatch):
    path, seen = tmp_path / "1.safetensors", []
    synced, renamed = os.fsync, os.replace

    def watch_fsync(fd):
        seen.append(("fsync", path.exists()))
        synced(fd)

    def watch_replace(source, target):
        seen.append(("replace", path.exists()))
        parse_delta(source.read_bytes())
        assert source.name.startswith(".")
        renamed(source, target)

    monkeypatch.setattr(whole_files.os, "fsync", watch_fsync)
    monkeypatch.setattr(whole_files.os, "replace", watch_replace)
    write_delta(path, make_delta(1, [1]))
    assert seen == [("fsync", False), ("replace", False), ("fsync", True)]


# Files that only somebody who can compute checksums could make: each rule behind the checksums has to stand alone.

FULL = {
    "tables/user/keys": np.array([1], np.int64),
    "tables/user/removed": np.array([2], np.int64),
    "tables/user/rows": np.zeros((1, 4), np.float32),
    "dense/w": np.zeros(3, np.float32),
}
META = {
    "format": "freshet-delta/1",
    "model": "small",
    "version": "1",
    "step": "1",
    "parent_step": "0",
    "compacted": "0",
    "published_at": "1.0",
    "event_time": "[]",
    "events": "0",
    "counts": "{}",
}


def forged(arrays=None, drop=(), **meta):
    """A delta file with true checksums over whatever it holds."""
    arrays = {**FULL, **(arrays or {})}
    arrays = {n: a for n, a in arrays.items() if a is not None}
    checksums = {name: array_crc32(a) for name, a in arrays.items()}
    metadata = {**META, "checksums": json.dumps(checksums), **meta}
    metadata = {k: v for k, v in metadata.items() if k not in drop}
    metadata["checksum"] = header_checksum(metadata, arrays)
    file = io.BytesIO()
    write_tensors(file, arrays, metadata)
    return file.getvalue()


def test_forged_file_that_meets_every_rule_is_read():
    assert parse_delta(forged()).step == 1


refusals = {
    "another format": (forged(format="freshet-delta/2"), "expected format 'freshet-delta/1'"),
    "no format": (forged(drop=["format"]), "expected format 'freshet-delta/1'"),
    "checksums that are no JSON": (forged(checksums="{"), "checksums: expected JSON dict"),
    "checksums that are a list": (forged(checksums="[]"), "checksums: expected JSON dict"),
    "deep checksums": (forged(checksums="[" * 100_000), "checksums: expected JSON dict"),
    "a tensor without a checksum": (forged(checksums="{}"), "a checksum for each tensor"),
    "a wrong checksum": (
        forged(checksums=json.dumps(dict.fromkeys(FULL, "00000000"))),
        "tensor 'tables/user/keys' does not match",
    ),
    "keys of int32": (forged({"tables/user/keys": np.array([1], np.int32)}), "expected int64 of rank 1, got int32"),
    "keys of rank 2": (forged({"tables/user/keys": np.array([[1]], np.int64)}), "expected int64 of rank 1"),
    "removed of float32": (forged({"tables/user/removed": np.zeros(1, np.float32)}), "expected int64 of rank 1"),
    "rows of float16": (forged({"tables/user/rows": np.zeros((1, 4), np.float16)}), "expected float32 of rank 2"),
    "rows of rank 1": (forged({"tables/user/rows": np.zeros(4, np.float32)}), "expected float32 of rank 2"),
    "dense of float16": (forged({"dense/w": np.zeros(3, np.float16)}), "expected float32, got float16"),
    "a stray tensor": (forged({"notes": np.zeros(1, np.float32)}), "rows or removed, got 'notes'"),
    "a stray part of a table": (
        forged({"tables/user/ttl": np.zeros(1, np.int64)}),
        "rows or removed, got 'tables/user/ttl'",
    ),
    "a dense tensor without a name": (forged({"dense/": np.zeros(1, np.float32)}), "rows or removed, got 'dense/'"),
    "a table without rows": (forged({"tables/user/rows": None}), "expected keys, rows and removed, got keys, removed"),
    "a table without keys": (forged({"tables/user/keys": None}), "expected keys, rows and removed, got removed, rows"),
    "a table without removed": (forged({"tables/user/removed": None}), "expected keys, rows and removed, got keys, ro"),
    "no step": (forged(drop=["step"]), "step: expected a whole number"),
    "a negative step": (forged(step="-1"), "step: expected a whole number, got '-1'"),
    "a step of 19 digits": (forged(step="1" * 19), "step: expected a whole number"),
    "a step in other digits": (forged(step="٣"), "step: expected a whole number"),
    "a step that is its parent": (forged(parent_step="1"), "expected a step above its parent 1, got 1"),
    "a step below its parent": (forged(parent_step="9"), "expected a step above its parent 9, got 1"),
    "a version that is a name": (forged(version="v1"), "version: expected a whole number, got 'v1'"),
    "a published_at that is no number": (forged(published_at="now"), "published_at: expected a number, got 'now'"),
    "a published_at of NaN": (forged(published_at="nan"), "published_at: expected a number"),
    "a published_at of infinity": (forged(published_at="1e999"), "published_at: expected a number"),
    "a published_at in milliseconds": (
        forged(published_at="1.7e12"),
        "published_at: expected seconds since 1970, got 1700000000000.0; milliseconds?",
    ),
    "a published_at before 1970": (forged(published_at="-1"), "published_at: expected seconds since 1970, got -1.0"),
    "an event_time in milliseconds": (forged(event_time="[0, 1.7e12]"), "event_time: expected seconds since 1970"),
    "an event_time in microseconds": (forged(event_time="[0, 1.7e15]"), "event_time: .* got 1700000000000000.0"),
    "an event_time of one": (forged(event_time="[1]"), r"event_time: expected \[\] or \[first, last\]"),
    "an event_time of strings": (forged(event_time='["a", "b"]'), "event_time"),
    "an event_time that is an object": (forged(event_time="{}"), "event_time: expected JSON list"),
    "an event_time of NaN": (forged(event_time="[NaN, 1]"), "event_time"),
    "an event_time of infinity": (forged(event_time="[1, 1e999]"), "event_time"),
    "an event_time beyond any float": (forged(event_time="[1, 1" + "0" * 400 + "]"), "event_time"),
    "events that are negative": (forged(events="-5"), "events: expected a whole number"),
}


@pytest.mark.parametrize(("data", "message"), refusals.values(), ids=refusals.keys())
def test_file_with_valid_checksums_must_still_meet_the_format(data, message):
    with pytest.raises(Corrupt, match=message):
        parse_delta(data)


@settings(max_examples=100)
@given(
    key=st.sampled_from(sorted({*META, "checksums"})),
    value=st.text(max_size=20)
    | st.integers().map(str)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps),
)
def test_arbitrary_header_value_raises_only_freshet_errors(key, value):
    with contextlib.suppress(FreshetError):
        parse_delta(forged(**{key: value}))


def test_edited_metadata_does_not_match_the_header_checksum(tmp_path):
    write_delta(tmp_path / "1", make_delta(1, [1]))
    data = (tmp_path / "1").read_bytes()
    assert data.count(b'"step":"1"') == 1
    with pytest.raises(Corrupt, match="the header does not match its checksum"):
        parse_delta(data.replace(b'"step":"1"', b'"step":"2"'))


def test_renamed_or_reshaped_tensor_does_not_match_the_header_checksum():
    data = forged()
    for before, after in [(b'"dense/w"', b'"dense/v"'), (b'"shape":[1,4]', b'"shape":[4,1]')]:
        assert before in data
        with pytest.raises(Corrupt, match="header does not match"):
            parse_delta(data.replace(before, after))


small = manifest(users=20, tags=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.tables.update(nobody=d.tables["user"]), "table 'nobody' is not one of the model's"),
        (lambda d: d.dense.update(nobody=np.zeros(3, np.float32)), "dense tensor 'nobody' is not one of"),
        (
            lambda d: d.tables.update(user=dataclasses.replace(d.tables["user"], rows=np.zeros((2, 3), np.float32))),
            r"table 'user': expected rows of shape \[2, 4\], got \[2, 3\]",
        ),
        (
            lambda d: d.tables.update(user=dataclasses.replace(d.tables["user"], rows=np.zeros((1, 4), np.float32))),
            r"expected rows of shape \[2, 4\], got \[1, 4\]",
        ),
        (lambda d: d.tables["user"].rows.__setitem__((1, 3), np.inf), "rows hold NaN or infinity"),
        (lambda d: d.tables["user"].keys.__setitem__(1, 1), "occurs more than once"),
        (lambda d: d.tables["user"].removed.__setitem__(0, 2), "occurs more than once"),
        (lambda d: d.dense["mlp_0/bias"].__setitem__(0, -np.inf), "'mlp_0/bias' holds NaN"),
        (lambda d: d.dense.update({"mlp_0/bias": np.zeros(3, np.float32)}), r"expected shape \[8\], got \[3\]"),
    ],
)
def test_delta_that_does_not_fit_the_model_is_refused(change, message):
    delta = make_delta(1, [1, 2], [3], dense_seed=1)
    delta.check_fits(small)
    change(delta)
    with pytest.raises(BadInput, match=message):
        delta.check_fits(small)


@pytest.mark.parametrize(("keys", "removed"), [([1, 2], []), ([], [3])])
def test_table_that_a_stage_also_reads_refuses_deltas(keys, removed):
    read_twice = dataclasses.replace(small, copies={"user": ""})
    make_delta(1, [], []).check_fits(read_twice)
    with pytest.raises(BadInput, match="table 'user' cannot be changed by deltas"):
        make_delta(1, keys, removed).check_fits(read_twice)


def test_table_that_is_also_a_weight_changes_with_it():
    tied = dataclasses.replace(small, copies={"user": "mlp_0/bias"})
    make_delta(1, [1, 2], [3], dense_seed=1).check_fits(tied)
    with pytest.raises(BadInput, match="table 'user' changes without dense weight 'mlp_0/bias'"):
        make_delta(1, [1, 2], [3]).check_fits(tied)


@pytest.mark.parametrize(
    ("dtype", "below"), [("float16", 65520.0), ("bfloat16", 2.0**56), ("float32", 2.0**56), ("int8", 2.0**56)]
)
def test_delta_with_unrepresentable_rows_is_refused(dtype, below):
    typed = dataclasses.replace(small, tables=[dataclasses.replace(t, dtype=dtype) for t in small.tables])
    delta = make_delta(1, [1, 2], [3])
    delta.tables["user"].rows[1, 2] = -np.nextafter(np.float32(below), np.float32(0))
    delta.check_fits(typed)
    for value in (below, -1e30, 3.4e38):
        delta.tables["user"].rows[1, 2] = value
        wanted = rf"^delta: table 'user': rows: expected numbers below {below:g} for {dtype}, got {abs(value):g}$"
        with pytest.raises(BadInput, match=wanted.replace("+", r"\+")):
            delta.check_fits(typed)


def test_non_finite_value_is_found_in_every_block(monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.package.tensors.CHECK_ROWS", 4)
    for at in range(10):
        for value in (np.nan, np.inf, -np.inf):
            array = np.zeros((5, 2), np.float32)
            assert all_below(array, np.inf)
            array.reshape(-1)[at] = value
            assert not all_below(array, np.inf)
    assert all_below(np.empty((0, 2), np.float32), np.inf)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", ""),
        (b"hello", ""),
        (b"hello, this is a text", ""),
        (gzip.compress(b"hello" * 100, mtime=0), ", but gzip"),
        (b"PAR1" + b"\x15" * 40, ", but Parquet"),
        (b'{"rows": [1, 2, 3]}', ", but JSON"),
        (b"\x80\x04\x95" + bytes(30), ", but a pickle"),
        (bytes(100), ""),
    ],
)
def test_file_that_is_not_safetensors_is_reported_as_such(data, kind):
    with pytest.raises(Corrupt, match=f"^delta: not a safetensors file{kind}: "):
        parse_delta(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(published_at=1.7e12), "published_at: expected seconds since 1970, got 1700000000000.0; milliseconds"),
        (dict(published_at=float("nan")), "published_at: expected seconds since 1970, got nan"),
        (dict(published_at="now"), "published_at: expected seconds since 1970 as a number, got str"),
        (dict(event_time=(0, 1.7e12)), "event_time: expected seconds since 1970, got 1700000000000.0; milliseconds"),
        (dict(event_time=(-1e300, 0.0)), "event_time: expected seconds since 1970, got -1e"),
        (dict(event_time=(1.0,)), "event_time: expected two times, first and last, got tuple"),
        (dict(event_time=7.0), "event_time: expected two times, first and last, got float"),
        (dict(event_time=(True, 7.0)), "event_time: expected seconds since 1970 as a number, got bool"),
        (dict(events=True), "events: expected a whole number below"),
        (dict(dense={"w": np.zeros(3)}), "tensor 'dense/w': expected float32, got float64"),
        (
            dict(
                tables={"user": TableDelta(np.zeros(1, np.int32), np.zeros((1, 4), np.float32), np.zeros(0, np.int64))}
            ),
            "tensor 'tables/user/keys': expected int64 of rank 1, got int32",
        ),
        (dict(event_time=(None, 1.0)), "event_time: expected seconds since 1970 as a number, got NoneType"),
        (dict(events=-1), "events: expected a whole number below"),
        (dict(events=1.5), "events: expected a whole number below"),
        (dict(step=10**18), "step: expected a whole number below"),
        (dict(parent_step=1), "expected a step above its parent 1, got 1"),
    ],
)
def test_delta_that_a_reader_would_refuse_is_not_written(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        write_delta(tmp_path / "1", dataclasses.replace(make_delta(1, [1]), **changes))
    assert list(tmp_path.iterdir()) == []


odd = (
    st.booleans()
    | st.floats()
    | st.integers(-(10**20), 10**20)
    | st.none()
    | st.sampled_from([1.7e12, -1e12, 1e12 - 1])
)


@given(published_at=odd, times=st.none() | st.lists(odd, max_size=3), events=odd, step=odd)
def test_delta_with_any_metadata_round_trips(published_at, times, events, step):
    changes = dict(published_at=published_at, event_time=times, events=events, step=step, parent_step=0)
    made, file = dataclasses.replace(make_delta(1, [1]), **changes), io.BytesIO()
    try:
        stream_delta(file, made)
    except BadInput:
        assert file.getvalue() == b""
        return
    read = parse_delta(file.getvalue())
    assert (read.published_at, read.events, read.step) == (published_at, events, step)
    assert read.event_time == (tuple(times) if times else None)
