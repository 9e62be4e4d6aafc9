"""Records as TensorFlow writes them; what is damaged or hostile costs one line that names the file and the record."""

import gzip
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="TFRecord needs the train extra")

import tensorflow as tf

from freshet_serving.models.data.dataset import Dataset
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from freshet_serving.models.data.tfrecord import _fits
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import check_batches, joined

pytestmark = pytest.mark.tensorflow

KINDS = {"user": "id", "city": "string", "seen": "ids", "tags": "strings", "price": "float"}
FIELDS = [Field(name, kind) for name, kind in KINDS.items()]


def example(**columns):
    features = {}
    for name, values in columns.items():
        if values and isinstance(values[0], bytes):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif values and isinstance(values[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def row(i):
    columns = {"user": [i], "seen": list(range(i % 3)), "click": [i % 2], "ts": [100 + i]}
    columns |= {"city": [b"c%d" % (i % 2)]} if i % 4 else {}
    columns |= {"price": [i / 2]} if i % 5 else {}
    return example(**columns, **({"tags": [b"t%d" % j for j in range(i % 3)]} if i % 3 else {}))


def write(path, records, packed=False):
    with tf.io.TFRecordWriter(str(path), "GZIP" if packed else "") as writer:
        for record in records:
            writer.write(record)
    return path


def opened(path, fields=FIELDS[:1], label="click", time=""):
    return open_source(DataConfig(str(path), "tfrecord", label, time), fields)


@pytest.mark.parametrize(("name", "packed"), [("a.tfrecord", False), ("a.tfrecord.gz", True), ("plain.tfrecord", True)])
def test_every_column_is_read_with_missing_values(tmp_path, name, packed):
    source = opened(write(tmp_path / name, map(row, range(23)), packed), FIELDS, time="ts")

    assert joined(list(source.batches(5))) == {
        "user": list(range(23)),
        "city": [b"c%d" % (i % 2) if i % 4 else b"" for i in range(23)],
        "seen": [list(range(i % 3)) for i in range(23)],
        "tags": [[b"t%d" % j for j in range(i % 3)] for i in range(23)],
        "price": [i / 2 if i % 5 else None for i in range(23)],
        "label": [i % 2 for i in range(23)],
        "time": [100 + i for i in range(23)],
    }
    check_batches(source, 4, 23)


def test_lists_of_floats_are_read_where_they_are_asked_for(tmp_path):
    records = [example(spent=[1.5, 2.5], click=[1]), example(click=[0]), example(spent=[3.5], click=[1])]
    source = opened(write(tmp_path / "a.tfrecord", records), [Field("spent", "floats")])
    assert joined(list(source.batches(2)))["spent"] == [[1.5, 2.5], [], [3.5]]


def test_first_records_distinguish_lists_from_values(tmp_path):
    dataset = Dataset(write(tmp_path / "a.tfrecord", map(row, range(1, 23))), label="click")

    assert {f.name: f.kind for f in dataset.schema.fields} == {
        "user": "id", "city": "string", "seen": "ids", "tags": "strings", "price": "float", "ts": "id",
    }  # fmt: skip


def refusal(path, fields=FIELDS[:1], label="click"):
    with pytest.raises(BadInput) as caught:
        list(opened(path, fields, label).batches(4))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flipped_bit_is_reported_by_its_record(tmp_path):
    path = write(tmp_path / "a.tfrecord", map(row, range(9)))
    raw = bytearray(path.read_bytes())
    at = raw.index(b"user", len(raw) // 2)
    raw[at] ^= 1
    path.write_bytes(raw)

    assert refusal(path).startswith("a.tfrecord: record ")


def test_corrupt_record_length_is_refused_before_allocating_memory(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(struct.pack("<QI", 2**60, 1) + b"x" * 50)
    assert refusal(path) == "a.tfrecord: the length of record 0 does not match its checksum"
    # With the checksum that fits it.
    head = struct.pack("<Q", 2**60)
    path.write_bytes(head + struct.pack("<I", masked(head)) + b"x" * 50)
    assert refusal(path) == f"a.tfrecord: expected records of at most {64 << 20} bytes, got {2**60} in record 0"


def masked(data):
    """CRC-32C bit by bit, masked as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=40))
def test_checksums_are_crc_32c(data):
    assert _fits(data, masked(data))
    assert not _fits(data, masked(data) ^ 1)


def test_truncated_file_is_reported(tmp_path):
    whole = write(tmp_path / "a.tfrecord", map(row, range(9))).read_bytes()
    for cut in (3, 20, len(whole) - 1):
        (tmp_path / "b.tfrecord").write_bytes(whole[:cut])
        assert refusal(tmp_path / "b.tfrecord").startswith("b.tfrecord: truncated in record ")
    (tmp_path / "c.tfrecord.gz").write_bytes(gzip.compress(whole)[:-20])
    assert refusal(tmp_path / "c.tfrecord.gz").startswith("c.tfrecord.gz: ")


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (example(click=[1]), r"a.tfrecord: record 6 cannot be read: column 'user'"),
        (example(user=[1, 2], click=[1]), r"a.tfrecord: record 6 cannot be read: column 'user'"),
        (example(user=[b"x"], click=[1]), r"a.tfrecord: record 6 cannot be read: column 'user'"),
        (example(user=[1]), r"a.tfrecord: record 6 cannot be read: column 'click'"),
        (b"\xff\xff\xff\xff", r"a.tfrecord: record 6 cannot be read: not an Example"),
        (example(user=[1], click=[7]), "column 'click': expected a label from 0 to 1, got 7 at row 6 of a.tfrecord"),
    ],
    ids=["no user", "two users", "a user of bytes", "no click", "no example", "a label of 7"],
)
def test_mismatched_record_is_reported_by_its_number(tmp_path, odd, message, monkeypatch):
    monkeypatch.setattr("freshet_serving.models.data.tfrecord.FIRST_RECORDS", 3)
    path = write(tmp_path / "a.tfrecord", [*map(row, range(6)), odd, row(7)])
    assert refusal(path).startswith(message)


def test_malformed_examples_and_missing_columns_are_refused(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"\xff\xff"])
    assert refusal(path) == "a.tfrecord: record 0 is not a tf.train.Example"
    path = write(tmp_path / "b.tfrecord", map(row, range(3)))
    assert refusal(path, [Field("usr", "id")]).endswith("(did you mean 'user'?)")
    assert refusal(path, [Field("city", "id")]).startswith("features.city: expected integers for kind 'id'")
    assert refusal(write(tmp_path / "c.tfrecord", [])).startswith("column 'user': expected exactly one in c.tfrecord")
