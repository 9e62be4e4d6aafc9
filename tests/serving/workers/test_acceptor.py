"""Who gets a connection, and when."""

import asyncio
import contextlib
import socket

import pytest

from freshet_serving.serving.workers.acceptor import Acceptor
from tests.serving.workers.fakes import FakeFleet, FakeWorker
from tests.support.descriptors import few_descriptors


@contextlib.asynccontextmanager
async def accepting(worker_pool):
    """An Acceptor that listens, its address, and the task that ends once it has been ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    acceptor = Acceptor(listener, worker_pool)
    serving = asyncio.create_task(acceptor.listen())
    yield acceptor, listener.getsockname()
    await serving


async def held(acceptor):
    while acceptor._held is None:
        await asyncio.sleep(0.001)


def test_connection_without_a_free_worker_waits_for_its_turn():
    worker_pool, worker = FakeFleet(), FakeWorker(7)
    worker_pool.hand_off = lambda connection: bool(worker_pool.workers) and worker.hand_off(connection)
    said = []
    worker_pool.end = lambda: said.append("end")
    worker_pool.abort = lambda: said.append("abort")
    worker_pool.join = lambda: said.append("joined")

    async def main():
        async with accepting(worker_pool) as (acceptor, address):
            clients = [await asyncio.open_connection(*address) for _ in range(3)]
            await held(acceptor)
            assert worker.handed == 0
            worker_pool.workers.append(worker)
            assert [await reader.read() for reader, _ in clients] == [b"7"] * 3
            worker_pool.workers.clear()
            clients.append(await asyncio.open_connection(*address))
            await held(acceptor)
            acceptor.end()
            acceptor.abort()
        assert await clients[-1][0].read() == b"", "nobody is left to take it"
        for _, writer in clients:
            writer.close()
        with pytest.raises(OSError):
            socket.create_connection(address)

    asyncio.run(main())
    assert said == ["abort", "end", "joined"]


def test_waiting_connections_are_handed_out_before_workers_end(monkeypatch):
    worker_pool, worker, told = FakeFleet(), FakeWorker(7), []
    worker_pool.hand_off = lambda connection: bool(worker_pool.workers) and worker.hand_off(connection)
    worker_pool.end = lambda: told.append(worker.handed)
    worker_pool.join = lambda: None

    async def main():
        async with accepting(worker_pool) as (acceptor, address):
            clients = [await asyncio.open_connection(*address) for _ in range(5)]
            acceptor.end()
            await held(acceptor)
            worker_pool.workers.append(worker)
            assert [await reader.read() for reader, _ in clients] == [b"7"] * 5
            for _, writer in clients:
                writer.close()

    asyncio.run(main())
    assert told == [5]


def test_supervisor_without_descriptors_accepts_again_later(caplog):
    worker_pool, worker = FakeFleet(), FakeWorker(7)
    worker_pool.hand_off, worker_pool.end, worker_pool.join = worker.hand_off, lambda: None, lambda: None

    async def main():
        loop = asyncio.get_running_loop()
        async with accepting(worker_pool) as (acceptor, address):
            with socket.socket() as client:
                client.setblocking(False)
                with few_descriptors():
                    await loop.sock_connect(client, address)
                    while not acceptor._starved:
                        await asyncio.sleep(0.001)
                    assert worker.handed == 0
                assert await loop.sock_recv(client, 1) == b"7"
            acceptor.end()

    asyncio.run(main())
    assert caplog.text.count("cannot accept") == 1


def test_new_connections_wait_briefly_while_counts_are_uneven(monkeypatch):
    worker_pool, worker, waited = FakeFleet(), FakeWorker(7), []
    worker_pool.hand_off, worker_pool.unbalanced = worker.hand_off, True
    worker_pool.end = worker_pool.join = lambda: None
    pause = Acceptor._pause
    monkeypatch.setattr(
        Acceptor, "_pause", lambda acceptor, delay_s: (waited.append(worker.handed), pause(acceptor, delay_s))
    )

    async def main():
        async with accepting(worker_pool) as (acceptor, address):
            for _ in range(2):
                clients = [await asyncio.open_connection(*address) for _ in range(3)]
                assert [await reader.read() for reader, _ in clients] == [b"7"] * 3
                for _, writer in clients:
                    writer.close()
            worker_pool.unbalanced = False
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b"7"
            writer.close()
            acceptor.end()

    asyncio.run(main())
    assert waited[0] == 0
    assert 2 <= len(waited) <= 6
    assert worker.handed == 7
