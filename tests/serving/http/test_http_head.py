"""Heads as they must be, and every way in which one party could read them otherwise."""

import contextlib
import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.serving.http.http_head import (
    MAX_FIELDS,
    MAX_KEPT,
    MAX_KEPT_NBYTES,
    HeadCache,
    HttpProtocolError,
    check_trailers,
    read_head,
    split_target,
)
from freshet_serving.serving.http.paths import parse
from tests.serving.fakes import FakeProcessor
from tests.serving.http.test_protocol import post, read_reply, request
from tests.serving.test_server import running
from tests.support.waiting import until

HOST = b"Host: x\r\n"


def head(*lines, line=b"POST /a HTTP/1.1", host=HOST):
    return line + b"\r\n" + host + b"".join(each + b"\r\n" for each in lines) + b"\r\n"


def refused(data):
    with pytest.raises(HttpProtocolError) as caught:
        read_head(data)
    return caught.value.http_status


def test_head_has_its_line_fields_and_body_length():
    read = read_head(head(b"Content-Length: 12", b"X-A:  b c\t ", b"X-A: d"))
    assert (read.method, read.target, read.version) == (b"POST", b"/a", "1.1")
    assert read.fields == [(b"host", b"x"), (b"content-length", b"12"), (b"x-a", b"b c"), (b"x-a", b"d")]
    assert read.headers[b"x-a"] == b"d"
    assert (read.keep_alive, read.expects, read.nbytes) == (True, False, 12)


def test_body_has_a_length_or_is_chunked_or_absent():
    assert read_head(head()).nbytes == 0
    assert read_head(head(b"content-length: 007")).nbytes == 7
    assert read_head(head(b"transfer-encoding: Chunked")).nbytes is None


@pytest.mark.parametrize(
    ("lines", "line", "kept"),
    [
        ((), b"GET / HTTP/1.1", True),
        ((b"connection: keep-alive",), b"GET / HTTP/1.1", True),
        ((b"connection: Close",), b"GET / HTTP/1.1", False),
        ((b"connection: upgrade, close",), b"GET / HTTP/1.1", False),
        ((b"connection: upgrade", b"connection: close"), b"GET / HTTP/1.1", False),
        ((b"connection: keep-alive",), b"GET / HTTP/1.0", True),
        ((b"connection: keep-alive, close",), b"GET / HTTP/1.0", False),
    ],
)
def test_connection_persistence_follows_the_client(lines, line, kept):
    assert read_head(head(*lines, line=line)).keep_alive is kept


def test_upgrade_is_an_ordinary_field():
    read = read_head(head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"content-length: 3"))
    assert (read.keep_alive, read.nbytes) == (True, 3)


def test_expect_continue_is_recognised():
    assert read_head(head(b"expect: 100-Continue", b"content-length: 3")).expects
    assert not read_head(head(b"expect: 100-continue", line=b"GET / HTTP/1.0")).expects


@pytest.mark.parametrize(
    "data",
    [
        head(b"content-length: 5", b"transfer-encoding: chunked"),
        head(b"content-length: 5", b"content-length: 5"),
        head(b"content-length: 5", b"Content-Length: 6"),
        head(b"content-length: 5, 5"),
        head(b"content-length: +5"),
        head(b"content-length: -5"),
        head(b"content-length: 5.0"),
        head(b"content-length: 0x5"),
        head(b"content-length: 5 5"),
        head(b"content-length:"),
        head(b"content-length: " + b"9" * 19),
        head("content-length: \u0665".encode()),
        head(b"transfer-encoding: chunked", b"transfer-encoding: chunked"),
        head(b"transfer-encoding: chunked", b"transfer-encoding: identity"),
        head(b"transfer-encoding: chunked, chunked"),
        head(b"transfer-encoding: gzip, chunked"),
        head(b"transfer-encoding: chunked, gzip"),
        head(b"transfer-encoding: xchunked"),
        head(b"transfer-encoding: chunked;q=1"),
        head(b"transfer-encoding:"),
        head(b"transfer-encoding: \x0bchunked"),
        head(b"transfer-encoding: chunked", line=b"POST / HTTP/1.0"),
        head(b"transfer-encoding : chunked"),
        head(b"content-length : 5"),
        head(b"content-length\t: 5"),
        head(b" content-length: 5"),
        head(b"x: 1", b" folded: 2"),
        head(b"x: 1", b"\tfolded"),
        head(b"x: 1\ny: 2"),
        head(b"x: 1\n\r\ny: 2"),
        head(b"x: 1\ry: 2"),
        head(b"x: 1\r\r\ny: 2"),
        head(b"x: 1\x00"),
        head(b"x: \x7f"),
        head(b"x"),
        head(b": 1"),
        head(b"x y: 1"),
        head(b"x(y): 1"),
        head("\u00e4: 1".encode()),
        head(b"content-length: 5\x00"),
        head(b"host: y"),
        head(host=b""),
        head(b"host: y", line=b"GET / HTTP/1.0"),
        head(line=b""),
        head(line=b"POST"),
        head(line=b"POST /a"),
        head(line=b"POST  /a HTTP/1.1"),
        head(line=b"POST /a  HTTP/1.1"),
        head(line=b"POST /a HTTP/1.1 "),
        head(line=b" POST /a HTTP/1.1"),
        head(line=b"POST\t/a\tHTTP/1.1"),
        head(line=b"POST /a b HTTP/1.1"),
        head(line=b"POST /a HTTP/11"),
        head(line=b"POST /a http/1.1"),
        head(line=b"POST /a HTTP/1.1.1"),
        head(line="POST /\u00e4 HTTP/1.1".encode()),
        head(line=b"PO(ST /a HTTP/1.1"),
        head(line=b"X" * 33 + b" /a HTTP/1.1"),
        b"POST /a HTTP/1.1\nhost: x\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_ambiguous_head_is_refused(data):
    assert refused(data) == 400


@pytest.mark.parametrize("version", [b"0.9", b"1.2", b"2.0", b"3.0"])
def test_unsupported_http_version_is_named(version):
    assert refused(head(line=b"POST / HTTP/" + version)) == 505


def test_number_of_fields_is_limited():
    lines = [b"x: %d" % n for n in range(MAX_FIELDS)]
    assert len(read_head(head(*lines[1:])).fields) == MAX_FIELDS
    assert refused(head(*lines)) == 431


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"/a%20b?x=1?y", b"/a%20b", b"x=1?y"),
        (b"/a#part", b"/a", b""),
        (b"http://somewhere/a?b", b"/a", b"b"),
        (b"HTTPS://u@somewhere:1/a", b"/a", b""),
    ],
)
def test_target_is_a_path_and_a_query(target, path, query):
    assert split_target(target) == (path, query)


@pytest.mark.parametrize("target", [b"*", b"a", b"host:80", b"ftp://x/a", b"?a", b"http://x"])
def test_target_without_a_path_is_refused(target):
    with pytest.raises(HttpProtocolError):
        split_target(target)


@pytest.mark.parametrize("lines", [b"", b"x: 1\r\n", b"x: 1\r\ncontent-length: 5\r\n"])
def test_trailers_are_header_fields(lines):
    check_trailers(lines)


@pytest.mark.parametrize("lines", [b"x\r\n", b" x: 1\r\n", b"x: 1\ny: 2\r\n", b"x : 1\r\n", b"GET / HTTP/1.1\r\n"])
def test_invalid_trailers_are_refused(lines):
    with pytest.raises(HttpProtocolError):
        check_trailers(lines)


TOKENS = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=12).map(str.encode)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=20).map(
    lambda text: text.encode("latin-1")
)


@given(st.lists(st.tuples(TOKENS, VALUES, st.sampled_from([b"", b" ", b"\t ", b"   "])), max_size=20))
def test_any_fields_round_trip(fields):
    written = [b"x-" + name + b":" + pad + value + pad for name, value, pad in fields]
    read = read_head(head(*written))
    assert read.fields[1:] == [(b"x-" + name.lower(), value) for name, value, _ in fields]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_head_or_a_protocol_error(data):
    for made in (data, head(data), b"POST " + data + b" HTTP/1.1\r\n" + HOST + b"\r\n"):
        with contextlib.suppress(HttpProtocolError):
            read_head(made)


@pytest.mark.parametrize("name", [b"authorization", b"Authorization", b"host", b"content-length"])
def test_header_on_which_much_depends_comes_once(name):
    head = b"GET / HTTP/1.1\r\nhost: a\r\n%b: 1\r\n%b: 1\r\n\r\n" % (name, name)
    with pytest.raises(HttpProtocolError, match=f"{name.decode().lower()}: expected once, got it again"):
        read_head(head)


ROUTE = parse(b"/v1/models/ctr:predict")


def repeated_head(nbytes, more=b""):
    return b"POST /v1/models/ctr:predict HTTP/1.1\r\ncontent-length: %d\r\n%s\r\n" % (nbytes, more)


def kept(data, headers):
    heads = HeadCache()
    heads.keep(data, ROUTE, headers)
    return heads.split(data)


def test_request_with_a_cached_head_is_split_without_a_parser():
    headers = {b"content-length": b"4"}
    known, body = kept(repeated_head(4) + b"body", headers)
    assert (known.route, known.headers, body) == (ROUTE, headers, b"body")


def test_cached_head_with_a_different_body_length_is_parsed():
    heads = HeadCache()
    heads.keep(repeated_head(4) + b"body", ROUTE, {b"content-length": b"4"})
    for rest in (b"", b"bod", b"body+", b"bodybody"):
        assert heads.split(repeated_head(4) + rest) is None
    assert heads.split(repeated_head(5) + b"body+") is None


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (repeated_head(4) + b"body", {}),
        (repeated_head(4) + b"body", {b"content-length": b"4", b"transfer-encoding": b"chunked"}),
        (repeated_head(4) + b"body and more", {b"content-length": b"4"}),
        (repeated_head(4) + b"body", {b"content-length": b"+4"}),
        (repeated_head(4) + b"body", {b"content-length": b"9" * 19}),
        (b"content-length: 4\r\nbody", {b"content-length": b"4"}),
        (repeated_head(4, b"x: %b\r\n" % (b"y" * MAX_KEPT_NBYTES)) + b"body", {b"content-length": b"4"}),
    ],
)
def test_only_whole_requests_with_a_declared_length_are_cached(data, headers):
    assert kept(data, headers) is None


def test_head_cache_is_bounded():
    heads = HeadCache()
    for n in range(10 * MAX_KEPT):
        heads.keep(repeated_head(1, b"x-request-id: %d\r\n" % n) + b"1", ROUTE, {b"content-length": b"1"})
    assert len(heads._kept) <= MAX_KEPT


@pytest.fixture(scope="module")
def address():
    processor = FakeProcessor()
    with running(lambda config: processor, max_body_bytes=4096) as (server, _, _):
        until(lambda: request(server.http_address, row(1))[0][0] == 200)
        yield server.http_address


def row(n):
    return post(json.dumps({"instances": [{"ids": [n, 2, 3], "floats": [0.5, 1]}]}).encode())


def chunked(n):
    whole = row(n).partition(b"\r\n\r\n")[2]
    lines = b"POST /v1/models/ctr:predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return lines + b"%x\r\n%s\r\n0\r\n\r\n" % (len(whole), whole)


def metadata(_):
    return b"GET /v1/models/ctr HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.e2e
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(st.sampled_from([row, row, row, chunked, metadata]), st.integers(0, 9)), max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_request_stream_split_anywhere_is_answered_in_order(address, asked, cuts):
    stream = b"".join(make(n) for make, n in asked)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    with socket.create_connection(address, timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, stop in zip(edges, edges[1:]):
            connection.sendall(stream[start:stop])
        file = connection.makefile("rb")
        for make, n in asked:
            status, _, reply = read_reply(file)
            assert status == 200
            assert make is metadata or reply == {"predictions": [[6.5 + n]]}


def test_head_with_a_request_id_is_not_cached():
    for name in (b"x-request-id", b"x-sticky-key", b"traceparent"):
        heads = HeadCache()
        data = b"POST /v2/models/ctr/infer HTTP/1.1\r\ncontent-length: 1\r\n%b: abc\r\n\r\nx" % name
        heads.keep(data, ROUTE, {b"content-length": b"1", name: b"abc"})
        assert heads.split(data) is None
