"""TLS on the HTTP ports, seen from the wire: what gets through a handshake, how a connection ends, certificates that
change, and who connects and says nothing."""

import contextlib
import http.client
import json
import socket
import ssl
import threading

import pytest

from freshet_serving.serving.http import tls_transport
from tests.serving.access.certified import Authority
from tests.serving.fakes import FakeProcessor
from tests.serving.http.test_protocol import BODY, SCORED, post, read_reply
from tests.serving.test_server import running
from tests.support.extensions import needs
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

PREDICT = "/v1/models/ctr:predict"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def speaking(authority, processor=None, name="server", **options):
    chain, key = authority.write(name)
    options |= {"tls_cert": str(chain), "tls_key": str(key)}
    with running(lambda config: processor or FakeProcessor(), **options) as (server, _, _):
        yield server


@pytest.fixture(scope="module")
def server(authority):
    with speaking(authority, max_body_bytes=8 << 20) as server:
        until(lambda: ask(server.http_address, authority.client(), "GET", "/v2/health/ready")[0] == 200)
        yield server


def ask(address, context, method="POST", path=PREDICT, body=BODY):
    connection = http.client.HTTPSConnection(*address, timeout=30, context=context)
    try:
        connection.request(method, path, body if method == "POST" else None)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


@contextlib.contextmanager
def connected(address, context):
    with (
        socket.create_connection(address, timeout=30) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


@needs("admin")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_answered_on_both_ports(server, authority, version):
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    for _ in range(3):
        assert ask(server.http_address, context) == (200, SCORED)
    assert ask(server.admin_address, context, "GET", "/admin/health")[1]["ready"]
    assert ask(server.admin_address, context, "POST", "/admin/models/ctr/try")[1]["reply"] == SCORED


def test_one_tls_connection_carries_whole_split_and_pipelined_requests(server, authority):
    with connected(server.http_address, authority.client()) as connection:
        file = connection.makefile("rb")
        for _ in range(3):
            connection.sendall(post())
            assert read_reply(file)[2] == SCORED
        for byte in post():
            connection.sendall(bytes([byte]))
        assert read_reply(file)[2] == SCORED
        connection.sendall(post() * 3)
        assert [read_reply(file)[2] for _ in range(3)] == [SCORED] * 3


def test_data_sent_right_after_a_handshake_waits_for_it(server, authority, monkeypatch):
    monkeypatch.setattr(tls_transport, "MAX_EARLY_NBYTES", 1000)
    step, pause, much = ssl.SSLObject.do_handshake, tls_transport.TlsTransport.pause_reading, threading.Event()

    def slow(session):
        step(session)
        # The last step ends once much has come behind it.
        assert much.wait(30)

    monkeypatch.setattr(ssl.SSLObject, "do_handshake", slow)
    monkeypatch.setattr(tls_transport.TlsTransport, "pause_reading", lambda self: (pause(self), much.set()))
    with connected(server.http_address, authority.client()) as connection:
        connection.sendall(post(json.dumps({"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}] * 5000}).encode()))
        assert read_reply(connection.makefile("rb"))[0] == 200


def test_long_body_is_received_and_returned(server, authority):
    rows = 10_000
    body = json.dumps({"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}] * rows}).encode()
    status, reply = ask(server.http_address, authority.client(), body=body)
    assert (status, len(reply["predictions"])) == (200, rows)


def test_last_reply_ends_with_a_tls_close_notify(server, authority):
    context = authority.client()
    # With this a connection that is cut short raises.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    with connected(server.http_address, context) as connection:
        connection.sendall(post(connection=b"close"))
        file = connection.makefile("rb")
        assert read_reply(file)[1]["connection"] == "close"
        assert connection.recv(1) == b""


def test_old_tls_versions_and_plain_text_are_dropped(server, authority):
    old = authority.client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, OSError)):
        ask(server.http_address, old)
    for sent in (post(), b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x00" * 10):
        with socket.create_connection(server.http_address, timeout=30) as plain:
            with contextlib.suppress(OSError):
                plain.sendall(sent)
                plain.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while got := plain.recv(1024):
                    assert not got.startswith(b"HTTP/")
    assert ask(server.http_address, authority.client()) == (200, SCORED)


@needs("admin")
def test_only_clients_with_a_trusted_certificate_connect(authority, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    with speaking(authority, name="strict", tls_client_ca=str(authority.path)) as server:
        context = authority.client(authority.write("client"))
        until(lambda: ask(server.http_address, context, "GET", "/v2/health/ready")[0] == 200)
        for wrong in (authority.client(), authority.client(stranger.write("client"))):
            with pytest.raises((ssl.SSLError, OSError)):
                ask(server.http_address, wrong)
            with pytest.raises((ssl.SSLError, OSError)):
                ask(server.admin_address, wrong, "GET", "/admin/health")
        assert ask(server.http_address, context) == (200, SCORED)


def test_certificates_change_under_load_without_failed_requests(authority, monkeypatch):
    monkeypatch.setattr("freshet_serving.serving.access.credentials.LOOK_S", 0.01)
    with speaking(authority, name="rotating") as server:
        context = authority.client()
        until(lambda: ask(server.http_address, context, "GET", "/v2/health/ready")[0] == 200)
        ended, failed, answered = threading.Event(), [], [0]

        def shown():
            with connected(server.http_address, context) as connection:
                return connection.getpeercert()["serialNumber"]

        def load():
            while not ended.is_set():
                try:
                    assert ask(server.http_address, context) == (200, SCORED)
                    answered[0] += 1
                except Exception as error:
                    failed.append(error)

        def rotate():
            before, goal = shown(), answered[0] + 5
            authority.write("rotating")
            until(lambda: shown() != before)
            until(lambda: answered[0] >= goal or failed)

        with connected(server.http_address, context) as kept:
            file = kept.makefile("rb")
            loading = [threading.Thread(target=load) for _ in range(2)]
            for thread in loading:
                thread.start()
            try:
                for _ in range(2):
                    rotate()
                    kept.sendall(post())
                    assert read_reply(file)[2] == SCORED
            finally:
                ended.set()
                for thread in loading:
                    thread.join(30)
        assert failed == []


def test_silent_connections_do_not_block_new_handshakes(authority, monkeypatch):
    monkeypatch.setattr(tls_transport, "MOST_HANDSHAKES", 4)
    with speaking(authority, name="silent") as server, contextlib.ExitStack() as silent:
        context = authority.client()
        until(lambda: ask(server.http_address, context, "GET", "/v2/health/ready")[0] == 200)
        first = [silent.enter_context(socket.create_connection(server.http_address, timeout=30)) for _ in range(12)]
        assert ask(server.http_address, context) == (200, SCORED)
        # The one that has waited longest goes first.
        assert gone(first[0])


def test_handshake_has_a_timeout(authority, monkeypatch):
    monkeypatch.setattr(tls_transport, "HANDSHAKE_S", 0.05)
    with speaking(authority, name="slow") as server:
        with socket.create_connection(server.http_address, timeout=30) as silent:
            assert gone(silent)
        with socket.create_connection(server.http_address, timeout=30) as half:
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert gone(half)


def test_server_ends_while_handshakes_wait(authority):
    with speaking(authority, name="ending") as server, contextlib.ExitStack() as silent:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            one = silent.enter_context(socket.create_connection(server.http_address, timeout=30))
            one.sendall(sent)
        until(lambda: ask(server.http_address, authority.client(), "GET", "/v2/health/ready")[0] == 200)


def gone(connection):
    try:
        return connection.recv(1) == b""
    except OSError:
        return True
