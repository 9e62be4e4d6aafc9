"""A connection without a socket: what is sent to it, what it writes, on a loop whose clock is moved by hand."""

import asyncio
import selectors
import socket
from types import SimpleNamespace

from uvicorn.server import ServerState

from freshet_serving.serving.front.resource_limits import BodyMemory
from freshet_serving.serving.http.connection import KEEP_ALIVE_S, HttpConnection
from freshet_serving.serving.http.protocol import PredictProtocol
from tests.serving.fakes import FakeProcessor
from tests.serving.http.data_app import serve

TURNS = 8


class HandLoop(asyncio.SelectorEventLoop):
    """A loop that never waits and whose time passes when a test says so. timers: how often one was set."""

    def __init__(self):
        self.now_s, self.timers = 0.0, 0
        super().__init__(_Still())
        self.set_exception_handler(self._raise)
        self.raised = []

    def time(self):
        return self.now_s

    def call_later(self, delay, callback, *args, context=None):
        self.timers += 1
        return super().call_later(delay, callback, *args, context=context)

    def turn(self, times=TURNS):
        async def turns():
            for _ in range(times):
                await asyncio.sleep(0)

        self.run_until_complete(turns())
        assert not self.raised, self.raised

    def _raise(self, loop, context):
        self.raised.append(context)


class _Still(selectors.DefaultSelector):
    def select(self, timeout=None):
        return super().select(0)


class HandTransport:
    """A transport. said: "eof", "close" and "abort" in their order. unsent_nbytes: what the client has not taken."""

    def __init__(self, loop):
        self._loop, self.connection = loop, None
        self._here, self._there = socket.socketpair()
        self.written, self.said, self.reading, self.unsent_nbytes = bytearray(), [], True, 0

    def get_extra_info(self, name):
        return self._here if name == "socket" else None

    def get_protocol(self):
        return self.connection

    def set_protocol(self, protocol):
        self.connection = protocol

    def free(self):
        self._here.close()
        self._there.close()

    def write(self, data):
        assert not self.said, "written after the end"
        self.written += data

    def write_eof(self):
        self.said.append("eof")

    def close(self):
        self._end("close")

    def abort(self):
        self._end("abort")

    def is_closing(self):
        return "close" in self.said or "abort" in self.said

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_write_buffer_size(self):
        return self.unsent_nbytes

    def _end(self, how):
        if not self.is_closing() and (how == "abort" or not self.unsent_nbytes):
            self._loop.call_soon(self.connection.connection_lost, None)
        self.said.append(how)


class Prompt(FakeProcessor):
    """Answers in the thread that asks, unless it is to hold."""

    def submit(self, request, done, replica=None):
        hold, self.hold = self.hold, True
        super().submit(request, done, replica)
        self.hold = hold
        if not hold:
            self.release()


class Talk:
    """One connection, its client and its server."""

    def __init__(self, app=None, processor=None, bodies=None, idle_s=KEEP_ALIVE_S, **options):
        """app: an ASGI application; None for a data port's over the processor."""
        self.loop = HandLoop()
        self.transport = HandTransport(self.loop)
        self.processor = processor or Prompt()
        state = ServerState()
        made = {"server_state": state, "app_state": {}, "_loop": self.loop}
        if app is None:
            app, _, _, self.metrics = serve(self.processor, **options)
            config = SimpleNamespace(loaded_app=app, asgi_version="3.0")
            self.connection = PredictProtocol(config, **made, data_app=app, idle_s=idle_s)
            self.bodies = app.bodies
        else:
            config = SimpleNamespace(loaded_app=app, asgi_version="3.0")
            self.bodies = bodies or BodyMemory(1 << 30)
            self.connection = HttpConnection(config, **made, bodies=self.bodies, idle_s=idle_s)
        self.transport.connection = self.connection
        self.connections, self.waiting = state.connections, []
        self.connection.connection_made(self.transport)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.transport.is_closing():
            self.transport.abort()
        self.loop.turn()
        self.loop.close()
        self.transport.free()

    def send(self, *pieces):
        """Sends bytes, each piece a read, as far as the connection reads."""
        self.waiting += pieces
        self.pump()
        return self

    def pump(self):
        """What has been sent and not been read is, as far as the connection reads now."""
        self.loop.turn(2)
        while self.waiting and self.transport.reading and not self.transport.is_closing():
            self.loop.run_until_complete(self._receive(self.waiting.pop(0)))
            self.loop.turn()

    def take(self):
        """The client takes what has been written."""
        self.loop.call_soon(self.connection.resume_writing)
        self.pump()

    def half_close(self):
        if not self.transport.connection.eof_received():
            self.transport.close()
        self.loop.turn()

    def wait(self, seconds):
        """Time passes, in steps in which timers go off."""
        end_s = self.loop.now_s + seconds
        while self.loop.now_s < end_s:
            self.loop.now_s = min(end_s, self.loop.now_s + 1.0)
            self.loop.turn(3)

    @property
    def ended(self):
        """Whether the client has been told that this was all."""
        return bool(self.transport.said)

    def statuses(self):
        return [status for status, _, _ in self.replies()]

    def replies(self):
        """(status, headers, body) of each reply that was written since this was asked last."""
        data, found = bytes(self.transport.written), []
        self.transport.written.clear()
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            line, *lines = head.decode().split("\r\n")
            headers = dict(each.split(": ", 1) for each in lines)
            nbytes = int(headers.get("content-length", 0))
            found.append((int(line.split()[1]), headers, data[:nbytes]))
            data = data[nbytes:]
        return found

    async def _receive(self, piece):
        self.transport.connection.data_received(piece)


async def echo(scope, receive, send):
    """An ASGI application that answers what it was asked: method, path, query and body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    said = b"%s %s?%s %s" % (scope["method"].encode(), scope["raw_path"], scope["query_string"], body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})
