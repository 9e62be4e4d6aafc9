import contextlib
import gzip
import random
import resource
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, TooLarge
from freshet_serving.processor.features.limits import FREE_NBYTES
from freshet_serving.processor.kernels.json_text import count_nodes
from freshet_serving.serving.codecs import wire


def test_gzip_and_deflate_bodies_are_inflated():
    assert wire.inflate(gzip.compress(b"abc", mtime=0), {b"content-encoding": b"gzip"}) == b"abc"
    assert wire.inflate(zlib.compress(b"abc"), {b"content-encoding": b"Deflate"}) == b"abc"
    assert wire.inflate(b"abc", {b"content-encoding": b"identity"}) == b"abc"
    assert wire.inflate(b"abc", {}) == b"abc"


def test_unknown_content_encoding_is_answered_415():
    with pytest.raises(wire.UnsupportedEncoding, match="expected gzip or deflate, got 'br'") as caught:
        wire.inflate(b"abc", {b"content-encoding": b"br"})
    assert caught.value.http_status == 415


def test_small_body_that_inflates_to_a_large_one_is_refused():
    bomb = gzip.compress(b"\0" * 1_000_000)
    assert len(bomb) < 2000
    with pytest.raises(TooLarge, match="after inflation"):
        wire.inflate(bomb, {b"content-encoding": b"gzip"}, wire.SizeLimit(2000))
    assert (
        wire.inflate(gzip.compress(b"\0" * 2000), {b"content-encoding": b"gzip"}, wire.SizeLimit(2000)) == b"\0" * 2000
    )


def test_body_over_the_limit_is_refused_before_inflation():
    with pytest.raises(TooLarge, match="expected at most 2 bytes, got 3"):
        wire.inflate(b"abc", {}, wire.SizeLimit(2))


@pytest.mark.parametrize(
    "body", [b"", b"abc", gzip.compress(b"abc", mtime=0)[:-1], gzip.compress(b"abc", mtime=0) + b"x"]
)
def test_broken_compressed_stream_is_refused(body):
    with pytest.raises(BadInput, match="gzip stream"):
        wire.inflate(body, {b"content-encoding": b"gzip"})


@pytest.mark.parametrize("coding", [b"x-gzip", b"X-GZIP", b"identity, gzip", b" gzip ,"])
def test_equal_spellings_of_gzip_are_inflated(coding):
    assert wire.inflate(gzip.compress(b"abc"), {b"content-encoding": coding}) == b"abc"


def test_members_of_a_gzip_stream_follow_each_other_within_the_limits():
    headers = {b"content-encoding": b"gzip"}
    assert wire.inflate(gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"c"), headers) == b"abc"
    with pytest.raises(TooLarge):
        wire.inflate(gzip.compress(bytes(1500)) * 2, headers, wire.SizeLimit(2000))
    with pytest.raises(BadInput, match="one complete gzip stream"):
        wire.inflate(gzip.compress(b"a") * (wire.MEMBERS + 1), headers)


def test_later_members_of_a_gzip_stream_are_read_in_pieces(monkeypatch):
    read = []

    class Counted:
        def __init__(self, bits):
            self._stream = open_stream(bits)

        def decompress(self, data, most):
            read.append(len(data))
            return self._stream.decompress(data, most)

        def __getattr__(self, name):
            return getattr(self._stream, name)

    open_stream = zlib.decompressobj
    monkeypatch.setattr(wire.zlib, "decompressobj", Counted)
    last = random.Random(1).randbytes(3 * wire.PIECE_NBYTES)
    body = b"".join(gzip.compress(part) for part in (b"ab", b"", b"c", last))
    assert wire.inflate(body, {b"content-encoding": b"gzip"}) == b"abc" + last
    assert max(read[1:]) == wire.PIECE_NBYTES


@given(st.binary(max_size=60), st.sampled_from([b"gzip", b"deflate"]))
def test_arbitrary_bytes_are_inflated_or_refused_with_a_freshet_error(body, coding):
    with contextlib.suppress(FreshetError):
        wire.inflate(body, {b"content-encoding": coding})


def test_json_nested_too_deeply_is_refused():
    with pytest.raises(BadInput):
        wire.load_json(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}")
    with pytest.raises(BadInput):
        wire.load_json(b'{"a":[NaN,' + b"[" * 100_000 + b"]" * 100_000 + b"]}")


def test_inflation_is_limited_by_ratio_with_a_free_minimum():
    headers = {b"content-encoding": b"gzip"}
    small = gzip.compress(bytes(FREE_NBYTES))
    assert len(wire.inflate(small, headers)) == FREE_NBYTES
    large = gzip.compress(bytes(FREE_NBYTES + 1))
    wanted = f"max_inflation: expected at most 100 times the {len(large)} received bytes after inflation, got more than"
    with pytest.raises(TooLarge, match=wanted):
        wire.inflate(large, headers)
    assert len(wire.inflate(large, headers, max_inflation=1000)) == FREE_NBYTES + 1
    dull = gzip.compress(random.Random(0).randbytes(8000) * 90)
    assert len(wire.inflate(dull, headers)) == 720_000


def test_ratio_limit_bounds_the_memory_of_a_bomb():
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="max_inflation"):
            wire.inflate(bomb[:20_000], {b"content-encoding": b"gzip"})
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_only_utf_8_is_accepted():
    with pytest.raises(BadInput):
        wire.load_json('{"a": NaN}'.encode("utf-16"))


def test_size_limit_bounds_the_memory_of_a_bomb():
    bomb = gzip.compress(b"\0" * (64 << 20), 1)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            wire.inflate(bomb, {b"content-encoding": b"gzip"}, wire.SizeLimit(len(bomb)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"instances": [1, 2,]}', "JSON Parse error: trailing comma is not allowed at offset: 19, got ',]}'"),
        (b'{"instances": tru}', "JSON Parse error: invalid literal, expected 'true' at offset: 14, got 'tru}'"),
        (b'{"instances": ', "JSON Parse error: unexpected end of data at offset: 14, got the end"),
        ('{"ü": x1}'.encode(), "JSON Parse error: unexpected character, expected a JSON value at offset: 6, got 'x1}'"),
    ],
)
def test_parse_error_quotes_the_unexpected_input(body, told):
    with pytest.raises(BadInput) as caught:
        wire.load_json(body)
    assert str(caught.value) == told


PIECES = [
    "[]",
    "{}",
    '{"a":1}',
    '{"user": 3, "tags": ["a"], "floats": [0.5, 0.5]}',
    "[1]",
    "9999",
    "0.5",
    '"é"',
    '"ab"',
    f'"{"x" * 100}😀"',
    "[1,1,1,1,1]",
    '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}',
    "[[[[[[[[]]]]]]]]",
]


def taken(text):
    tracemalloc.start()
    try:
        orjson.loads(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=30, deadline=None)  # tracing memory is slow
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_parsing_takes_no_more_than_both_bounds(pieces):
    text = f"[{','.join(pieces * 400)}]".encode()
    nodes = count_nodes(np.frombuffer(text, np.uint8))
    # The least of several: other threads of this process allocate as well.
    peak = min(taken(text) for _ in range(3))
    # The constant is the parser's own; documents that are checked are 64 KiB and longer.
    assert peak <= 1024 + wire.nbytes_of(nodes, len(text))
    assert peak <= 1024 + wire.MOST_PER_BYTE * len(text)


def test_short_document_is_not_checked(monkeypatch):
    monkeypatch.setattr(wire, "_is_free", lambda nbytes: pytest.fail("asked"))
    wire.check_memory(b"[" + b"1," * 100 + b"1]")


def test_document_is_counted_only_where_its_length_is_too_much(monkeypatch):
    asked = []
    monkeypatch.setattr(wire, "_is_free", lambda nbytes: asked.append(nbytes) or len(asked) == 2)
    text = b"[" + b"0.5," * 20_000 + b"1]"
    wire.check_memory(text)
    assert asked[0] == 64 * len(text)
    assert asked[1] < asked[0] / 2
    asked.append(0)
    with pytest.raises(NotReady, match="not enough memory"):
        wire.check_memory(memoryview(text))


CHILD = """
import resource, sys
from freshet_serving.processor.errors import NotReady
from freshet_serving.serving.codecs.wire import load_json

for piece in sys.argv[1:]:
    body = ('{"a": [' + ",".join([piece] * (1_500_000 // len(piece))) + "]}").encode()
    for more in (8, 30, 200):
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (int(line.split()[1]) * 1024 + (more << 20), resource.RLIM_INFINITY))
        try:
            load_json(body)
            print("parsed")
        except NotReady:
            print("refused")
"""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits on data are Linux's")
def test_document_without_memory_is_refused_and_kills_nobody():
    pieces = ["[]", '{"a":1}', "0.25", '"é"']
    child = subprocess.run([sys.executable, "-c", CHILD, *pieces], capture_output=True, text=True)
    assert child.returncode == 0, (child.returncode, child.stdout, child.stderr[-500:])
    replies = child.stdout.split()
    for at in range(len(pieces)):
        assert (replies[3 * at], replies[3 * at + 2]) == ("refused", "parsed"), replies
