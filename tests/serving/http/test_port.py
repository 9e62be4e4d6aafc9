"""How many connections a port has, and what becomes of the next one."""

import asyncio
import contextlib
import functools
import socket

import pytest

from freshet_serving.serving.front.resource_limits import BodyMemory
from freshet_serving.serving.http import connection_draining
from freshet_serving.serving.http import port as port_module
from freshet_serving.serving.http.connection import HttpConnection
from freshet_serving.serving.http.port import HttpPort, listen
from tests.serving.http.talking import echo
from tests.serving.rpc.live import Live
from tests.support.coroutines import on_loop
from tests.support.descriptors import few_descriptors

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
WAIT_S = 30


@pytest.fixture(autouse=True)
def short_linger(monkeypatch):
    """Clients that never finish keep no connection open."""
    monkeypatch.setattr(connection_draining, "LINGER_S", 0.02)


def reached(port):
    """The loopback addresses on which a port takes connections."""
    addresses = []
    for address in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=WAIT_S):
            addresses.append(address)
    return addresses


HOSTS = {"127.0.0.1": ["127.0.0.1"], "::1": ["::1"], "0.0.0.0": ["127.0.0.1"], "::": ["127.0.0.1", "::1"]}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
@pytest.mark.parametrize(("host", "addresses"), HOSTS.items())
def test_http_and_grpc_listen_on_the_same_families(host, addresses):
    with listen(host, 0) as listener:
        assert reached(listener.getsockname()[1]) == addresses
    with Live(host=host) as live:
        assert reached(int(live.address.rpartition(":")[2])) == addresses


@contextlib.asynccontextmanager
async def serving(most, listener=None):
    listener = listener or socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    port = HttpPort(echo, listener, 1.0, functools.partial(HttpConnection, bodies=BodyMemory(1 << 20)), most)
    task = asyncio.create_task(port.listen())
    await port.listening.wait()
    try:
        yield port, address
    finally:
        port.end()
        await task


class Client:
    """A connection to a port."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, address):
        return cls(*await asyncio.open_connection(*address))

    def ask(self):
        self.writer.write(GET)

    async def answered(self):
        line = await asyncio.wait_for(self.reader.readline(), WAIT_S)
        await asyncio.wait_for(self.reader.readuntil(b"GET /? "), WAIT_S)
        return line.split()[1]

    async def leave(self):
        self.writer.close()
        await self.writer.wait_closed()


@on_loop
async def test_connection_beyond_the_limit_waits_until_one_closes():
    async with serving(most=2) as (port, address):
        clients = [await Client.of(address) for _ in range(3)]
        for client in clients:
            client.ask()
        assert [await client.answered() for client in clients[:2]] == [b"200"] * 2
        assert len(port.server_state.connections) == 2
        await clients[0].leave()
        assert await clients[2].answered() == b"200"
        assert len(port.server_state.connections) == 2
        for client in clients[1:]:
            await client.leave()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12"])
@on_loop
async def test_waiting_connection_makes_room_for_a_new_one(monkeypatch, sent):
    monkeypatch.setattr(port_module, "PRESSED_S", 1e9)
    monkeypatch.setattr(port_module, "ROOM_S", 0.01)
    async with serving(most=1) as (port, address):
        first, second = await Client.of(address), await Client.of(address)
        first.ask()
        assert await first.answered() == b"200"
        first.writer.write(sent)
        (connection,) = port.server_state.connections
        while sent and connection.idle:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(port_module, "PRESSED_S", 0.0)
        second.ask()
        while not connection.transport.is_closing():
            await asyncio.sleep(0.001)
        monkeypatch.setattr(port_module, "PRESSED_S", 1e9)
        assert await second.answered() == b"200"
        assert (await first.reader.read())[:12] == (b"HTTP/1.1 408" if sent else b"")
        await first.leave()
        await second.leave()


def test_room_is_made_when_all_connections_arrived_at_once(monkeypatch):
    monkeypatch.setattr(port_module, "PRESSED_S", 0.05)
    monkeypatch.setattr(port_module, "ROOM_S", 0.01)
    monkeypatch.setattr(port_module, "RETRY_S", 0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    silent = [socket.create_connection(listener.getsockname()) for _ in range(12)]

    async def main():
        last = await Client.of(listener.getsockname())
        last.ask()
        async with serving(8, listener):
            assert await last.answered() == b"200"
        await last.leave()

    asyncio.run(main())
    for connection in silent:
        connection.close()


def test_port_without_descriptors_accepts_again_later(caplog, monkeypatch):
    monkeypatch.setattr(port_module, "RETRY_S", 0.001)

    async def main():
        async with serving(most=8) as (port, address):
            there = await Client.of(address)
            there.ask()
            assert await there.answered() == b"200"
            with socket.socket() as late:
                late.setblocking(False)
                with few_descriptors():
                    await asyncio.get_running_loop().sock_connect(late, address)
                    while not port._starved:
                        await asyncio.sleep(0.001)
                    for _ in range(3):
                        there.ask()
                        assert await there.answered() == b"200"
                await asyncio.get_running_loop().sock_sendall(late, GET)
                assert (await asyncio.get_running_loop().sock_recv(late, 12)).endswith(b"200")
            await there.leave()

    asyncio.run(main())
    assert caplog.text.count("cannot accept") == 1
