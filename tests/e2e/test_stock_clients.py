"""Clients as they come with other people's systems, with their defaults: many predictions over one connection.

java.net.http and curl --http2 ask for HTTP/2 by `Upgrade`, which a server of HTTP/1.1 answers as if it was not
there; java's body comes in a segment of its own. FRESHET_STOCK_REQUESTS: how many, 100 if not set.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CLIENTS = Path(__file__).parent / "clients"
COUNT = int(os.environ.get("FRESHET_STOCK_REQUESTS", "100"))
TIMEOUT_S = 300


class Relay:
    """A port in front of another one that counts connections."""

    def __init__(self, port):
        self._there, self.connections = port, 0

    async def _copy(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _relay(self, reader, writer):
        self.connections += 1
        onward, there = await asyncio.open_connection("127.0.0.1", self._there)
        try:
            await asyncio.gather(self._copy(reader, there), self._copy(onward, writer))
        finally:  # also where the loop ends first: a client may keep its connection
            for each in (writer, there):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()

    async def _serve(self, started):
        self._ending = asyncio.Event()
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._loop = asyncio.get_running_loop()
            started.set()
            await self._ending.wait()

    def __enter__(self):
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    write_package(folder / "repository", users=USERS)
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as server:
        server.body, server.reply = folder / "body.json", folder / "reply.json"
        server.body.write_text(json.dumps({"inputs": INPUTS}))
        status, _, reply = server.request("POST", "/v1/models/small:predict", server.body.read_bytes())
        assert status == 200, reply
        server.reply.write_bytes(reply)
        yield server


def command(name):
    """The program, where it is installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.mark.parametrize(
    "program", [("java", "Predicts.java"), ("go", "run", "predicts.go"), ("node", "predicts.mjs")], ids=lambda p: p[0]
)
def test_stock_client_predicts_over_one_connection(live, program):
    name, *how, file = program
    with Relay(live.http_port) as relay:
        url = f"http://127.0.0.1:{relay.port}/v1/models/small:predict"
        given = [command(name), *how, str(CLIENTS / file), url, str(live.body), str(live.reply), str(COUNT)]
        done = subprocess.run(given, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-4000:]
    # Node's pool opens a second one before it has seen that the first is free again.
    assert relay.connections <= 1 + (name == "node")


def test_curl_preferring_http_2_predicts_over_one_connection(live, tmp_path):
    replies = tmp_path / "replies"
    config = tmp_path / "curl.cfg"
    url = f"http://127.0.0.1:{live.http_port}/v1/models/small:predict"
    config.write_text(f'url = "{url}"\noutput = "{replies}"\n' * COUNT)
    given = [command("curl"), "--http2", "--silent", "--show-error", "--data-binary", f"@{live.body}"]
    given += ["--write-out", "%{http_code} %{num_connects} %{http_version}\n", "--config", str(config)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = done.stdout.split("\n")[:-1]
    assert lines == ["200 1 1.1"] + ["200 0 1.1"] * (COUNT - 1), done.stderr[-4000:]
    assert replies.read_bytes() == live.reply.read_bytes()
