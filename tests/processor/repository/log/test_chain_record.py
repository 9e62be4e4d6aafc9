"""One record: its bytes, its digests, and what is refused."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import File, Manifest, Transform, sha256
from freshet_serving.processor.repository.log.chain_record import (
    BESIDE,
    KINDS,
    MAX_REASON,
    ChainRecord,
    check_reason,
    delta_digest,
    record_name,
    root_digest,
    root_hash,
)
from tests.support.packages import manifest

HEX64, HEX32 = "ab" * 32, "cd" * 16
PLAIN = ChainRecord("small", 1, 7, "delta", HEX64, 7, HEX32, 6, HEX32, 7, 0, "deltas/7.safetensors", 9, HEX64, 0, 1.5)
ROLLBACK = dataclasses.replace(PLAIN, kind="rollback", step=4, file="", nbytes=0, sha256="", reason="labels were late")


def test_record_is_named_by_its_zero_padded_number():
    assert record_name(17) == "chain/0000000017.json"


@pytest.mark.parametrize("record", [PLAIN, ROLLBACK], ids=lambda r: r.kind)
def test_record_round_trips(record):
    data = record.to_bytes()
    assert data.endswith(b"}\n")
    assert b"\n" not in data[:-1]
    assert ChainRecord.from_bytes(data, 7) == record


@given(at=st.floats(0, 1e11), step=st.integers(0, 10**17), reason=st.text(st.characters(codec="utf-8"), max_size=99))
def test_arbitrary_record_fields_round_trip(at, step, reason):
    record = dataclasses.replace(ROLLBACK, at=at, step=step, top=step + 1, reason=reason)
    assert ChainRecord.from_bytes(record.to_bytes(), 7) == record


def with_json(**changes):
    return json.dumps(json.loads(PLAIN.to_bytes()) | changes, sort_keys=True, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a JSON object"),
        (b"{", "expected a JSON object"),
        (b"[" * 100_000, "expected a JSON object"),
        (b"[]", "format"),
        (with_json(format="freshet-record/3"), "format"),
        (with_json(extra=1), "the keys"),
        (with_json(number=8), "number: expected 7, got 8"),
        (with_json(kind="deltas"), "kind: expected one of .*, got 'deltas'"),
        (with_json(step="7"), "step: expected int"),
        (with_json(step=True), "step: expected int"),
        (with_json(step=-1), "step: expected int"),
        (with_json(at=float("inf")), "at, reason or top"),
        (with_json(at=-1.0), "at, reason or top"),
        (with_json(at=10**400), "at: expected float"),
        (with_json(format=["freshet-record/1"]), "format"),
        (with_json(top=6), "at, reason or top"),
        (with_json(previous="ab"), "previous, digest and parent"),
        (with_json(file="../1/deltas/7.safetensors"), "a file of the version"),
        (with_json(file="deltas/../../x"), "a file of the version"),
        (with_json(file="deltas/.hidden"), "a file of the version"),
        (with_json(kind="rollback"), "expected no file"),
        (PLAIN.to_bytes().replace(b":", b": ", 1), "not in canonical form"),
        (PLAIN.to_bytes() + b" " * 20_000, "expected a JSON object|not in canonical form"),
    ],
)
def test_record_that_no_writer_produces_is_refused(data, message):
    with pytest.raises(Corrupt, match=message):
        ChainRecord.from_bytes(data, 7)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_in_one_line(data):
    with pytest.raises(Corrupt) as refused:
        ChainRecord.from_bytes(data, 7)
    assert "\n" not in str(refused.value)


def test_every_record_kind_fits_the_read_size_limit():
    for kind in KINDS:
        record = dataclasses.replace(ROLLBACK, kind=kind, model="m" * 128, reason="é" * MAX_REASON)
        assert len(record.to_bytes()) < 16 << 10


def test_root_digest_covers_the_weights_and_not_later_additions():
    one = manifest(1, 20, 3)
    one = dataclasses.replace(
        one, files={"dense.safetensors": File(4, "0" * 8), "compiled/x/b1.onnx": File(4, "1" * 8)}
    )
    root = root_digest(one)
    later = {**one.files, "warmup.safetensors": File(9, "2" * 8), "compiled/x/b1.onnx": File(5, "3" * 8)}
    assert root_digest(dataclasses.replace(one, files=later, notes={"a": 1}, created_at=3.0)) == root
    assert len(root) == 32
    assert root_hash(one).startswith(root)
    other = {**one.files, "dense.safetensors": File(4, "4" * 8)}
    assert root_digest(dataclasses.replace(one, files=other)) != root
    assert root_digest(dataclasses.replace(one, version=2)) != root
    assert root_digest(dataclasses.replace(one, width=one.width + 1)) != root
    hashed = Transform("hashed", "farm", ["user"], integers=[10])
    assert root_digest(dataclasses.replace(one, transforms=[hashed])) != root


def test_every_manifest_field_is_in_the_root_or_excluded():
    """A field that is new to the format counts, unless somebody says that it does not; a default moves no digest."""
    assert {field.name for field in dataclasses.fields(Manifest)} >= BESIDE
    counted = {field.name for field in dataclasses.fields(Manifest)} - BESIDE
    assert counted >= {"inputs", "transforms", "features", "tables", "outputs", "width", "dense", "files", "stage"}
    assert root_hash(manifest(1, 20, 3)).startswith("0336571205e7"), "chains that were begun before stand on this"


def test_digest_follows_from_the_parent_and_the_file():
    assert delta_digest(HEX32, HEX64) == sha256(f"{HEX32} {HEX64}".encode())[:32]
    assert len({delta_digest(a, b) for a in (HEX32, "0" * 32) for b in (HEX64, "1" * 64)}) == 4


@pytest.mark.parametrize("reason", ["x" * (MAX_REASON + 1), "a\nb", "\x1b[31m"])
def test_reason_with_a_line_break_is_refused(reason):
    with pytest.raises(BadInput, match="reason"):
        check_reason(reason)
