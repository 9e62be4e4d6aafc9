"""Chunked bodies, cut anywhere; and chunks that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.serving.http.http_head import MAX_FIELDS, MAX_HEAD_NBYTES, HttpProtocolError
from freshet_serving.serving.http.request_body import (
    CHUNKS_A_TURN,
    GROWTH_NBYTES,
    MAX_FRAMING_NBYTES,
    SHORT_NBYTES,
    BodyBuffer,
    ChunkedBody,
)


def chunked(pieces, extension=b"", trailers=b""):
    chunks = b"".join(b"%X%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return chunks + b"0" + extension + b"\r\n" + trailers + b"\r\n"


def taken(pieces):
    """(body, what is left of the bytes behind it) of bytes that come in pieces."""
    body, unread, taking, ended = bytearray(), bytearray(), ChunkedBody(), False
    for piece in pieces:
        unread += piece
        while not ended:
            ended = taking.take(unread, body)
            if not taking.more:
                break
    return bytes(body), bytes(unread), ended


def refused(*pieces):
    with pytest.raises(HttpProtocolError) as caught:
        taken(pieces)
    return caught.value.http_status


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    extension=st.sampled_from([b"", b";a", b" ; a=b", b';name="value"']),
    trailers=st.sampled_from([b"", b"x: 1\r\n", b"x: 1\r\ny: 2\r\n"]),
    cuts=st.lists(st.integers(0, 600), max_size=8),
)
def test_body_split_anywhere_is_equal_and_ends_at_its_end(pieces, extension, trailers, cuts):
    whole = chunked(pieces, extension, trailers)
    stream = whole + b"GET /next"
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    body, left, ended = taken(stream[a:b] for a, b in zip(edges, edges[1:]))
    assert (body, left, ended) == (b"".join(pieces), b"GET /next", True)


def test_body_read_bytewise_is_equal():
    whole = chunked([b"abc", b"d" * 300], b";x=y", b"t: 1\r\n")
    assert taken(whole[n : n + 1] for n in range(len(whole))) == (b"abc" + b"d" * 300, b"", True)


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1_0\r\n" + b"a" * 16 + b"\r\n",
        b"\r\n",
        b"1\na\r\n",
        b"1\r\na\n\r",
        b"1\r\nab\r\n",
        b"1\r\na\r\r\n",
        b"1;\na\r\n",
        b"1;a\nb\r\na\r\n",
        b"1;\x00\r\na\r\n",
        b"1\r\n\r\n0",
        b"f" * 16 + b"\r\n",
        b"1;" + b"a" * 300 + b"\r\n",
        b"1" * 300,
        b"0\r\nnot a trailer\r\n\r\n",
        b"0\r\nx: 1\ny: 2\r\n\r\n",
        b"0\r\n x: 1\r\n\r\n",
    ],
)
def test_malformed_chunk_is_refused(data):
    assert refused(data) == 400


def test_trailers_are_bounded_in_number_and_bytes():
    assert refused(b"0\r\n" + b"x: 1\r\n" * (MAX_FIELDS + 1) + b"\r\n") == 431
    assert refused(b"0\r\n", *[b"x" * 1000] * (MAX_HEAD_NBYTES // 1000 + 1)) == 431


def test_number_of_chunks_taken_at_once_is_limited():
    unread, body, taking = bytearray(chunked([b"ab"] * (2 * CHUNKS_A_TURN))), bytearray(), ChunkedBody()
    assert not taking.take(unread, body)
    assert taking.more
    assert len(body) == 2 * CHUNKS_A_TURN
    while not taking.take(unread, body):
        assert taking.more
    assert body == b"ab" * (2 * CHUNKS_A_TURN)


def test_tiny_chunks_are_accepted_up_to_a_framing_limit():
    tiny = b"1\r\na\r\n"
    fitting = MAX_FRAMING_NBYTES // (len(tiny) - 1)
    body, _, ended = taken([tiny * fitting, b"0\r\n\r\n"])
    assert (len(body), ended) == (fitting, True)
    assert refused(*[tiny * 10_000] * (2 * fitting // 10_000)) == 400
    large = chunked([b"a" * 64] * 100_000)
    assert len(taken([large])[0]) == 6_400_000


@given(
    st.lists(st.integers(0, SHORT_NBYTES), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(0, 4 * GROWTH_NBYTES)),
    st.integers(0, 255),
)
def test_body_joins_its_pieces_for_any_declared_length(lengths, told, seed):
    pieces = [bytes([(seed + n) % 256]) * length for n, length in enumerate(lengths)]
    body = BodyBuffer(pieces[0], told)
    for n, piece in enumerate(pieces[1:]):
        body.add(piece if n % 2 else bytearray(piece))
    whole = body.whole()
    assert len(body) == len(whole) == sum(lengths)
    assert bytes(whole) == b"".join(pieces)


def test_complete_body_is_read_only():
    for nbytes in (10, 2 * SHORT_NBYTES):
        body = BodyBuffer(bytes(nbytes), None)
        body.add(bytes(nbytes))
        assert memoryview(body.whole()).readonly


def test_declared_length_alone_allocates_no_memory():
    def resident_nbytes():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident_nbytes()
    bodies = []
    for _ in range(16):
        body = BodyBuffer(b"x", 64 << 20)
        body.add(bytes(SHORT_NBYTES))
        bodies.append(body)
    assert resident_nbytes() - before < 64 << 20
    assert {len(body) for body in bodies} == {SHORT_NBYTES + 1}
