"""Clients of a gRPC port that ends under load: what was called before they could know is answered."""

import asyncio
import math
import socket
import sys
import threading

import grpc
import pytest

from freshet_serving.serving.rpc import port_sockets
from freshet_serving.serving.rpc.port_sockets import FRAME, send_goaway_to_all
from tests.serving.rpc.live import WAIT_S, Live, request
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the frame is written on Linux only")

INFER = "/inference.GRPCInferenceService/ModelInfer"
SETTINGS, GOAWAY = 4, 7
# What a client sends first: the preface, and SETTINGS without settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def frames(data):
    """(type, payload) of each whole frame."""
    found = []
    while len(data) >= 9 and len(data) >= 9 + (nbytes := int.from_bytes(data[:3], "big")):
        found.append((data[3], data[9 : 9 + nbytes]))
        data = data[9 + nbytes :]
    return found


class Client:
    """A connection that has said its first words. said(): what it has got, until a frame of that type is there."""

    def __init__(self, port):
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.connection.sendall(PREFACE)
        self.data = b""

    def said(self, kind):
        while not any(got == kind for got, _ in frames(self.data)):
            self.data += self.connection.recv(1 << 16)
        return [payload for got, payload in frames(self.data) if got == kind]


def test_every_connection_gets_one_goaway_even_when_accepted_late(monkeypatch):
    # The kernel would refuse it: what comes late was in the queue.
    monkeypatch.setattr(port_sockets, "refuse_new_connections", lambda listener: None)
    monkeypatch.setattr(port_sockets, "TOLD_S", WAIT_S)
    with Live() as live:
        port = int(live.address.rsplit(":", 1)[1])
        first = Client(port)
        first.said(SETTINGS)
        ended = live.loop.time() + WAIT_S
        telling = asyncio.run_coroutine_threadsafe(send_goaway_to_all(port, lambda: 0, ended), live.loop)
        assert first.said(GOAWAY) == [FRAME[9:]]
        late = Client(port)
        assert late.said(GOAWAY) == [FRAME[9:]]
        assert FRAME[9:] == b"\x7f\xff\xff\xff" + bytes(4)
        telling.cancel()
        for client in (first, late):
            assert len(client.said(GOAWAY)) == 1
            client.connection.close()


def test_port_without_connections_is_not_awaited(monkeypatch):
    monkeypatch.setattr(port_sockets, "TOLD_S", 10 * WAIT_S)
    # However late a slow machine looks.
    monkeypatch.setattr(port_sockets, "LATE_S", WAIT_S)
    with Live() as live:
        live.run(send_goaway_to_all(int(live.address.rsplit(":", 1)[1]), lambda: 0, math.inf))


def test_no_call_made_before_the_goaway_fails():
    failed, answered, ended, clients = [], [], threading.Event(), 6

    def ask(address):
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(INFER)
            while not ended.is_set():
                try:
                    call(request().SerializeToString(), timeout=WAIT_S)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or "connect" not in error.details().lower():
                        failed.append((error.code(), error.details()))
                    return
                answered.append(1)

    with Live(shutdown_timeout_s=WAIT_S) as live:
        threads = [threading.Thread(target=ask, args=(live.address,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        until(lambda: failed or len(answered) >= 20 * clients)
        live.run(live.port.stop())
        live.reserved.close()
        for thread in threads:
            thread.join(WAIT_S)
        ended.set()
    assert failed == [], failed
