"""Turn the bytes of one HTTP connection into requests for an ASGI application, within bounds.

    at rest ──bytes──▶ head ──▶ body ──▶ in flight ──reply──▶ at rest
       │                │         │                              │
       │ idle_s         │ HEAD_S  │ BODY_S and BODY_NBYTES_S     │ last reply
       ▼                ▼         ▼                              ▼
     closed          408, 431   408, 413, 503                closed

Invariants
- One request is in flight. Bytes after it stay unparsed, at most one read of them: reading pauses until the client has
  read the reply.
- The end of a message is determined here and nowhere else (serving.http.http_head, request_body). Bytes that are not a
  request are answered 4xx and end the connection: nothing after them is parsed as another request.
- Incomplete requests are bounded in bytes and in time; the clock of a body stops while the application does not read
  it. A body's memory is accounted for (serving.front.resource_limits) from its first byte to its answer.
- A reply is written at most once, and only to an open connection. How connections end: connection_draining.
- A client that half-closes its connection gets the answers to its complete requests.

Costs: no task and no timer for each request (DeadlineTimer); each byte of a head is scanned a few times, however small
the pieces it arrives in.

Rejected: uvicorn's own protocol over llhttp. It stops at `Upgrade`, accepts any number of pipelined requests, waits
without limit for a head or a body, and resets connections when it refuses a request within its body. uvicorn's Server,
request-response cycle and flow control are reused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import unquote

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from freshet_serving.processor.errors import NO_MEMORY, FreshetError, NotReady, shortage
from freshet_serving.serving.front.resource_limits import SPARE_NBYTES, BodyMemory
from freshet_serving.serving.http.asgi import error_reply
from freshet_serving.serving.http.connection_draining import CLOSE, LingeringTransport, unread
from freshet_serving.serving.http.http_head import (
    END,
    MAX_HEAD_NBYTES,
    STRAY,
    HttpProtocolError,
    RequestHead,
    read_head,
    split_target,
)
from freshet_serving.serving.http.request_body import ChunkedBody

log = logging.getLogger("freshet.http")
KEEP_ALIVE_S = 75.0
HEAD_S = 20.0
# Timeout of a body: BODY_S, and one second more for each BODY_NBYTES_S received.
BODY_S = 20.0
BODY_NBYTES_S = 256 << 10
# Reading pauses long before this limit whenever this side is the slower one.
MAX_UNREAD_NBYTES = 1 << 20
# Clients may send an empty line or two between requests.
EMPTY_LINES = re.compile(rb"(?:\r\n){0,4}")


class DeadlineTimer:
    """A deadline on an event loop, kept by one timer; expired() is called once when it has passed.

    To set and cancel a timer with every request costs as much as parsing the request. This one stays set while the
    deadline moves away from it, and is set again for the rest when it fires. Only an earlier deadline resets it at
    once: the first piece of a head or a body that does not arrive whole.
    """

    __slots__ = ("_deadline_s", "_expired", "_goes_off_s", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop, self._expired = loop, expired
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = self._goes_off_s = math.inf

    @property
    def left_s(self) -> float:
        return self._deadline_s - self._loop.time()

    def wait(self, seconds: float) -> None:
        self._deadline_s = deadline_s = self._loop.time() + seconds
        if deadline_s < self._goes_off_s:
            self._set(seconds)

    def end(self) -> None:
        self._deadline_s = self._goes_off_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._goes_off_s = self._deadline_s
        self._timer = self._loop.call_later(seconds, self._went_off)

    def _went_off(self) -> None:
        self._timer, self._goes_off_s = None, math.inf
        left_s = self.left_s
        if left_s > 0:
            self._set(left_s)
        else:
            self._deadline_s = math.inf
            self._expired()


class HttpConnection(asyncio.Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bodies: BodyMemory,
        idle_s: float = KEEP_ALIVE_S,
    ) -> None:
        """Take the arguments that uvicorn passes to its protocols, and those of ours.

        Args:
            bodies: Accounts for the memory of bodies on this event loop.
            idle_s: Seconds that it stays open without a request.
        """
        self._idle_s = idle_s
        self.config, self.server_state, self._app_state, self._bodies = config, server_state, app_state, bodies
        self.loop = _loop or asyncio.get_running_loop()
        # The request whose reply is not yet written, else the last one.
        self.cycle: Any = None
        # True while no byte of the next request has arrived.
        self._at_rest = True
        self._unread = bytearray()
        self._searched = 0
        self._head: RequestHead | None = None
        self._left = 0
        self._chunks: ChunkedBody | None = None
        self._turn: asyncio.Handle | None = None
        self._began_s: float | None = None
        self._keep_alive = True
        self._body_nbytes = 0
        self._half_closed = self._advancing = False
        self._unsent_nbytes = math.inf
        # Set to let the connection end (serving.http.connection_draining).
        self.draining = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn expects its own protocol classes.
        self.transport = cast(Any, LingeringTransport(cast(asyncio.Transport, transport)))
        self.flow = FlowControl(self.transport)
        self._server, self._client = get_local_addr(self.transport), get_remote_addr(self.transport)
        self._deadline_timer = DeadlineTimer(self.loop, self._expired)
        self._deadline_timer.wait(self._idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        cycle = self.cycle
        if cycle is not None:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        self.flow.resume_writing()
        self._deadline_timer.end()
        if not self._busy or self._head is not None:
            self._forget_body()
        self._unread.clear()

    def data_received(self, data: bytes) -> None:
        # A head or body that arrives whole is used without copying it into the buffer.
        if self._at_rest:
            self._at_rest = False
            end = data.find(END, 0, MAX_HEAD_NBYTES) + len(END)
            if end > len(END) and not data.startswith(b"\r"):
                self._advance(data, end)
                return
        elif len(data) <= self._left and not self._unread:
            self._advance(data)
            return
        try:
            self._unread += data
        except MemoryError:
            self._refuse(NotReady(NO_MEMORY))
            return
        self._advance()

    def eof_received(self) -> bool:
        self._half_closed = True
        cut_short = self._head is not None and self._turn is None
        return not cut_short and (self._busy or self.flow.write_paused)

    def pause_writing(self) -> None:
        self._at_rest = False
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if not self._busy:
            self._go_on()

    def give_up(self) -> None:
        """Do nothing: requests of the application are tasks, which the drain cancels."""

    @property
    def idle(self) -> bool:
        """True if no request is in flight and no byte is unparsed."""
        return not self._busy and not self._unread

    def hurry(self, patience_s: float) -> None:
        """End the connection if it has waited for its client this long: another client needs its place."""
        if self._head is None and self._busy:
            return
        allowed_s = BODY_S if self._head is not None else HEAD_S if self._unread else self._idle_s
        if allowed_s - self._deadline_timer.left_s >= patience_s:
            self._expired()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._forget_body()
        if self.transport.is_closing():
            return
        self._deadline_timer.wait(self._idle_s)
        if self._unread or self._half_closed or self.flow.read_paused or self.flow.write_paused:
            self._go_on()
        else:
            self._at_rest = True

    @property
    def _busy(self) -> bool:
        """True while a request is in flight; its body may still be arriving."""
        return self.cycle is not None and not self.cycle.response_complete

    def _go_on(self) -> None:
        """Continue when no request is in flight; bytes of the next one may have arrived."""
        self._advance()
        self._at_rest = not (self._busy or self._unread or self.flow.write_paused or self.transport.is_closing())

    def _keeps(self) -> bool:
        """Return True if the connection stays open after the reply that is about to be written.

        It closes if the body has not arrived as a whole: the rest is not read.
        """
        return self._head is None and self._keep_alive and not (self.draining and self._ends())

    def _ends(self) -> bool:
        """Return True if nothing follows the request in flight: on a draining connection, its reply is the last."""
        return not self._unread and not unread(self.transport)

    def _advance(self, data: bytes = b"", end: int = 0) -> None:
        """Parse received bytes as far as possible.

        Args:
            data: If no byte is unparsed: a piece of the body, or bytes that begin with a head.
            end: Length of that head; 0 if there is none.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            if end:
                self._open(read_head(data[:end]))
                data = data[end:]
            if 0 < len(data) <= self._left:
                self._left -= len(data)
                self._take_piece(data, not self._left)
                return
            self._unread += data
            while not self.transport.is_closing() and self._step():
                pass
        except FreshetError as error:
            self._refuse(error)
        except (MemoryError, OSError) as error:
            if (short := shortage(error)) is None:
                raise
            self._refuse(short)
        finally:
            self._advancing = False
        if self._half_closed and not (self._busy or self.flow.write_paused):
            self.transport.close(finished=True)

    def _step(self) -> bool:
        """Parse one head, or the available part of a body; return True if there may be more to parse."""
        if self._head is not None:
            return self._turn is None and self._take_body()
        if not self._unread:
            self.flow.resume_reading()
            return False
        if self._busy or self.flow.write_paused:
            self.flow.pause_reading()
            return False
        return self._take_head()

    def _take_head(self) -> bool:
        unread = self._unread
        empty = EMPTY_LINES.match(unread)
        assert empty is not None, "the pattern also matches zero empty lines"
        del unread[: empty.end()]
        end = unread.find(END, self._searched)
        if (end if end >= 0 else len(unread)) > MAX_HEAD_NBYTES - len(END):
            raise HttpProtocolError(f"head: expected at most {MAX_HEAD_NBYTES} bytes, got more", 431)
        if end < 0:
            if STRAY.search(unread, self._searched):
                raise HttpProtocolError("head: expected lines of text, each ended by CR LF")
            if not self._searched and unread:
                self._deadline_timer.wait(HEAD_S)
            self._searched = max(1, len(unread) - len(END) + 1) if unread else 0
            self.flow.resume_reading()
            return False
        self._searched = 0
        data = bytes(unread[: end + len(END)])
        del unread[: end + len(END)]
        self._open(read_head(data))
        return True

    def _open(self, head: RequestHead) -> None:
        self._left, self._chunks = head.nbytes or 0, ChunkedBody() if head.nbytes is None else None
        self._began_s = None
        self._head, self._keep_alive = head, head.keep_alive
        self._begin(head)
        if head.nbytes == 0:
            self._end_body()

    def _take_body(self) -> bool:
        unread = self._unread
        if self._chunks is not None:
            piece = bytearray()
            ended = self._chunks.take(unread, piece)
            if self._chunks.more:
                self._wait_for_turn()
        else:
            if len(unread) <= self._left:
                piece, self._unread = unread, bytearray()
            else:
                piece = unread[: self._left]
                del unread[: self._left]
            self._left -= len(piece)
            ended = not self._left
        if not ended and self._turn is None:
            self.flow.resume_reading()
        self._take_piece(piece, ended)
        return ended

    def _wait_for_turn(self) -> None:
        """Let other connections run before the rest of the received bytes is parsed."""
        if len(self._unread) > MAX_UNREAD_NBYTES:
            raise HttpProtocolError("body: expected larger chunks")
        self.flow.pause_reading()
        self._turn = self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._advance()

    def _take_piece(self, piece: bytes | bytearray, ended: bool) -> None:
        if piece:
            self._bodies.nbytes += len(piece)
            self._body_nbytes += len(piece)
            self._bodies.check(SPARE_NBYTES if ended and self._began_s is None else 0)
            self._add(piece)
        if ended:
            self._end_body()
        elif self._began_s is None or self.flow.read_paused:
            self._began_s = self.loop.time()
            self._deadline_timer.wait(BODY_S)
        else:
            self._deadline_timer.wait(self._began_s + BODY_S + self._body_nbytes / BODY_NBYTES_S - self.loop.time())

    def _end_body(self) -> None:
        self._head, self._chunks = None, None
        self._complete()

    def _forget_body(self) -> None:
        self._bodies.nbytes -= self._body_nbytes
        self._body_nbytes = 0

    # Handling of a request; a subclass handles further kinds.

    def _begin(self, head: RequestHead) -> None:
        if head.method == b"CONNECT":
            raise HttpProtocolError("CONNECT: this server is not a proxy", 501)
        path, query = split_target(head.target)
        text = path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._server,
            "client": self._client,
            "scheme": "http" if self.transport.get_extra_info("ssl_object") is None else "https",
            "root_path": "",
            "headers": head.fields,
            "state": self._app_state.copy(),
            "method": head.method.decode("ascii"),
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
        }
        self.cycle = cycle = _Cycle(
            self._keeps,
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects,
            keep_alive=False,
            on_response=self.on_response_complete,
        )
        tasks = self.server_state.tasks
        task = self.loop.create_task(cycle.run_asgi(self.config.loaded_app))
        task.add_done_callback(partial(self._task_done, cycle))
        tasks.add(task)

    def _add(self, piece: bytes | bytearray) -> None:
        cycle = self.cycle
        cycle.body += piece
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _complete(self) -> None:
        cycle = self.cycle
        cycle.more_body = False
        cycle.message_event.set()

    def _task_done(self, cycle: RequestResponseCycle, task: asyncio.Task[None]) -> None:
        self.server_state.tasks.discard(task)
        if not cycle.response_complete:
            self._forget_body()

    def _refuse(self, error: FreshetError) -> None:
        cycle, status, body, headers = self.cycle, *error_reply(error)
        answering = False
        if self._busy:
            answering = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
        if not answering and not self.transport.is_closing():
            lines = reply_head(status, tuple(headers), False) + header_lines(tuple(self.server_state.default_headers))
            self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body))
        self._forget_body()
        self.transport.close()

    def _expired(self) -> None:
        if self.transport.is_closing():
            # A closing connection has its own timeout (serving.http.connection_draining).
            return
        if self._head is not None and not self.flow.read_paused:
            self._refuse(HttpProtocolError("body: arrives too slowly", 408))
        elif self._busy:
            self._began_s = None
            self._deadline_timer.wait(self._idle_s)
        elif self._unread and not self.flow.write_paused:
            self._refuse(HttpProtocolError(f"head: expected within {HEAD_S:g} seconds", 408))
        else:
            self._leave_idle()

    def _leave_idle(self) -> None:
        """Close the connection, unless its client has read a part of a reply since the last call."""
        before, self._unsent_nbytes = self._unsent_nbytes, self.transport.get_write_buffer_size()
        if not self._unsent_nbytes:
            self.transport.close()
        elif self._unsent_nbytes < before:
            self._deadline_timer.wait(self._idle_s)
        else:
            self.transport.abort()


class _Cycle(RequestResponseCycle):
    """uvicorn's request-response cycle; decides when the reply begins whether the connection stays open."""

    def __init__(self, keeps: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._keeps = keeps

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self.keep_alive = self._keeps()
            if self.keep_alive and self.scope["http_version"] == "1.0":
                # HTTP/1.0 closes by default, so state that the connection stays open.
                message["headers"] = [*message["headers"], (b"connection", b"keep-alive")]
        await super().send(message)


@lru_cache(maxsize=1024)
def header_lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(maxsize=1024)
def reply_head(status: int, headers: tuple[tuple[bytes, bytes], ...], keep_alive: bool) -> bytes:
    """Return the first lines of a reply; cached, because thousands of replies share them."""
    closing = b"" if keep_alive or CLOSE in headers else b"connection: close\r\n"
    return STATUS_LINE[status] + header_lines(headers) + closing
