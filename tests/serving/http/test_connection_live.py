"""Bounds of connections, seen from the wire: raw bytes against both HTTP ports of a live server."""

import http.client
import json
import socket
import threading

import pytest

from tests.serving.fakes import FakeProcessor
from tests.serving.http.test_protocol import BODY, SCORED, post, read_reply, request
from tests.serving.test_server import fetch, running
from tests.support.extensions import needs
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

UPGRADE = {"connection": b"Upgrade, HTTP2-Settings", "upgrade": b"h2c", "http2_settings": b"AAMAAABkAAQAAP__"}
LARGE = 1 << 20


@pytest.fixture(scope="module")
def server():
    with running(lambda config: FakeProcessor(), max_body_bytes=LARGE) as (server, _, _):
        until(lambda: request(server.http_address, post())[0][0] == 200)
        yield server


@pytest.fixture(scope="module")
def address(server):
    return server.http_address


def connect(address):
    connection = socket.create_connection(address, timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def talk(address, *pieces):
    """Everything that comes back for pieces, each sent by itself, until the server closes."""
    with connect(address) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return connection.makefile("rb").read()


@needs("admin")
def test_separate_body_after_an_upgrade_is_read_on_both_ports(server):
    label = json.dumps({"version": 3}).encode()
    put = b"PUT /admin/models/ctr/labels/x HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    asked = (
        (server.http_address, post(**UPGRADE)[: -len(BODY)], BODY, SCORED),
        (server.admin_address, put + b"content-length: %d\r\n\r\n" % len(label), label, {"model": "ctr"}),
    )
    for address, head, body, wanted in asked:
        with connect(address) as connection:
            file = connection.makefile("rb")
            for _ in range(3):
                connection.sendall(head)
                connection.sendall(body)
                status, _, reply = read_reply(file)
                assert (status, reply | wanted) == (200, reply)


@needs("admin")
@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 3\r\ncontent-length: 30\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        b"content-length : 3\r\n",
        b"x: 1\r\n content-length: 3\r\n",
        b"x: 1\ncontent-length: 3\r\n",
    ],
)
def test_possible_request_smuggling_ends_the_connection_on_both_ports(server, head):
    for port in (server.http_address, server.admin_address):
        said = talk(port, b"POST / HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert said.count(b"HTTP/1.1 ") == 1


def test_client_reads_its_refusal_after_sending_everything(address):
    assert talk(address, post(bytes(8 * LARGE)), bytes(8 * LARGE)).startswith(b"HTTP/1.1 413 ")
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("POST", "/v1/models/ctr:predict", bytes(16 * LARGE))
    assert connection.getresponse().status == 413
    connection.close()


@needs("admin")
def test_endless_head_is_refused_on_both_ports(server):
    for port in (server.http_address, server.admin_address):
        assert talk(port, b"GET / HTTP/1.1\r\nx: ", *[b"y" * 1000] * 80).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("count", [1, 3])
def test_half_closed_client_gets_its_replies(address, count):
    with connect(address) as connection:
        connection.sendall(post() * count)
        connection.shutdown(socket.SHUT_WR)
        file = connection.makefile("rb")
        assert [read_reply(file)[2] for _ in range(count)] == [SCORED] * count
        assert file.read() == b""


@needs("admin")
def test_half_closed_client_of_a_page_gets_its_reply(server):
    for port in (server.http_address, server.admin_address):
        with connect(port) as connection:
            connection.sendall(b"GET /docs HTTP/1.1\r\nhost: localhost\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


def test_expect_continue_is_answered_before_the_body_or_refused(address):
    head = post(expect=b"100-continue")[: -len(BODY)]
    with connect(address) as connection:
        file = connection.makefile("rb")
        connection.sendall(head)
        assert file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert file.readline() == b"\r\n"
        connection.sendall(BODY)
        assert read_reply(file)[2] == SCORED
    large = (
        b"POST /v1/models/ctr:predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 99999999\r\n\r\n"
    )
    assert talk(address, large).startswith(b"HTTP/1.1 413 ")


def test_many_slow_clients_do_not_block_replies(address):
    slow = [connect(address) for _ in range(50)]
    for n, connection in enumerate(slow):
        connection.sendall(post()[: 20 + n])
    threads = [threading.Thread(target=fetch, args=(address, "/v1/models/ctr:predict", BODY)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetch(address, "/v1/models/ctr:predict", BODY) == (200, SCORED)
    for connection in slow:
        connection.close()
