"""Safetensors files: what is written loads anywhere, what is read is bounded before it is believed."""

import io
import json
import math
import struct
import zlib

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from freshet_serving.processor.package import tensors
from freshet_serving.processor.package import tensors as tensors_module
from freshet_serving.processor.package.tensors import (
    ALIGNMENT,
    DTYPES,
    MAX_HEADER_NBYTES,
    array_crc32,
    crc32,
    map_file,
    parse_tensors,
    write_tensors,
)

dtypes = st.sampled_from(sorted(DTYPES.values(), key=str))
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = dtypes.flatmap(lambda dtype: shapes.flatmap(lambda shape: hnp.arrays(dtype, shape)))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
files = st.dictionaries(names, arrays, max_size=5)
# The library's numpy half knows no bfloat16 without another package.
plain_files = files.map(lambda arrays: {n: a for n, a in arrays.items() if a.dtype != np.uint16})
metadata = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.text(max_size=8), max_size=3
)


def written(arrays, metadata=None):
    file = io.BytesIO()
    write_tensors(file, arrays, metadata or {})
    return file.getvalue()


def parsed(data, what="file"):
    return parse_tensors(np.frombuffer(data, np.uint8), what)


def with_header(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def assert_same(got, wanted):
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


@settings(max_examples=30)
@given(arrays=files, metadata=metadata)
def test_tensors_round_trip(arrays, metadata):
    back = parsed(written(arrays, metadata))
    assert_same(back.arrays, arrays)
    assert back.metadata == metadata


@pytest.mark.parametrize("nbytes", [0, 1, 299, 300, 301, 599, 600, 4096, 100_003])
def test_checksum_of_a_large_buffer_combines_those_of_its_parts(monkeypatch, nbytes):
    data = np.random.default_rng(nbytes).bytes(nbytes)
    monkeypatch.setattr(tensors_module, "PARALLEL_NBYTES", 300)
    for cores in (1, 2, 3, 64):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert crc32(data) == f"{zlib.crc32(data):08x}"


def test_bfloat16_bit_patterns_are_stored_as_bfloat16():
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    data = written({"rows": bits})
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header["rows"] == entry("BF16", (1, 2), (0, 4))
    np.testing.assert_array_equal(parsed(data).arrays["rows"], bits)


@settings(max_examples=30, deadline=None)
@given(arrays=plain_files)
def test_files_written_here_load_in_the_safetensors_library(arrays):
    loaded = safetensors.numpy.load(written(arrays, {"format": "np"}))
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


@settings(max_examples=30, deadline=None)
@given(arrays=plain_files)
def test_files_saved_by_the_safetensors_library_parse_here(arrays):
    back = parsed(safetensors.numpy.save(arrays, {"by": "the library"}))
    assert_same(dict(sorted(back.arrays.items())), dict(sorted(arrays.items())))
    assert back.metadata == {"by": "the library"}


@settings(max_examples=30)
@given(arrays=files, metadata=metadata)
def test_data_section_starts_on_a_cache_line(arrays, metadata):
    (length,) = struct.unpack("<Q", written(arrays, metadata)[:8])
    assert (8 + length) % ALIGNMENT == 0


def test_tensors_after_cache_line_multiples_are_aligned_in_memory(tmp_path):
    path = tmp_path / "table"
    path.write_bytes(written({"index": np.zeros((16, 2), np.int64), "rows": np.zeros((16, 4), np.float32)}))
    for array in parse_tensors(map_file(path), "table").arrays.values():
        assert array.ctypes.data % ALIGNMENT == 0


def test_tensor_at_an_odd_byte_is_readable_and_aligned():
    back = parsed(written({"a": np.array([7], np.int8), "b": np.array([1.5, -2.0], np.float32)})).arrays["b"]
    np.testing.assert_array_equal(back, [1.5, -2.0])
    assert back.flags.aligned


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f8", "?", "<c8", "<u8", "S3", "O"])
def test_unsupported_dtype_is_refused_before_a_byte_is_written(dtype):
    file = io.BytesIO()
    with pytest.raises(BadInput, match="tensor 'b': dtype: expected one of F32, F16, BF16, I8, I64, I32, U32, U8"):
        write_tensors(file, {"a": np.zeros(3, np.float32), "b": np.zeros(3, dtype)}, {})
    assert file.getvalue() == b""


def test_strided_and_transposed_arrays_are_written_in_logical_order():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted = {"strided": base[:, ::2], "transposed": base.T, "reversed": base[::-1]}
    assert_same(parsed(written(wanted)).arrays, {n: np.ascontiguousarray(a) for n, a in wanted.items()})


def test_tensor_longer_than_a_chunk_is_written_whole(monkeypatch):
    monkeypatch.setattr(tensors, "CHUNK_NBYTES", 7)
    wanted = {"a": np.arange(100, dtype=np.int64), "b": np.arange(15, dtype=np.int8)}
    assert_same(parsed(written(wanted)).arrays, wanted)


def test_views_are_read_only():
    back = parsed(written({"a": np.zeros(3, np.float32)})).arrays["a"]
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


def test_checksum_does_not_depend_on_strides():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert array_crc32(base.T) == array_crc32(np.ascontiguousarray(base.T))
    assert array_crc32(base) != array_crc32(base.T)
    assert array_crc32(np.empty((0, 4), np.float32)) == crc32(b"")


@given(data=st.binary(max_size=200), chunk=st.integers(1, 64))
def test_checksum_does_not_depend_on_the_chunk_size(data, chunk):
    whole = crc32(data)
    kept, tensors.CHUNK_NBYTES = tensors.CHUNK_NBYTES, chunk
    try:
        assert crc32(data) == whole
    finally:
        tensors.CHUNK_NBYTES = kept


def test_empty_or_missing_file_or_folder_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(Corrupt, match=f"^{name}: "):
            map_file(tmp_path / name)
    with pytest.raises(Corrupt) as refused:
        map_file(tmp_path)
    assert str(tmp_path) not in str(refused.value)


malformed = {
    "nothing": (b"", "at least 8 bytes"),
    "seven bytes": (b"\0" * 7, "at least 8 bytes"),
    "no header": (struct.pack("<Q", 0), "not valid JSON"),
    "a header longer than the file": (struct.pack("<Q", 3) + b"{}", "does not fit"),
    "a header of 2**64-1 bytes": (struct.pack("<Q", 2**64 - 1) + b"{}", "does not fit"),
    "not JSON": (with_header(b"{'a'"), "not valid JSON"),
    "not UTF-8": (with_header(b'{"\xff\xfe": 1}'), "not valid JSON"),
    "deep JSON": (with_header(b"[" * 100_000), "not valid JSON"),
    "a number of 5000 digits": (with_header(b'{"a": 1' + b"0" * 5000 + b"}"), "not valid JSON"),
    "a list": (with_header([]), "not a JSON object"),
    "metadata that is a list": (with_header({"__metadata__": []}), "object of strings"),
    "metadata that is not all strings": (with_header({"__metadata__": {"step": 3}}), "object of strings"),
    "metadata that is null": (with_header({"__metadata__": None}), "object of strings"),
    "an entry that is no object": (with_header({"a": 3}), "expected dtype, shape and data_offsets"),
    "an entry without a shape": (with_header({"a": {"dtype": "F32"}}), "expected dtype, shape and data_offsets"),
    "an entry with a stray key": (with_header({"a": entry() | {"x": 1}}, b"\0" * 4), "dtype, shape and data_off"),
    "an unknown dtype": (
        with_header({"a": entry("C64", (1,), (0, 8))}, b"\0" * 8),
        "dtype: expected one of .* got 'C64'",
    ),
    "a dtype that is no string": (with_header({"a": entry(["F32"])}, b"\0" * 4), "dtype: expected one of"),
    "a shape that is no list": (with_header({"a": entry() | {"shape": 1}}, b"\0" * 4), "a shape of at most"),
    "a negative size": (with_header({"a": entry(shape=(-1,))}, b"\0" * 4), "a shape of at most"),
    "a size that is a float": (with_header({"a": entry(shape=(1.0,))}, b"\0" * 4), "a shape of at most"),
    "a size that is a truth value": (with_header({"a": entry(shape=(True,))}, b"\0" * 4), "a shape of at most"),
    "nine dimensions": (with_header({"a": entry(shape=[1] * 9)}, b"\0" * 4), "a shape of at most 8"),
    "one offset": (with_header({"a": entry(offsets=(0,))}, b"\0" * 4), "two data_offsets"),
    "negative offsets": (with_header({"a": entry(offsets=(-4, 0))}, b"\0" * 4), "two data_offsets"),
    "offsets backwards": (with_header({"a": entry(offsets=(4, 0))}, b"\0" * 4), "outside the file"),
    "bytes beyond the file": (with_header({"a": entry(offsets=(0, 4))}, b"\0" * 3), "outside the file"),
    "offsets of 2**61": (with_header({"a": entry(offsets=(2**61, 2**61 + 4))}, b"\0" * 4), "outside the file"),
    "a shape too large for its bytes": (
        with_header({"a": entry(shape=(2,))}, b"\0" * 4),
        "expected 8 bytes for shape .* got 4",
    ),
    "a shape whose product passes 64 bits": (
        with_header({"a": entry(shape=(2**61, 2**61))}, b"\0" * 4),
        "a shape of at most 8 dimensions and",
    ),
    "an overlap": (
        with_header({"a": entry(offsets=(0, 4)), "b": entry(shape=(2,), offsets=(0, 8))}, b"\0" * 8),
        "overlap or leave a hole at byte 0",
    ),
    "the same bytes twice": (with_header({"a": entry(), "b": entry()}, b"\0" * 4), "overlap or leave a hole"),
    "a hole": (
        with_header({"a": entry(), "b": entry(offsets=(8, 12))}, b"\0" * 12),
        "overlap or leave a hole at byte 4",
    ),
    "a hole in front": (with_header({"a": entry(offsets=(4, 8))}, b"\0" * 8), "overlap or leave a hole at byte 0"),
    "bytes behind the last tensor": (with_header({"a": entry()}, b"\0" * 5), "fill 4 bytes, the file holds 5"),
}


@pytest.mark.parametrize(("data", "message"), malformed.values(), ids=malformed.keys())
def test_malformed_file_is_refused_by_name(data, message):
    with pytest.raises(Corrupt, match=message) as refused:
        parsed(data, "upload")
    assert str(refused.value).startswith("upload: ")


@pytest.mark.parametrize("shape", [(0, 2**61, 2**61), (2**61, 0), (2**40, 2**40, 0), (0, 2**61)])
def test_empty_tensor_cannot_have_huge_dimensions(shape):
    with pytest.raises(Corrupt, match="a shape of at most"):
        parsed(with_header({"a": entry(shape=shape, offsets=(0, 0))}))


def test_header_over_the_size_limit_is_refused_before_reading():
    class Huge:
        nbytes = MAX_HEADER_NBYTES * 2

        def __getitem__(self, span):
            assert span == slice(None, 9)
            return np.frombuffer(struct.pack("<Q", MAX_HEADER_NBYTES + 1), np.uint8)

    with pytest.raises(Corrupt, match="does not fit"):
        parse_tensors(Huge(), "upload")


SEED_FILE = written(
    {
        "tables/user/keys": np.arange(3, dtype=np.int64),
        "tables/user/rows": np.ones((3, 4), np.float32),
        "empty": np.empty((0, 2), np.float32),
    },
    {"format": "x", "step": "3"},
)


@settings(max_examples=100)
@given(data=st.data())
def test_mutated_file_raises_only_freshet_errors(data):
    raw = bytearray(SEED_FILE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "drop"]))
        if kind == "set" and at < len(raw):
            raw[at] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[],:"-0129eE'))
        elif kind == "cut":
            del raw[at:]
        elif kind == "drop":
            del raw[at : at + data.draw(st.integers(1, 8))]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    try:
        result = parsed(bytes(raw))
    except FreshetError:
        return
    assert sum(a.nbytes for a in result.arrays.values()) <= len(raw)


numbers = st.integers(-1, 20) | st.sampled_from([2**31, 2**61, 2**62, 2**64, 1.5, None, "4", True])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F64", 3]),
        "shape": st.lists(numbers, max_size=4),
        "data_offsets": st.lists(numbers, min_size=1, max_size=3),
    }
)


@settings(max_examples=100)
@given(header=st.dictionaries(st.text(max_size=3), entries, max_size=3), body=st.binary(max_size=40))
def test_views_stay_inside_and_tile_the_file_for_any_header(header, body):
    try:
        result = parsed(with_header(header, body))
    except FreshetError:
        return
    assert sum(a.nbytes for a in result.arrays.values()) == len(body)
    for name, array in result.arrays.items():
        assert list(array.shape) == header[name]["shape"]
        assert math.prod(array.shape) == array.size


def test_tensors_of_a_mapped_file_are_read_by_system_calls(tmp_path):
    path, array = tmp_path / "a.safetensors", np.arange(300_000).reshape(3, -1)
    with open(path, "wb") as file:
        write_tensors(file, {"skipped": np.arange(3), "a": array}, {})
    mapped = parse_tensors(map_file(path), "a").arrays["a"]
    assert array_crc32(mapped) == array_crc32(array)
    assert array_crc32(mapped.T) == array_crc32(array.T)
    copy = io.BytesIO()
    write_tensors(copy, {"a": mapped, "none": array[:0]}, {})
    assert np.array_equal(parse_tensors(np.frombuffer(copy.getvalue(), np.uint8), "copy").arrays["a"], array)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 8)
    with pytest.raises(Corrupt, match="bytes, got"):
        array_crc32(mapped)
