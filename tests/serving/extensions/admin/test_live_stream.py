"""The stream of samples: the history first, so many at once, no slow reader is waited for, and the end ends it."""

import asyncio

import orjson
import pytest

from freshet_serving.processor.errors import Overloaded
from freshet_serving.serving.extensions.admin import live_stream
from freshet_serving.serving.extensions.admin.live_stream import MOST_STREAMS, LiveStreams
from tests.serving.extensions.admin.test_live_samples import Watched
from tests.support.coroutines import on_loop
from tests.support.waiting import PAUSE_S


class Reader:
    """Who reads one stream. slow: takes nothing after the beginning."""

    def __init__(self, slow=False):
        self.sent, self.slow, self.gone = [], slow, asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self.slow and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def samples(self):
        text = b"".join(m.get("body", b"") for m in self.sent).decode()
        return [orjson.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


async def begun(streams, reader):
    reply = await streams.live()
    return asyncio.create_task(reply({"type": "http"}, reader.receive, reader.send))


async def soon(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(PAUSE_S)
    raise AssertionError("waited too long")


@on_loop
async def test_stream_starts_with_past_samples_and_continues():
    server, reader = Watched(), Reader()
    streams = LiveStreams(server.samples)
    for _ in range(3):
        server.take()
    task = await begun(streams, reader)
    await soon(lambda: len(reader.samples) == 3)
    await asyncio.to_thread(server.take)
    await soon(lambda: len(reader.samples) == 4)
    assert reader.sent[0]["status"] == 200
    assert dict(reader.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in dict(reader.sent[0]["headers"])
    reader.gone.set()
    await asyncio.wait_for(task, 5)
    assert (streams.open, server.samples.subscribers) == (0, 0)


@on_loop
async def test_server_without_samples_sends_something_at_once():
    server, reader = Watched(), Reader()
    task = await begun(LiveStreams(server.samples), reader)
    await soon(lambda: len(reader.sent) == 2)
    assert reader.sent[1]["body"].startswith(b": ")
    reader.gone.set()
    await asyncio.wait_for(task, 5)


@on_loop
async def test_number_of_streams_is_limited_and_places_are_freed():
    server = Watched()
    streams, readers = LiveStreams(server.samples), [Reader() for _ in range(MOST_STREAMS)]
    tasks = [await begun(streams, reader) for reader in readers]
    await soon(lambda: streams.open == MOST_STREAMS)
    with pytest.raises(Overloaded):
        await streams.live()
    readers[0].gone.set()
    await asyncio.wait_for(tasks[0], 5)
    await streams.live()
    server.samples.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert all(reader.sent[-1].get("more_body") is None for reader in readers[1:]), "each is ended in order"
    assert streams.open == 0


@on_loop
async def test_simultaneous_streams_stay_within_the_limit():
    server = Watched()
    streams, reader = LiveStreams(server.samples), Reader()
    replies = [await streams.live() for _ in range(3 * MOST_STREAMS)]
    sent = [Reader() for _ in replies]
    tasks = [asyncio.create_task(r({"type": "http"}, s.receive, s.send)) for r, s in zip(replies, sent)]
    await soon(lambda: all(s.sent for s in sent))
    assert streams.open <= MOST_STREAMS
    assert sorted({s.sent[0]["status"] for s in sent}) == [200, 429]
    server.samples.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert reader.sent == []


@on_loop
async def test_reader_that_takes_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(live_stream, "SEND_S", 0.02)
    server, reader = Watched(), Reader(slow=True)
    server.take()
    streams = LiveStreams(server.samples)
    task = await begun(streams, reader)
    await asyncio.wait_for(task, 5)
    assert (streams.open, server.samples.subscribers) == (0, 0)


@on_loop
async def test_slow_reader_gets_missed_samples_at_once():
    server, reader = Watched(), Reader()
    task = await begun(LiveStreams(server.samples), reader)
    await soon(lambda: len(reader.sent) == 2)
    for _ in range(5):
        server.take()
    await soon(lambda: len(reader.samples) == 5)
    assert len(reader.sent) <= 4
    reader.gone.set()
    await asyncio.wait_for(task, 5)
