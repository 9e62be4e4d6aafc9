"""Processes whose descriptors run out: they take no connection until they have some, and nobody dies."""

import contextlib
import functools
import http.client
import itertools
import json
import os
import resource
import select
import socket

import pytest

from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes
from tests.e2e.test_workers_live import pids, workers
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

BODY = json.dumps({"inputs": INPUTS}).encode()
REQUEST = b"POST /v1/models/small:predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
MANY = 40


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("descriptors")
    write_package(folder / "repository", users=USERS)
    with LiveServer(folder / "repository", "--workers", "2", log=folder / "serve.log") as server:
        server.log = folder / "serve.log"
        yield server


@contextlib.contextmanager
def starved(*processes, free=0):
    """These may have so many further descriptors."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in processes}
    for pid, (_, hard) in limits.items():
        taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
        most = list(itertools.islice((fd for fd in itertools.count() if fd not in taken), free + 1))[-1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


@pytest.mark.parametrize("who", ["workers", "supervisor"])
def test_process_without_descriptors_accepts_connections_again_later(live, who):
    before = pids(live)
    there = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)
    live.predict("small", INPUTS, there)
    with contextlib.ExitStack() as late:
        with starved(*(before if who == "workers" else [live.process.pid])):
            connect = functools.partial(socket.create_connection, ("127.0.0.1", live.http_port), timeout=60)
            clients = [late.enter_context(connect()) for _ in range(MANY)]
            for client in clients:
                client.sendall(REQUEST)
            for _ in range(10):
                live.predict("small", INPUTS, there)
            assert len(select.select(clients, [], [], 0)[0]) < MANY
        assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * MANY
        until(lambda: sum(worker["connections"] for worker in workers(live)) == MANY + 1)
    until(lambda: sum(worker["connections"] for worker in workers(live)) == 1)
    assert pids(live) == before
    assert "has closed the channel" not in live.log.read_text()
    there.close()


def test_row_delta_reaches_workers_without_free_descriptors(live, tmp_path):
    before = pids(live)
    with starved(*before, free=2):
        assert live.upload("small", delta_bytes(tmp_path, 1, dense_seed=False))[0] == 200
        status, reply = live.upload("small", delta_bytes(tmp_path, 2))
        assert status in (200, 503), reply
    if status == 503:
        assert live.upload("small", delta_bytes(tmp_path, 2))[0] == 200
    assert live.predict("small", INPUTS)[1] == "1.2"
    assert pids(live) == before
