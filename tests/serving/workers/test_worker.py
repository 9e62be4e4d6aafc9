"""What a worker process makes of what it is told, without the process."""

import asyncio
import os
import socket
import threading
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.cores import available
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.serving.access.rate_limiter import rate_limiter_memory
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.port import new_loop, reserve
from freshet_serving.serving.workers import worker as worker_module
from freshet_serving.serving.workers.channel import Channel
from freshet_serving.serving.workers.worker import Worker
from freshet_serving.serving.workers.worker_counts import PLANNED
from freshet_serving.serving.workers.worker_pool import WorkerSettings
from tests.serving.workers import channel_ends
from tests.support.coroutines import on_loop
from tests.support.descriptors import few_descriptors
from tests.support.extensions import needs

WAIT_S = 30


class Told:
    """A Worker without a process: what it is told, acts on and answers."""

    _read, _read_again, _starved, _refuse, _reply = (
        Worker._read, Worker._read_again, Worker._starved, Worker._refuse, Worker._reply
    )  # fmt: skip

    def __init__(self, channel, loop):
        self._channel, self._loop = channel, loop
        self.acted, self.ended = [], 0

    def _act(self, message, fds):
        self.acted.append(message["op"])
        for fd in fds:
            os.close(fd)

    def _connection_ended(self):
        self.ended += 1


@on_loop
async def test_message_without_memory_for_it_is_answered_with_an_error():
    class Short(Told):
        def _act(self, message, fds):
            raise RuntimeError("can't start new thread")

    with channel_ends.ends() as (supervisor, channel):
        supervisor.send({"op": "frame", "id": 7})
        Short(channel, asyncio.get_running_loop())._read()
        message, _ = supervisor.receive()
        assert message == {"op": "reply", "id": 7, "error": ["NotReady", "a worker is short of memory"]}


def test_worker_without_descriptors_accepts_connections_again_later(monkeypatch):
    monkeypatch.setattr(worker_module, "STARVED_RETRY_S", 0.001)

    async def main():
        loop, here, there = asyncio.get_running_loop(), socket.socket(), socket.socket()
        with channel_ends.ends() as (supervisor, channel), here, there:
            worker = Told(channel, loop)
            for connection in (here, there):
                supervisor.send({"op": "adopt"}, [connection.fileno()])
            with few_descriptors():
                worker._read()
                await asyncio.sleep(0.01)
                assert worker.acted == []
            while len(worker.acted) < 2:
                await asyncio.sleep(0.001)
            loop.remove_reader(channel.fileno())
            return worker

    worker = asyncio.run(main())
    assert (worker.acted, worker.ended) == (["adopt", "adopt"], 0)


def test_change_exceeding_free_descriptors_is_refused_while_serving_continues(caplog):
    async def main():
        with channel_ends.ends() as (supervisor, channel), socket.socket() as some:
            worker = Told(channel, asyncio.get_running_loop())
            supervisor.send({"op": "frame", "id": 7}, [some.fileno()] * 9)
            supervisor.send({"op": "routes", "id": 8})
            with few_descriptors(3):
                worker._read()
            worker._read()
            worker._loop.remove_reader(channel.fileno())
            answer, _ = supervisor.receive()
            return worker, answer

    worker, answer = asyncio.run(main())
    assert worker.acted == ["routes"]
    assert (answer["id"], answer["error"][0]) == (7, "NotReady")
    assert "no file descriptors" in caplog.text


class Changing(Told):
    """Told, with changes of versions. fails: what a change raises."""

    _change, _apply, _erase = Worker._change, Worker._apply, Worker._erase

    def __init__(self, channel, loop, fails):
        super().__init__(channel, loop)
        self._slot, self._receivers = 1, {"11": SimpleNamespace(prepare=self._prepare)}
        self._fails = fails

    def _prepare(self, message, unpacker):
        raise self._fails


@pytest.mark.parametrize(
    ("fails", "error", "logged"),
    [
        (OSError(12, "Cannot allocate memory"), ["NotReady", "worker 1: Cannot allocate memory"], False),
        (MemoryError(), ["NotReady", "worker 1: not enough memory"], False),
        (BadInput("no bucket"), ["BadInput", "no bucket"], False),
        (ValueError("a fault"), ["ValueError", "a worker could not apply the change"], True),
    ],
)
def test_resource_shortage_is_reported_and_an_internal_error_logged(caplog, fails, error, logged):
    with channel_ends.ends() as (supervisor, channel):
        Changing(channel, None, fails)._change({"op": "frame", "version": "11", "id": 5}, [])
        answer, _ = supervisor.receive()
    assert (answer["id"], answer["error"]) == (5, error)
    assert ("could not change a version" in caplog.text) == logged


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        (MemoryError(), ["NotReady", "worker 1: not enough memory"]),
        (TypeError("not serializable"), ["TypeError", "a worker could not apply the change"]),
    ],
)
@pytest.mark.parametrize("op", ["close", "erase"])
def test_reply_that_fails_is_answered_with_an_error(monkeypatch, fails, error, op):
    failures, send = [fails], Channel.send

    def send_or_fail(channel, message):
        if failures and message["op"] == "reply":
            raise failures.pop()
        send(channel, message)

    with channel_ends.ends() as (supervisor, channel):
        monkeypatch.setattr(Channel, "send", send_or_fail)
        user = ErasedUser("ctr", ("user",), "7").to_json()
        Changing(channel, None, None)._change({"op": op, "version": "11", "id": 5, "user": user}, [])
        answer, _ = supervisor.receive()
    assert (answer["id"], answer["error"]) == (5, error)


@pytest.fixture
def groups():
    """Options of the worker's groups."""
    return {}


@pytest.fixture
def born(groups):
    """A worker on a thread of this process: (the supervisor's end of its channel, the address of the gRPC port)."""
    reserved, grpc = reserve("127.0.0.1", 0)
    here, there = Channel.pair()
    channel = Channel(there)
    settings = asdict(WorkerSettings(FrontendOptions(version="9"), {"groups": groups}, None, [], grpc))
    shared = {"board": np.zeros((3, 1), np.int64), "meters": rate_limiter_memory(2), "states": None}
    worker = Worker(channel, {**settings, **shared, "seat": 0}, SimpleNamespace(unpack=lambda packed: packed))

    def run():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(worker.run())

    thread = threading.Thread(target=run)
    thread.start()
    host, _, port = grpc.rpartition(":")
    yield here, (host, int(port))
    here.send({"op": "end"})
    thread.join(WAIT_S)
    assert not thread.is_alive()
    for end in (here, channel, reserved):
        end.close()


def heard(channel, op):
    """Waits until the worker has said this."""
    while channel.receive()[0]["op"] != op:
        pass


def listens(address):
    with socket.socket() as client:
        return client.connect_ex(address) == 0


def test_worker_accepts_calls_only_once_it_has_its_routes(born):
    channel, grpc = born
    heard(channel, "hello")
    assert not listens(grpc), "a client would be refused what another worker answers"
    flags = {"loaded": False, "ready": True, "draining": False, "missing": ""}
    channel.send({**flags, "models": {}, "op": "routes", "id": 1})
    heard(channel, "reply")
    assert listens(grpc)


@needs("core_planner")
@pytest.mark.parametrize("groups", [{"small": {"p99_ms": 50.0}}])
def test_worker_reports_its_groups_and_goes_where_it_is_told(born, groups):
    channel, _ = born
    heard(channel, "hello")
    placements = {"small": [3, [min(available())]], "default": [1, [max(available())]]}
    channel.send({"op": "place", "placements": placements, "id": 1})
    heard(channel, "reply")
    channel.send({"op": "report", "id": 2})
    report = channel.receive()[0]["report"]
    assert {name: sessions for name, (sessions, _) in report["gauges"]["groups"].items()} == {"small": 3, "default": 1}
    assert report["counters"][PLANNED]["small"]["work"]["requests"] == 0
    assert report["gauges"][PLANNED] == {}


def test_end_does_not_wait_for_handshakes_of_clients():
    events = []

    async def main():
        finished = asyncio.Event()

        def end_handshakes():
            events.append("handshakes end")
            finished.set()

        worker = SimpleNamespace(
            _adopting={asyncio.create_task(finished.wait())},
            _ports=SimpleNamespace(
                http=SimpleNamespace(end_handshakes=end_handshakes), end=lambda: events.append("ports end")
            ),
        )
        await asyncio.wait_for(Worker._end(worker), 30)

    asyncio.run(main())
    assert events == ["handshakes end", "ports end"]
