"""How a connection ends: bytes, FIN and what follows, on a loop whose time jumps and a transport that only notes."""

import asyncio
import inspect
import selectors
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from freshet_serving.serving.front.resource_limits import BodyMemory
from freshet_serving.serving.http.connection import HttpConnection
from freshet_serving.serving.http.connection_draining import (
    ANSWERED_S,
    LINGER_S,
    LOOK_S,
    PATIENCE_S,
    SENDING_NBYTES,
    SENDING_S,
    STALLED_S,
    LingeringTransport,
    drain_connections,
)

GET = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSES = b"connection: close"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Nobody waits: where a loop would sleep, its clock moves on."""

    def __init__(self):
        self.now_s = 0.0
        loop = self

        class Jumping(selectors.DefaultSelector):
            def select(self, timeout=None):
                assert timeout is not None, "nothing will ever happen"
                loop.now_s += timeout
                return super().select(0)

        super().__init__(Jumping())

    def time(self):
        return self.now_s


class NotingTransport(asyncio.Transport):
    """What is written is kept, with "FIN" and "aborted". kernel: the client's end of its socket."""

    def __init__(self, protocol=None):
        super().__init__()
        self.protocol, self.said, self.buffered, self.reading = protocol, [], 0, True
        self.here, self.kernel = socket.socketpair()

    def get_extra_info(self, name, default=None):
        return self.here if name == "socket" else default

    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        self.protocol = protocol

    def write(self, data):
        self.said.append(bytes(data))

    def write_eof(self):
        self.said.append("FIN")

    def get_write_buffer_size(self):
        return self.buffered

    def is_closing(self):
        return "aborted" in self.said or "closed" in self.said

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def abort(self):
        if not self.is_closing():
            self.said.append("aborted")
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def client_ends(self):
        """The client's FIN has come."""
        assert not self.protocol.eof_received()
        self.said.append("closed")
        self.protocol.connection_lost(None)

    def shut(self):
        self.here.close()
        self.kernel.close()


class Port:
    """Connections over an application that answers a path when it is told to; `/at-once` by itself."""

    def __init__(self):
        self.state, self.allowed, self.transports = ServerState(), {}, []
        self.config = uvicorn.Config(
            self.answer, http=HttpConnection, interface="asgi3", lifespan="off", log_config=None, ws="none"
        )
        self.config.load()

    async def answer(self, scope, receive, send):
        await self.allow(scope["path"]).wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    def allow(self, path):
        event = self.allowed.setdefault(path, asyncio.Event())
        if path == "/at-once":
            event.set()
        return event

    def connect(self):
        bodies = BodyMemory(1 << 20)
        connection = HttpConnection(config=self.config, server_state=self.state, app_state={}, bodies=bodies)
        transport = NotingTransport(connection)
        connection.connection_made(transport)
        self.transports.append(transport)
        return connection, transport

    def ending(self, timeout_s=60.0, hurried=lambda: False):
        return asyncio.get_running_loop().create_task(drain_connections(self.state, timeout_s, hurried))


def played(scene):
    """Make a test of a coroutine function that is given a Port, on a JumpingLoop."""

    def test(**values):
        loop, port = JumpingLoop(), Port()
        try:
            loop.run_until_complete(scene(port, **values))
        finally:
            loop.close()
            for transport in port.transports:
                transport.shut()

    signature = inspect.signature(scene)
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    test.__name__ = scene.__name__
    return test


async def turn(times=5):
    for _ in range(times):
        await asyncio.sleep(0)


def replies(transport):
    """Of each reply whether it says that it is the last."""
    data = b"".join(part for part in transport.said if isinstance(part, bytes))
    heads = [reply.partition(b"\r\n\r\n")[0] for reply in data.split(b"HTTP/1.1 ")[1:]]
    assert all(head.startswith(b"200") for head in heads)
    return [CLOSES in head for head in heads]


@played
async def test_idle_connection_is_closed_with_fin_after_a_moment(port):
    _, transport = port.connect()
    ending = port.ending()
    await asyncio.sleep(PATIENCE_S - LOOK_S)
    assert transport.said == []
    await ending
    assert asyncio.get_running_loop().time() == pytest.approx(PATIENCE_S, abs=3 * LOOK_S)
    assert transport.said == ["FIN", "aborted"]
    await turn()
    assert not port.state.connections


@played
async def test_request_arriving_while_draining_is_answered_as_the_last(port):
    connection, transport = port.connect()
    ending = port.ending()
    await asyncio.sleep(PATIENCE_S / 2)
    connection.data_received(GET % b"at-once")
    await turn()
    assert replies(transport) == [True]
    assert transport.said[-1] == "FIN"
    await asyncio.sleep(LINGER_S / 2)
    assert not ending.done(), "the client may not have read it all"
    transport.client_ends()
    await ending


@played
async def test_client_activity_restarts_the_idle_time(port):
    connection, transport = port.connect()
    ending = port.ending()
    await asyncio.sleep(PATIENCE_S * 0.9)
    transport.kernel.send(b"G")
    await asyncio.sleep(PATIENCE_S)
    assert transport.said == [], "what is unread is not closed on"
    connection.data_received(transport.here.recv(1))
    await asyncio.sleep(PATIENCE_S)
    assert transport.said == [], "a request has begun"
    connection.data_received((GET % b"at-once")[1:])
    await turn()
    assert replies(transport) == [True]
    transport.client_ends()
    await ending


@played
async def test_request_in_flight_is_awaited_and_its_reply_is_last(port):
    connection, transport = port.connect()
    connection.data_received(GET % b"slow")
    ending = port.ending()
    await asyncio.sleep(10 * PATIENCE_S)
    assert transport.said == []
    port.allow("/slow").set()
    await turn()
    assert replies(transport) == [True]
    transport.client_ends()
    await ending


@pytest.mark.parametrize("where", ["queued", "begun", "in the kernel"])
@played
async def test_reply_with_a_further_request_is_not_the_last(port, where):
    connection, transport = port.connect()
    connection.data_received(GET % b"slow")
    second = GET % b"at-once"
    if where == "queued":
        connection.data_received(second)
    elif where == "begun":
        connection.data_received(second[:9])
    else:
        transport.kernel.send(second)
    ending = port.ending()
    await turn()
    port.allow("/slow").set()
    await turn(10)
    if where == "begun":
        connection.data_received(second[9:])
    elif where == "in the kernel":
        connection.data_received(transport.here.recv(100))
    await turn(10)
    assert replies(transport) == [False, True]
    assert transport.said[-1] == "FIN"
    transport.client_ends()
    await ending


@played
async def test_remaining_requests_are_cancelled_after_the_timeout(port):
    connection, transport = port.connect()
    connection.data_received(GET % b"never")
    half, halfway = port.connect()
    half.data_received((GET % b"at-once")[:9])
    await turn()
    await port.ending(timeout_s=3.0)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0 + ANSWERED_S, abs=5 * LOOK_S)
    assert [each.said[-1] for each in (transport, halfway)] == ["aborted", "aborted"]
    await turn()
    assert not port.state.connections


@played
async def test_immediate_end_cuts_every_connection(port):
    connection, transport = port.connect()
    connection.data_received(GET % b"never")
    await turn()
    await port.ending(hurried=lambda: True)
    assert transport.said == ["aborted"]
    assert asyncio.get_running_loop().time() == 0.0
    port.allow("/never").set()
    await turn()


@played
async def test_individually_drained_connection_may_idle_forever(port):
    connection, transport = port.connect()
    connection.draining = True
    await asyncio.sleep(20 * PATIENCE_S)
    assert transport.said == []
    connection.data_received(GET % b"at-once")
    await turn()
    assert replies(transport) == [True]


class Told(asyncio.Protocol):
    def __init__(self):
        self.received, self.lost = [], 0

    def data_received(self, data):
        self.received.append(data)

    def connection_lost(self, exc):
        self.lost += 1


def finished(port):
    protocol = Told()
    transport = NotingTransport(protocol)
    port.transports.append(transport)
    lingering = LingeringTransport(transport)
    transport.pause_reading()
    lingering.write(b"last words")
    lingering.close()
    return lingering, transport, protocol


@played
async def test_finished_connection_discards_input_and_closes_with_its_client(port):
    lingering, transport, protocol = finished(port)
    assert lingering.is_closing()
    assert transport.reading
    transport.protocol.data_received(b"more requests")
    lingering.write(b"nobody is to hear that")
    lingering.close()
    assert transport.said == [b"last words", "FIN"]
    transport.client_ends()
    await asyncio.sleep(2 * LINGER_S)
    assert transport.said == [b"last words", "FIN", "closed"]
    assert (protocol.received, protocol.lost) == ([], 1)


@played
async def test_client_that_never_reads_its_last_reply_is_dropped(port):
    _, transport, protocol = finished(port)
    transport.buffered = 1000
    for _ in range(20):
        transport.buffered -= 1
        await asyncio.sleep(STALLED_S / 2)
    assert not protocol.lost, "it reads, however slowly"
    await asyncio.sleep(STALLED_S + 2 * LINGER_S)
    assert protocol.lost == 1


@played
async def test_bytes_sent_after_the_last_reply_are_limited(port):
    _, transport, protocol = finished(port)
    for _ in range(SENDING_NBYTES >> 20):
        transport.protocol.data_received(bytes(1 << 20))
    assert transport.said == [b"last words", "FIN"]
    transport.protocol.data_received(b"one more")
    await turn()
    assert protocol.lost == 1


@played
async def test_client_still_sending_after_the_last_reply_is_dropped_eventually(port):
    _, transport, protocol = finished(port)
    for _ in range(int(SENDING_S) - 2):
        await asyncio.sleep(1.0)
        transport.protocol.data_received(b"more")
    assert not protocol.lost
    for _ in range(4):
        await asyncio.sleep(1.0)
        transport.protocol.data_received(b"more")
    assert protocol.lost == 1


@played
async def test_client_that_already_finished_is_not_awaited(port):
    transport = NotingTransport(Told())
    port.transports.append(transport)
    LingeringTransport(transport).close(finished=True)
    assert transport.said == ["aborted"], "closed, as the transport notes it"


@played
async def test_silent_client_is_dropped_once_it_has_its_reply(port):
    _, transport, protocol = finished(port)
    transport.buffered = 1
    await asyncio.sleep(2.5 * LINGER_S)
    assert not protocol.lost, "it has not been given all of its reply"
    transport.buffered = 0
    await asyncio.sleep(LINGER_S)
    assert transport.said[-1] == "aborted"
    assert protocol.lost == 1
