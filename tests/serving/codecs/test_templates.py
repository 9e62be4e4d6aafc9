import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import ColumnLayout
from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.codecs import kserve_rpc, templates, tfs_rpc
from freshet_serving.serving.codecs.templates import Placeholder, Templates, cut, fields, filler
from tests.serving.codecs import test_kserve_rpc, test_tfs_rpc
from tests.serving.fakes import PACKED, SINGLE

FLOATS = np.dtype("<f4")


def learn(known, data, start, content, name="x", rows=1, manifest=SINGLE, params="asked"):
    place = ColumnLayout(name, FLOATS, rows, 2, 0)
    known.learn(data, params, manifest, {name: place}, {name: Placeholder(start, content)})


def test_message_with_equal_length_and_literals_matches_its_template():
    known = Templates()
    learn(known, b"head12345678tail", 4, b"12345678")
    found = known.find(b"headABCDEFGHtail")
    assert (found.params, found.manifest, found.places.columns[0].offset) == ("asked", SINGLE, 4)
    assert known.find(b"heaDABCDEFGHtail") is None
    assert known.find(b"headABCDEFGHtaiL") is None
    assert known.find(b"headABCDEFGHtail.") is None


def test_misplaced_or_overlapping_values_make_no_template():
    known = Templates()
    learn(known, b"head12345678tail", 5, b"12345678")
    learn(known, b"head12345678tail", 4, b"1234567")
    learn(known, b"head12345678tail", 4, b"12345678", rows=2)
    place = ColumnLayout("x", FLOATS, 1, 2, 0)
    known.learn(b"12345678", "a", PACKED, {"x": place, "y": place}, {"x": Placeholder(0, b"12345678")})
    overlapping = {"x": Placeholder(0, b"12345678"), "y": Placeholder(4, b"56789012")}
    known.learn(b"123456789012", "a", PACKED, {"x": place, "y": place}, overlapping)
    assert known.find(b"head12345678tail") is known.find(b"12345678") is known.find(b"123456789012") is None


def test_template_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(templates, "MAX_KEPT", 4)
    monkeypatch.setattr(templates, "MAX_ALIKE", 2)
    known = Templates()
    for n in range(3):
        learn(known, b"%d12345678" % n, 1, b"12345678")
    assert known.find(b"012345678") is None
    assert known.find(b"212345678") is not None
    for n in range(2, 9):
        learn(known, b"x" * n + b"12345678", n, b"12345678")
    # The fourth beside the first was one too many, and all began anew.
    assert [n for n in range(2, 9) if known.find(b"x" * n + b"12345678") is not None] == [5, 6, 7, 8]
    long = b"x" * (templates.MAX_LITERAL_NBYTES + 1)
    learn(known, long + b"12345678", len(long), b"12345678")
    assert known.find(long + b"12345678") is None


def test_fields_yields_the_length_delimited_fields():
    data = b"\x08\x96\x01" + b"\x12\x02ab" + b"\x1d\0\0\0\0" + b"\x21" + bytes(8) + b"\x12\x00" + b"\xa2\x06\x01c"
    assert [(n, data[a:b]) for n, a, b in fields(data, 0, len(data))] == [(2, b"ab"), (2, b""), (100, b"c")]


def test_filler_is_removed():
    assert len(filler(12)) == 12
    assert cut(b"ab" + filler(8) + b"cd", filler(8)) == (b"ab", b"cd")


def infer(data, known):
    """The inputs of a message of KServe, and what is asked beside them."""
    return kserve_rpc.InferDecoder(data, known).columns(PACKED)


def infer_request(ids, floats, noted):
    made = test_kserve_rpc.request(ids, floats)
    if noted:
        # Messages of several lengths.
        made.parameters["note"].string_param = "x" * int(ids[0, 0] % 3)
    return made.SerializeToString()


def predict(data, known):
    """The same of a message of TensorFlow Serving."""
    decoder = tfs_rpc.PredictDecoder(data, known)
    return decoder.columns(PACKED), decoder.params


def predict_request(ids, floats, content):
    return test_tfs_rpc.request(ids, floats, content).SerializeToString()


CODECS = pytest.mark.parametrize(
    ("decode", "make"), [(infer, infer_request), (predict, predict_request)], ids=["KServe", "TensorFlow Serving"]
)


@CODECS
@given(rows=st.integers(1, 40), seed=st.integers(0, 7), other=st.booleans())
def test_templates_decode_like_the_protobuf_runtime(decode, make, rows, seed, other):
    random, known = np.random.default_rng(seed), Templates()
    for _ in range(3):
        ids = random.integers(-(2**63), 2**63 - 1, (rows, 3), np.int64)
        floats = random.random((rows, 2), np.float32)
        inputs, _ = decode(make(ids, floats, other), known)
        np.testing.assert_array_equal(inputs["ids"], ids)
        np.testing.assert_array_equal(inputs["floats"], floats)


@CODECS
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused_with_a_freshet_error(decode, make, data):
    with contextlib.suppress(FreshetError):
        decode(data, Templates())


@CODECS
@given(data=st.data())
def test_changed_request_decodes_equally_with_and_without_template(decode, make, data):
    known = Templates()
    made = bytearray(make(test_kserve_rpc.IDS, test_kserve_rpc.FLOATS, data.draw(st.booleans())))
    decode(bytes(made), known)
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for each in (known, Templates()):
        try:
            inputs, params = decode(bytes(made), each)
            outcomes.append(({name: np.array(inputs[name]).tobytes() for name in inputs}, params))
        except FreshetError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
