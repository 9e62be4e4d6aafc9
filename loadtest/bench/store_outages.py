"""Reads of online features while the store is well, slow, wrong or gone: how long each takes, and what it counts.

Each state is asked one read after another, each for another user, without the cache, so that every read needs the
store. A read that takes longer than timeout_ms and 20 ms more is beyond the goal, on a machine of its own.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.opening import open_stores
from freshet_serving.processor.extensions.online_features.reader import OnlineFeatures
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings

TIMEOUT_MS = 2.0
GOAL_MS = TIMEOUT_MS + 20
FEATURES = 30
DELAY_S = 1.0
PAUSE_S = 0.002
"""Between two reads."""
HUGE_NBYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Outage:
    """Reads in one state of the store.

    Attributes:
        state: The state.
        times_ms: Milliseconds of each read.
        values: Values by status.
        losses: Keys without an answer, by the reason.
    """

    state: str
    times_ms: list[float]
    values: dict[str, int]
    losses: dict[str, int]


@contextmanager
def redis_server(port: int = 0) -> Iterator[int]:
    """Run a redis-server without persistence on a loopback port; yields the port.

    Args:
        port: The port; 0 for a free one.
    """
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="freshet-redis-") as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end_s = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > end_s or process.poll() is not None:
                        raise
                    time.sleep(0.02)
            yield port
        finally:
            process.kill()
            process.wait()


def send(port: int, *commands: tuple[bytes, ...]) -> None:
    """Send commands to a redis-server and wait for their replies, each of one line.

    Args:
        port: The server's port.
        commands: The commands.
    """
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for command in commands:
            parts = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
            sock.sendall(b"*%d\r\n" % len(command) + parts)
            reply = b""
            while not reply.endswith(b"\r\n"):
                if not (data := sock.recv(1 << 16)):
                    raise ConnectionError("redis-server closed the connection")
                reply += data


@contextmanager
def delayed(port: int, seconds: Callable[[], float]) -> Iterator[int]:
    """Run a proxy that holds back what a server answers; yields its port.

    Args:
        port: The server's port.
        seconds: How long, asked for each piece of a reply.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = [listener]

    def forward(source: socket.socket, target: socket.socket, held: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if held:
                    time.sleep(seconds())
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                sockets.extend((client, server))
                threading.Thread(target=forward, args=(client, server, False), daemon=True).start()
                threading.Thread(target=forward, args=(server, client, True), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def measure_outages(reads: int) -> list[Outage]:
    """Read in each state.

    Args:
        reads: Reads a state.
    """
    delay = 0.0
    names = [f"f{n}" for n in range(FEATURES)]
    section = {
        "key": "user_id", "format": "hash", "features": names, "types": dict.fromkeys(names, "int64"),
        "timeout_ms": TIMEOUT_MS,
    }  # fmt: skip
    group = parse_group("user", section)
    found = []

    def run(state: str, port: int) -> None:
        settings = OnlineStoreSettings("main", f"redis://127.0.0.1:{port}", cache_ttl_s=0.0)
        stores = open_stores([settings], SystemClock())
        features = OnlineFeatures([group], stores, {}, SystemClock())
        time.sleep(0.2)
        read_all(state, features)
        stores["main"].store.close()

    def read_all(state: str, features: OnlineFeatures) -> None:
        before = features.counted()
        times_ms = []
        for user in range(reads):
            began = time.perf_counter()
            features.read(features.keys_of({"user_id": np.array([user], np.int64)}))
            times_ms.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE_S)
        after = features.counted()
        gained = {slot: int(count - before[slot]) for slot, count in after.items()}
        values = {slot.value: count for slot, count in gained.items() if slot.label == "status"}
        losses = {slot.value: count for slot, count in gained.items() if slot.label == "reason"}
        found.append(
            Outage(state, times_ms, {n: c for n, c in values.items() if c}, {n: c for n, c in losses.items() if c})
        )

    def write(port: int, *extra: tuple[bytes, ...]) -> None:
        rows = [part for name in names for part in (name.encode(), b"7")]
        send(port, *((b"HSET", b"user:%d" % user, *rows) for user in range(reads)), *extra)

    with redis_server() as port:
        write(port)
        run("well", port)
        with delayed(port, lambda: delay) as slow:
            delay = DELAY_S
            run(f"slowed to {DELAY_S:g} s", slow)
        every = range(reads)
        send(port, *((b"SET", b"user:%d" % u, b"x") for u in every))
        run("another type under every key", port)
        send(port, (b"FLUSHALL",))
        write(port, *((b"HSET", b"user:%d" % u, b"f0", b"x" * HUGE_NBYTES) for u in every if u % 20 == 0))
        run(f"{HUGE_NBYTES >> 20} MiB under every 20th key", port)
    run("stopped", port)
    settings = OnlineStoreSettings("main", f"redis://127.0.0.1:{port}", cache_ttl_s=0.0)
    stores = open_stores([settings], SystemClock())
    features = OnlineFeatures([group], stores, {}, SystemClock())
    with redis_server(port):
        write(port)
        read_all("just started again", features)
        time.sleep(0.5)
        read_all("half a second later", features)
    stores["main"].store.close()
    return found
