"""Clients of a gRPC port that ends under load: what was called before they could know is answered."""

import socket
import sys
import threading

import grpc
import pytest

from serving.rpc import goaway
from serving.rpc.goaway import FRAME, say_goaway
from tests.serving.rpc.live import WAIT_S, Live, request, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the frame is written on Linux only")

INFER = "/inference.GRPCInferenceService/ModelInfer"
# What a client sends first: the preface, and SETTINGS without settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def frames(data):
    """(type, payload) of each whole frame."""
    found = []
    while len(data) >= 9 and len(data) >= 9 + (nbytes := int.from_bytes(data[:3], "big")):
        found.append((data[3], data[9 : 9 + nbytes]))
        data = data[9 + nbytes :]
    return found


def test_every_connection_of_the_port_gets_one_goaway_that_names_no_last_stream():
    with Live() as live:
        port = int(live.address.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(PREFACE)
            data = b""
            while not any(kind == 4 for kind, _ in frames(data)):
                data += client.recv(1 << 16)
            live.run(say_goaway(port))
            while not any(kind == 7 for kind, _ in frames(data)):
                data += client.recv(1 << 16)
            assert [payload for kind, payload in frames(data) if kind == 7] == [FRAME[9:]]
            assert FRAME[9:] == b"\x7f\xff\xff\xff" + bytes(4)


def test_a_port_without_connections_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(goaway, "TOLD_S", 10 * WAIT_S)
    with Live() as live:
        live.run(say_goaway(int(live.address.rsplit(":", 1)[1])))


def test_no_call_fails_that_was_made_before_its_client_could_know():
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
