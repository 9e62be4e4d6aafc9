"""Predict requests below ASGI, seen from the wire: raw bytes against a live server over the fake processor."""

import contextlib
import gzip
import json
import socket
import threading
import time

import pytest

from tests.serving.fakes import FakeProcessor
from tests.serving.http.talking import Talk
from tests.serving.test_server import running
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

BODY = json.dumps({"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}]}).encode()
SCORED = {"predictions": [[7.5]]}


LIMIT = 1 << 20


@pytest.fixture(scope="module")
def served():
    """(address, processor) of a server."""
    processor = FakeProcessor()
    with running(lambda config: processor, max_body_bytes=LIMIT) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        yield server.http_address, processor


@pytest.fixture
def processor(served):
    served[1].requests.clear()
    return served[1]


@pytest.fixture
def address(served):
    return served[0]


def post(body=BODY, path=b"/v1/models/ctr:predict", version=b"1.1", **headers):
    lines = b"".join(b"%s: %s\r\n" % (k.replace("_", "-").encode(), v) for k, v in headers.items())
    return b"POST %s HTTP/%s\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n%s" % (path, version, len(body), lines, body)


def request(address, data):
    """Send one request; return (status, headers, JSON) of its reply, as a list."""
    with socket.create_connection(address, timeout=30) as connection, connection.makefile("rb") as file:
        connection.sendall(data)
        return [read_reply(file)]


def read_reply(file):
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().strip().partition(": ")
        headers[name] = value
    return status, headers, json.loads(file.read(int(headers["content-length"])))


def test_long_request_does_not_block_other_replies(address, processor, monkeypatch):
    """Another connection's request is answered while a document is read; the connection's own waits its turn."""
    rows = {"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}] * 8000}
    long, elsewhere = json.dumps(rows).encode(), []
    gate, submit = threading.Event(), processor.submit

    def submit_late(asked, done, replica):
        if threading.current_thread().name.startswith("freshet-reading"):
            elsewhere.append(len(asked.inputs["ids"]))
            assert gate.wait(30)
        submit(asked, done, replica)

    monkeypatch.setattr(processor, "submit", submit_late)
    with socket.create_connection(address, timeout=30) as connection, connection.makefile("rb") as file:
        connection.sendall(post(long) + post())
        for _ in range(3):
            assert request(address, post())[0][2] == SCORED
        gate.set()
        assert read_reply(file)[2] == {"predictions": [[7.5]] * 8000}
        assert read_reply(file)[2] == SCORED
    assert elsewhere == [8000]


def test_request_unread_beyond_its_deadline_is_not_computed(address, processor, monkeypatch):
    """Its time counts from when the kernel had it: here, while another request holds up the loop."""
    held, gate, submit = threading.Event(), threading.Event(), processor.submit

    def submit_late(asked, done, replica):
        held.set()
        assert gate.wait(30)
        submit(asked, done, replica)

    monkeypatch.setattr(processor, "submit", submit_late)
    with contextlib.ExitStack() as stack:
        first, timed, patient = (stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3))
        first.sendall(post())
        assert held.wait(30)
        timed.sendall(post(x_request_timeout_ms=b"40"))
        patient.sendall(post(x_request_timeout_ms=b"30000"))
        began_s = time.monotonic()
        until(lambda: time.monotonic() - began_s > 0.1)
        processor.requests.clear()
        gate.set()
        files = [stack.enter_context(connection.makefile("rb")) for connection in (first, timed, patient)]
        replies = [read_reply(file) for file in files]
    assert [status for status, _, _ in replies] == [200, 504, 200]
    assert "before the request was read" in replies[1][2]["error"]
    assert [asked.timeout_s is None or asked.timeout_s < 30.0 for asked in processor.requests] == [True, True]


def test_request_is_answered_with_its_generation(address):
    ((status, headers, scores),) = request(address, post())
    assert (status, scores) == (200, SCORED)
    assert headers["x-model-generation"] == "3.17"
    assert headers["x-model-version"] == "3"
    assert headers["content-type"] == "application/json"


def test_http_1_0_keeps_its_connection_on_request(address):
    with socket.create_connection(address, timeout=30) as connection, connection.makefile("rb") as file:
        for _ in range(2):
            connection.sendall(post(version=b"1.0", expect=b"100-continue", connection=b"Keep-Alive"))
            status, headers, document = read_reply(file)
            assert (status, document, headers["connection"]) == (200, SCORED, "keep-alive")
        connection.sendall(post(version=b"1.0"))
        assert read_reply(file)[1]["connection"] == "close"
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
        (post(b" " * (LIMIT + 1)), 413, f"{LIMIT}"),
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


def test_reply_that_cannot_be_encoded_is_a_500(address, monkeypatch):
    from freshet_serving.serving.codecs import tfs_rest

    with monkeypatch.context() as broken:
        broken.setattr(tfs_rest, "encode", lambda *_: 1 / 0)
        ((status, _, reply),) = request(address, post())
        assert (status, reply) == (500, {"error": "internal error"})
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
    for _ in range(2):
        with socket.create_connection(address, timeout=30) as connection, connection.makefile("rb") as file:
            connection.sendall(post(connection=b"close"))
            status, headers, scores = read_reply(file)
            assert (status, headers["connection"], scores) == (200, "close", SCORED)
            assert file.read() == b""


JSON_LIMIT = "max_json_bytes: expected at most 100 bytes of JSON, got "
INFER = b"/v2/models/ctr/infer"
HEADED = "inference_header_content_length"


def talked(*pieces, **options):
    """Return (status, headers, JSON) of the one reply of a connection to pieces."""
    with Talk(**options) as talk:
        ((status, headers, body),) = talk.send(*pieces).replies()
    return status, headers, json.loads(body)


@pytest.mark.parametrize(
    ("path", "headers", "got"),
    [
        (b"/v1/models/ctr:predict", {}, "4000"),
        (b"/v1/models/ctr:predict", {"content_encoding": b"gzip"}, "4000"),
        (b"/v1/models/ctr:classify", {}, "4000"),
        (INFER, {}, "4000"),
        (INFER, {HEADED: b"101"}, "101"),
    ],
)
def test_json_with_an_excessive_declared_length_is_refused_early(path, headers, got):
    head = post(b"", path, **headers).replace(b"content-length: 0\r\n", b"content-length: 4000\r\n")
    status, _, reply = talked(head, max_json_bytes=100)
    assert status == 413
    assert reply["error"].startswith(f"{JSON_LIMIT}{got}; send tensors")


@pytest.mark.parametrize(("path", "headers"), [(b"/v1/models/ctr:processor", {}), (INFER, {HEADED: b"100"})])
def test_binary_body_may_exceed_the_json_limit(path, headers):
    status, _, reply = talked(post(bytes(4000), path, **headers), max_json_bytes=100, max_body_bytes=5000)
    assert (status, "max_" in reply["error"]) == (400, False), reply


def test_chunked_json_is_refused_once_it_is_too_long():
    head = post(b"", transfer_encoding=b"chunked").replace(b"content-length: 0\r\n", b"")
    status, _, reply = talked(head + b"65\r\n" + b" " * 101, max_json_bytes=100)
    assert status == 413
    assert reply["error"].startswith(f"{JSON_LIMIT}more")


@pytest.mark.parametrize("size", [1 << 20, 100])
@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("ids", [80_000, 3], (413, "max_rows: expected at most 65536 rows per request")),
        ("ids", [-1], (400, "inputs[ids].shape")),
        ("nobody", [1], (400, "unexpected inference input")),
    ],
)
def test_long_request_refused_by_its_header_is_not_awaited(name, shape, expected, size):
    nbytes = 1 << 22
    tensor = {"name": name, "datatype": "INT64", "shape": shape, "parameters": {"binary_data_size": nbytes}}
    text = json.dumps({"inputs": [tensor]}).encode()
    head = post(b"", INFER, **{HEADED: b"%d" % len(text)})
    begun = head.replace(b"content-length: 0\r\n", b"content-length: %d\r\n" % (len(text) + nbytes)) + text
    status, headers, reply = talked(*[begun[at : at + size] for at in range(0, len(begun), size)])
    assert (status, reply["error"][: len(expected[1])]) == expected
    assert headers["connection"] == "close"
