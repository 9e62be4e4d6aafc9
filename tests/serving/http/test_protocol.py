"""Predict requests below ASGI, seen from the wire: raw bytes against a live server over the fake processor."""

import contextlib
import gzip
import json
import socket
import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.serving.fakes import FakeProcessor
from tests.serving.test_server import running
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

BODY = json.dumps({"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}]}).encode()
SCORED = {"predictions": [[7.5]]}


@pytest.fixture
def processor():
    return FakeProcessor()


@pytest.fixture
def address(processor):
    with running(lambda config: processor, max_body_bytes=4096) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        processor.requests.clear()
        yield server.http_address


def post(body=BODY, path=b"/v1/models/ctr:predict", version=b"1.1", **headers):
    lines = b"".join(b"%s: %s\r\n" % (k.replace("_", "-").encode(), v) for k, v in headers.items())
    return b"POST %s HTTP/%s\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n%s" % (path, version, len(body), lines, body)


def request(address, data, replies=1, pieces=None):
    """Sends bytes, in pieces of a size if asked; returns (status, headers, JSON) of each reply."""
    with socket.create_connection(address, timeout=30) as connection:
        step = pieces or len(data)
        for at in range(0, len(data), step):
            connection.sendall(data[at : at + step])
        file = connection.makefile("rb")
        return [read_reply(file) for _ in range(replies)]


def read_reply(file):
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().strip().partition(": ")
        headers[name] = value
    return status, headers, json.loads(file.read(int(headers["content-length"])))


def test_long_request_does_not_block_other_replies(processor):
    """Another connection's request is answered while a document is read; the connection's own waits its turn."""
    with running(lambda config: processor) as (server, _, _):
        address = server.http_address
        until(lambda: request(address, post())[0][0] == 200)
        rows = {"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}] * 8000}
        long, elsewhere = json.dumps(rows).encode(), []
        gate, submit = threading.Event(), processor.submit

        def submit_late(asked, done, replica):
            if threading.current_thread().name.startswith("freshet-reading"):
                elsewhere.append(len(asked.inputs["ids"]))
                assert gate.wait(30)
            submit(asked, done, replica)

        processor.submit = submit_late
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(post(long) + post())
            for _ in range(3):
                assert request(address, post())[0][2] == SCORED
            gate.set()
            file = connection.makefile("rb")
            assert read_reply(file)[2] == {"predictions": [[7.5]] * 8000}
            assert read_reply(file)[2] == SCORED
        assert elsewhere == [8000]


def test_request_unread_beyond_its_deadline_is_not_computed(processor):
    """Its time counts from when the kernel had it: here, while another request holds up the loop."""
    with running(lambda config: processor) as (server, _, _):
        address = server.http_address
        until(lambda: request(address, post())[0][0] == 200)
        held, gate, submit = threading.Event(), threading.Event(), processor.submit

        def submit_late(asked, done, replica):
            held.set()
            assert gate.wait(30)
            submit(asked, done, replica)

        processor.submit = submit_late
        with contextlib.ExitStack() as stack:
            first, timed, patient = (
                stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3)
            )
            first.sendall(post())
            assert held.wait(30)
            timed.sendall(post(x_request_timeout_ms=b"40"))
            patient.sendall(post(x_request_timeout_ms=b"30000"))
            began_s = time.monotonic()
            until(lambda: time.monotonic() - began_s > 0.1)
            processor.requests.clear()
            gate.set()
            replies = [read_reply(connection.makefile("rb")) for connection in (first, timed, patient)]
        assert [status for status, _, _ in replies] == [200, 504, 200]
        assert "before the request was read" in replies[1][2]["error"]
        assert [asked.timeout_s is None or asked.timeout_s < 30.0 for asked in processor.requests] == [True, True]


def test_request_is_answered_with_its_generation(address):
    ((status, headers, scores),) = request(address, post())
    assert (status, scores) == (200, SCORED)
    assert headers["x-model-generation"] == "3.17"
    assert headers["x-model-version"] == "3"
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("pieces", [1, 7, 61])
def test_request_that_arrives_in_pieces_is_whole(address, pieces):
    assert request(address, post(), pieces=pieces)[0][2] == SCORED


def test_connection_carries_successive_requests(address, processor):
    with socket.create_connection(address, timeout=30) as connection:
        file = connection.makefile("rb")
        for _ in range(5):
            connection.sendall(post())
            assert read_reply(file)[2] == SCORED
    assert len(processor.requests) == 5


def test_pipelined_requests_are_answered_in_order(address):
    bodies = [json.dumps({"instances": [{"ids": [i, 0, 0], "floats": [0, 0]}]}).encode() for i in range(4)]
    get = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    data = post(bodies[0]) + post(bodies[1]) + get + post(bodies[2]) + post(bodies[3])
    replies = request(address, data, replies=5)
    assert [r[0] for r in replies] == [200] * 5
    assert [np.ravel(r[2]["predictions"])[0] for r in replies if "predictions" in r[2]] == [0, 1, 2, 3]
    assert replies[2][2] == {"live": True}


def test_connection_close_is_honoured(address):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(post(connection=b"close"))
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert b"connection: close" in data
    assert data.endswith(b"[[7.5]]}")


def test_shed_connection_announces_close_in_its_next_reply(processor):
    with running(lambda config: processor) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        with contextlib.ExitStack() as stack:
            connect = partial(socket.create_connection, server.http_address, timeout=30)
            both = [stack.enter_context(connect()) for _ in range(2)]
            files = [connection.makefile("rb") for connection in both]

            def ask(number, count=1):
                both[number].sendall(post() * count)
                replies = [read_reply(files[number]) for _ in range(count)]
                assert [(status, scores) for status, _, scores in replies] == [(200, SCORED)] * count
                return [headers.get("connection") for _, headers, _ in replies]

            assert [ask(0), ask(1)] == [[None], [None]]
            server._front.drain_some(1)
            said = [ask(0), ask(1)]
            assert sorted(said, key=str) == [["close"], [None]]
            assert files[said.index(["close"])].read() == b""
            staying = said.index([None])
            server._front.drain_some(5)
            # Not while another request is behind.
            assert ask(staying, 2) == [None, "close"]
            assert files[staying].read() == b""


def test_immediate_reply_is_not_last_when_another_request_follows(processor):
    with running(lambda config: processor) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        with socket.create_connection(server.http_address, timeout=30) as connection:
            file = connection.makefile("rb")
            connection.sendall(post())
            assert read_reply(file)[0] == 200
            server._front.drain_share(1.0)
            connection.sendall(post(path=b"/v1/models/none:predict") + post())
            replies = [read_reply(file)[:2] for _ in range(2)]
            assert [(status, headers.get("connection")) for status, headers in replies] == [(404, None), (200, "close")]
            assert file.read() == b""


def test_client_reads_its_refusal_while_still_sending(address):
    with socket.create_connection(address, timeout=30) as connection:
        head = post(b"").replace(b"content-length: 0", b"content-length: 1000000")
        connection.sendall(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(bytes(5000))
        assert read_reply(connection.makefile("rb"))[0] == 413


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_older_http_and_expect_continue_give_the_same_reply(address, version):
    with socket.create_connection(address, timeout=30) as connection:
        head, _, body = post(version=version, expect=b"100-continue", connection=b"close").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n" + body)
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert data.endswith(b"[[7.5]]}")


def test_http_1_0_keeps_its_connection_on_request(address):
    with socket.create_connection(address, timeout=30) as connection:
        file = connection.makefile("rb")
        for _ in range(2):
            connection.sendall(post(version=b"1.0", connection=b"Keep-Alive"))
            status, headers, document = read_reply(file)
            assert (status, document, headers["connection"]) == (200, SCORED, "keep-alive")
        connection.sendall(post(version=b"1.0"))
        assert read_reply(file)[:2][1]["connection"] == "close"
        assert file.read() == b""


def test_gzip_body_and_the_kserve_protocol_are_read(address):
    assert request(address, post(gzip.compress(BODY), content_encoding=b"gzip"))[0][2] == SCORED
    infer = {
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "floats", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]},
        ]
    }
    reply = request(address, post(json.dumps(infer).encode(), path=b"/v2/models/ctr/infer"))[0][2]
    assert reply["outputs"][0]["data"] == [7.5]


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (post(b"{"), 400, "JSON"),
        (post(path=b"/v1/models/none:predict"), 404, "none"),
        (post(path=b"/v1/models/ctr/versions/9:predict"), 404, "9"),
        (post(b" " * 5000), 413, "4096"),
        (post(x_request_timeout_ms=b"soon"), 400, "x-request-timeout-ms"),
        (post(content_encoding=b"br"), 415, "content-encoding"),
        (post(path=b"/v1/models//x:predict"), 400, "Malformed"),
    ],
)
def test_errors_have_their_status_and_the_server_continues(address, data, status, words):
    ((got, _, reply),) = request(address, data)
    assert got == status
    assert words in reply["error"]
    assert request(address, post())[0][2] == SCORED


@pytest.mark.parametrize(
    ("path", "headers", "wanted"),
    [
        (b"/v1/models/ctr:predict", {}, "max_json_bytes: expected at most 100 bytes of JSON, got 4000; send tensors"),
        (
            b"/v1/models/ctr:predict",
            {"content-encoding": b"gzip"},
            "max_json_bytes: expected at most 100 bytes of JSON, got 4000; send tensors",
        ),
        (b"/v1/models/ctr:classify", {}, "max_json_bytes: expected at most 100 bytes of JSON, got 4000; send tensors"),
        (b"/v2/models/ctr/infer", {}, "max_json_bytes: expected at most 100 bytes of JSON, got 4000; send tensors"),
        (
            b"/v2/models/ctr/infer",
            {"inference-header-content-length": b"101"},
            "max_json_bytes: expected at most 100 bytes of JSON, got 101; send tensors",
        ),
    ],
)
def test_json_with_an_excessive_declared_length_is_refused_early(processor, path, headers, wanted):
    with running(lambda config: processor, max_json_bytes=100) as (server, _, _):
        head = post(b"", path, **headers).replace(b"content-length: 0\r\n", b"content-length: 4000\r\n")
        [(status, _, body)] = request(server.http_address, head)
        assert status == 413
        assert body["error"].startswith(wanted)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (b"/v1/models/ctr:processor", {}),
        (b"/v2/models/ctr/infer", {"inference-header-content-length": b"100"}),
    ],
)
def test_binary_body_may_exceed_the_json_limit(processor, path, headers):
    with running(lambda config: processor, max_json_bytes=100, max_body_bytes=5000) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        [(status, _, body)] = request(server.http_address, post(bytes(4000), path, **headers))
        assert (status, "max_" in body["error"]) == (400, False), body


def test_chunked_json_is_refused_once_it_is_too_long(processor):
    with running(lambda config: processor, max_json_bytes=100) as (server, _, _):
        head = post(b"", **{"transfer-encoding": b"chunked"}).replace(b"content-length: 0\r\n", b"")
        [(status, _, body)] = request(server.http_address, head + b"65\r\n" + b" " * 101)
        assert status == 413
        assert body["error"].startswith("max_json_bytes: expected at most 100 bytes of JSON, got more")


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (
            {"name": "ids", "datatype": "INT64", "shape": [80_000, 3]},
            (413, "max_rows: expected at most 65536 rows per request"),
        ),
        ({"name": "ids", "datatype": "INT64", "shape": [-1]}, (400, "inputs[ids].shape")),
        ({"name": "nobody", "datatype": "INT64", "shape": [1]}, (400, "unexpected inference input")),
    ],
)
def test_long_request_refused_by_its_header_is_not_awaited(tensor, wanted):
    nbytes = 1 << 22
    described = {"inputs": [{**tensor, "parameters": {"binary_data_size": nbytes}}]}
    text = json.dumps(described).encode()
    with running(lambda config: FakeProcessor()) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        told = {"inference-header-content-length": b"%d" % len(text)}
        head = post(b"", b"/v2/models/ctr/infer", **told)
        begun = head.replace(b"content-length: 0\r\n", b"content-length: %d\r\n" % (len(text) + nbytes)) + text
        for pieces in (None, 100):
            [(status, headers, body)] = request(server.http_address, begun, pieces=pieces)
            assert (status, body["error"][: len(wanted[1])]) == wanted
            assert headers["connection"] == "close"


def test_client_that_disconnects_while_waiting_breaks_nothing(address, processor):
    processor.hold = True
    connection = socket.create_connection(address, timeout=30)
    connection.sendall(post())
    until(lambda: processor.held)
    connection.close()
    processor.hold = False
    assert request(address, post())[0][2] == SCORED
    processor.release()
    assert request(address, post())[0][2] == SCORED


def test_reply_that_cannot_be_encoded_is_a_500(address, monkeypatch):
    from freshet_serving.serving.codecs import tfs_rest

    with monkeypatch.context() as broken:
        broken.setattr(tfs_rest, "encode", lambda *_: 1 / 0)
        ((status, _, reply),) = request(address, post())
        assert (status, reply) == (500, {"error": "internal error"})
    assert request(address, post())[0][2] == SCORED


def test_invalid_http_is_refused_and_the_server_continues(address):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"\x00\x01nonsense\r\n\r\n")
        assert b"400" in connection.recv(4096)
    assert request(address, post())[0][2] == SCORED


def test_request_id_is_returned_by_every_path(address, processor):
    for version in (b"1.1", b"1.0"):
        ((status, headers, _),) = request(address, post(version=version, x_request_id=b"abc-1"))
        assert (status, headers["x-request-id"]) == (200, "abc-1")
        assert processor.requests[-1].request_id == "abc-1"
    ((status, headers, _),) = request(address, post(body=b"{", x_request_id=b"y" * 500))
    assert (status, headers["x-request-id"]) == (400, "y" * 128)
    assert "x-request-id" not in request(address, post())[0][1]


def test_cached_head_with_connection_close_closes_again(address):
    """Two connections with the very same bytes: what the first one taught must not keep the second one open."""
    closing = post(connection=b"close")
    for _ in range(2):
        with socket.create_connection(address, timeout=30) as connection:
            file = connection.makefile("rb")
            connection.sendall(closing)
            status, headers, scores = read_reply(file)
            assert (status, headers["connection"], scores) == (200, "close", SCORED)
            assert file.read() == b""
