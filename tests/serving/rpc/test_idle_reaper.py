"""Idle connections leave where connections run short, and nobody else does."""

import contextlib
import socket
import sys
import time

import grpc
import pytest

from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.rpc import idle_reaper, rpc_port
from freshet_serving.serving.rpc.idle_reaper import ActiveCalls, IdleReaper
from tests.serving.fakes import FakeProcessor
from tests.serving.rpc.live import WAIT_S, Live, request, scores
from tests.serving.rpc.test_port_sockets_goaway import PREFACE, frames
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets of the port are found on Linux only")

GOAWAY = 7


@pytest.fixture
def pressed(monkeypatch):
    """Eight connections; whoever is silent at all is idle, and looked at all the time."""
    monkeypatch.setattr(rpc_port.ConnectionLimits, "here", lambda: ConnectionLimits(8, 8, 8))
    monkeypatch.setattr(idle_reaper, "PRESSED_S", 0.05)
    monkeypatch.setattr(idle_reaper, "LOOK_S", 0.01)
    monkeypatch.setattr(idle_reaper, "TOLD_S", 0.0)


class Silent:
    """A client that has said its first words and says nothing more."""

    def __init__(self, live):
        host, _, port = live.address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self.data, self.ended, self.began_s = b"", False, time.monotonic()
        with contextlib.suppress(OSError):
            self.connection.sendall(PREFACE)
        self.connection.setblocking(False)

    def idle_s(self):
        return time.monotonic() - self.began_s

    def heard(self):
        """The frames that have come so far."""
        try:
            more = self.connection.recv(1 << 16)
            self.data, self.ended = self.data + more, self.ended or not more
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        return [kind for kind, _ in frames(self.data)]


@pytest.fixture
def silent():
    """Makes silent clients."""
    with contextlib.ExitStack() as made:

        def make(live, count=1):
            clients = [Silent(live) for _ in range(count)]
            for client in clients:
                made.callback(client.connection.close)
            return clients

        yield make


def test_new_connection_is_served_when_idle_ones_fill_the_port(pressed, silent):
    """They kept it out for ten minutes."""
    with Live() as live:
        silent(live, 20)

        def asked():
            with contextlib.suppress(grpc.RpcError):
                return scores(live.infer(request(), timeout=WAIT_S)) == [4.0]

        until(asked)


def test_reaped_connection_gets_a_goaway_and_is_closed(pressed, silent, monkeypatch):
    monkeypatch.setattr(rpc_port.ConnectionLimits, "here", lambda: ConnectionLimits(8, 1, 8))
    with Live() as live:
        (client,) = silent(live)
        until(lambda: client.heard() and client.ended)
        assert GOAWAY in client.heard()


def test_connection_with_a_running_call_is_kept(pressed, silent):
    processor = FakeProcessor(hold=True)
    with Live(processor) as live:
        call = live.infer.future(request(), timeout=WAIT_S)
        until(lambda: processor.held)
        clients, welcome = [], set()

        def left():
            clients.extend(silent(live))
            welcome.update(client for client in clients if client.heard())
            return sum(client.ended for client in welcome) >= 3

        until(left)
        processor.release()
        assert scores(call.result(WAIT_S)) == [4.0]


def test_only_excess_connections_are_reaped_longest_idle_first(pressed, silent, monkeypatch):
    with Live() as live:
        live.loop.call_soon_threadsafe(live.port._keeping.cancel)
        room, port, clients = IdleReaper(ActiveCalls(), 8), int(live.address.rpartition(":")[2]), []
        for _ in range(7):
            clients += silent(live)
            until(clients[-1].heard)
            # The kernel's clock ticks every some milliseconds.
            until(lambda first=clients[0]: first.idle_s() > 0.1)
        room.reap(port)
        assert room._told_s == {}
        clients += silent(live)
        until(clients[-1].heard)
        until(lambda: room.reap(port) or room._told_s)
        (first,) = room._told_s
        monkeypatch.setattr(idle_reaper, "TOLD_S", 3600)
        room.reap(port)
        assert list(room._told_s) == [first]
        until(lambda: GOAWAY in clients[0].heard())
        assert not any(GOAWAY in client.heard() for client in clients[1:])


def test_no_goaway_is_written_between_tls_frames(pressed, silent, monkeypatch):
    monkeypatch.setattr(idle_reaper, "send_goaway", lambda each: pytest.fail("written"))
    with Live() as live:
        live.loop.call_soon_threadsafe(live.port._keeping.cancel)
        room, port = IdleReaper(ActiveCalls(), 2, tls=True), int(live.address.rpartition(":")[2])
        clients = [client for _ in range(2) for client in silent(live)]
        for client in clients:
            until(client.heard)
        until(lambda: room.reap(port) or room._told_s)


def test_running_calls_are_identified_by_client_port():
    class Context:
        def __init__(self, peer):
            self.peer = lambda: peer

    answering = ActiveCalls()
    with answering.one(Context("ipv4:127.0.0.1:1234")), answering.one(Context("ipv6:%5B::1%5D:99")):
        with answering.one(Context("unix:")), answering.one(Context("ipv4:127.0.0.1:1234")):
            assert answering.ports() == {1234, 99}
        assert answering.ports() == {1234, 99}
    assert answering.ports() == set()
