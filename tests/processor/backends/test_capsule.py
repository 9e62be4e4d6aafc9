"""Machine code in its capsule: whole and its own, or refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.backends.capsule import pack, unpack
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package.whole_files import sha256

SOURCE = "5" * 64
CODE = bytes(range(256)) * 4


@given(st.binary(max_size=300), st.integers(1, 4096))
def test_artefact_file_round_trips(code, bucket):
    assert unpack(pack(code, "xla", bucket, SOURCE), "xla", bucket, SOURCE) == code


def test_code_for_a_different_graph_is_stale():
    with pytest.raises(Corrupt, match="executable b4: stale: compiled from another graph"):
        unpack(pack(CODE, "xla", 4, SOURCE), "xla", 4, "6" * 64)


@pytest.mark.parametrize(("backend", "bucket"), [("openvino", 4), ("xla", 8)])
def test_code_for_a_different_backend_or_bucket_is_refused(backend, bucket):
    with pytest.raises(Corrupt, match=r"executable b\d: expected (backend|bucket) .*, got"):
        unpack(pack(CODE, "xla", 4, SOURCE), backend, bucket, SOURCE)


def test_truncated_capsule_is_refused():
    data = pack(CODE, "xla", 4, SOURCE)
    for end in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            unpack(data[:end], "xla", 4, SOURCE)


@settings(max_examples=200)
@given(st.data())
def test_changed_byte_changes_the_sha256_and_never_crashes_the_reader(data):
    artefact_file = bytearray(pack(CODE, "xla", 4, SOURCE))
    at = data.draw(st.integers(0, len(artefact_file) - 1))
    before = sha256(bytes(artefact_file))
    artefact_file[at] ^= data.draw(st.integers(1, 255))
    assert sha256(bytes(artefact_file)) != before
    with contextlib.suppress(Corrupt):
        assert len(unpack(bytes(artefact_file), "xla", 4, SOURCE)) == len(CODE)


@given(st.binary(max_size=200))
def test_malformed_capsule_is_refused(data):
    with pytest.raises(Corrupt):
        unpack(data, "xla", 4, SOURCE)
