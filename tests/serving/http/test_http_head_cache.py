"""Heads of requests known by their bytes: what is kept, and that it changes no answer, seen from the wire."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.serving.http.http_head import MAX_KEPT, MAX_KEPT_NBYTES, HeadCache
from freshet_serving.serving.http.paths import parse
from tests.serving.fakes import FakeProcessor
from tests.serving.http.test_protocol import post, read_reply, request
from tests.serving.test_server import running
from tests.support.waiting import until

ROUTE = parse(b"/v1/models/ctr:predict")


def head(nbytes, more=b""):
    return b"POST /v1/models/ctr:predict HTTP/1.1\r\ncontent-length: %d\r\n%s\r\n" % (nbytes, more)


def kept(data, headers):
    heads = HeadCache()
    heads.keep(data, ROUTE, headers)
    return heads.split(data)


def test_request_with_a_cached_head_is_split_without_a_parser():
    headers = {b"content-length": b"4"}
    known, body = kept(head(4) + b"body", headers)
    assert (known.route, known.headers, body) == (ROUTE, headers, b"body")


def test_cached_head_with_a_different_body_length_is_parsed():
    heads = HeadCache()
    heads.keep(head(4) + b"body", ROUTE, {b"content-length": b"4"})
    for rest in (b"", b"bod", b"body+", b"bodybody"):
        assert heads.split(head(4) + rest) is None
    assert heads.split(head(5) + b"body+") is None


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (head(4) + b"body", {}),
        (head(4) + b"body", {b"content-length": b"4", b"transfer-encoding": b"chunked"}),
        (head(4) + b"body and more", {b"content-length": b"4"}),
        (head(4) + b"body", {b"content-length": b"+4"}),
        (head(4) + b"body", {b"content-length": b"9" * 19}),
        (b"content-length: 4\r\nbody", {b"content-length": b"4"}),
        (head(4, b"x: %b\r\n" % (b"y" * MAX_KEPT_NBYTES)) + b"body", {b"content-length": b"4"}),
    ],
)
def test_only_whole_requests_with_a_declared_length_are_cached(data, headers):
    assert kept(data, headers) is None


def test_head_cache_is_bounded():
    heads = HeadCache()
    for n in range(10 * MAX_KEPT):
        heads.keep(head(1, b"x-request-id: %d\r\n" % n) + b"1", ROUTE, {b"content-length": b"1"})
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
