"""Serve GET /admin/live: the samples of serving.extensions.admin.live_samples as server-sent events.

Invariants
- At most MOST_STREAMS at once; further clients get 429 with a time to retry. A stream is one request and no thread.
- Samples do not pile up for a slow reader: the next event is sent after the previous one was, with all samples since,
  at most five minutes of them. A client that reads nothing for SEND_S is disconnected.
- The end of the server ends every stream at once.
"""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from freshet_serving.processor.errors import Overloaded
from freshet_serving.serving.extensions.admin.live_samples import LiveSample, LiveSamples
from freshet_serving.serving.http.asgi import error_reply, reply

MOST_STREAMS = 16
SEND_S = 10.0
# Keep-alive interval: a proxy would take a silent stream for a dead one.
QUIET_S = 15.0
FULL = Overloaded(f"live: expected at most {MOST_STREAMS} streams at once", retry_after_s=5.0)


class LiveStreams:
    def __init__(self, samples: LiveSamples) -> None:
        self._samples = samples
        self.open = 0

    def add_to(self, app: FastAPI) -> None:
        events = {"description": "A stream of events named `sample`.", "content": {"text/event-stream": {"schema": {}}}}
        full = {"description": f"{MOST_STREAMS} streams are open already."}
        app.get("/admin/live", responses={200: events, 429: full}, response_class=Response)(self.live)

    async def live(self) -> Response:
        """Stream rates, latencies, errors and freshness as server-sent events.

        The stream begins with the last five minutes and continues with one sample per second.
        """
        if self.open >= MOST_STREAMS:
            raise FULL
        return _Stream(self, self._samples)


class _Stream(Response):
    media_type = "text/event-stream"

    def __init__(self, streams: LiveStreams, samples: LiveSamples) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._streams, self._samples = streams, samples

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.open >= MOST_STREAMS:
            # Others may have connected since live() checked.
            status, body, reply_headers = error_reply(FULL)
            await reply(send, status, body, reply_headers)
            return
        self._streams.open += 1
        woken, loop = asyncio.Event(), asyncio.get_running_loop()

        def sampled() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        subscriber = self._samples.subscribe(sampled)
        left = asyncio.create_task(_left(receive))
        try:
            await self._send(send, woken, left)
        except TimeoutError:
            # The client reads nothing, so it would not read the end either.
            return
        finally:
            left.cancel()
            self._samples.unsubscribe(subscriber)
            self._streams.open -= 1

    async def _send(self, send: Send, woken: asyncio.Event, left: asyncio.Task[None]) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        number, first = 0, True
        while not (self._samples.closed or left.done()):
            woken.clear()
            samples = self._samples.since(number)
            number = samples[-1].number if samples else number
            body = b"".join(map(_event, samples)) or (b": nothing yet\n\n" if first else b": quiet\n\n")
            first = False
            message = {"type": "http.response.body", "body": body, "more_body": True}
            await asyncio.wait_for(send(message), SEND_S)
            waiting = asyncio.create_task(woken.wait())
            await asyncio.wait({waiting, left}, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if not left.done():
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SEND_S)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(sample: LiveSample) -> bytes:
    return b"event: sample\nid: %d\ndata: %b\n\n" % (sample.number, sample.data)
