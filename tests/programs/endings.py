"""`make -C loadtest endings`: SIGTERM under load, 50 times for each of two layouts. loadtest/results/endings.md.

Clients of every habit ask one server over HTTP and gRPC until nobody listens any more: without a pause, with pauses,
three requests in one segment, a request in two pieces, a connection for each request. The server gets SIGTERM at some
moment. A request is lost when it was sent on a connection before the client could know of its end, by a reply that says
`connection: close` or by the FIN in its buffer, and no whole reply came; a call, when it failed for another reason than
that no connection was to be had. At the end nothing may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from tests.e2e.asking import INFER, PREDICT, http_bodies, rpc_messages
from tests.e2e.servers import LiveServer
from tests.support.packages import write_package

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
WAIT_S, LOAD_S = 30.0, (0.3, 1.0)
USERS, ROWS = 50, 4
LAYOUTS = {"one process": 1, "two workers": 2}


@dataclass(frozen=True)
class Habit:
    """How a client asks. at_once: requests in a segment. pause_s: between two of them, up to."""

    name: str
    clients: int
    at_once: int = 1
    pause_s: float = 0.0
    pieces: bool = False
    once: bool = False


# Those with the longest pauses may send while FIN is on its way, to which HTTP/1.1 has no answer; on loopback it is
# there at once.
HTTP = (
    Habit("no pause", 6),
    Habit("pauses of up to 20 ms", 6, pause_s=0.02),
    Habit("pauses of up to 0.4 s", 6, pause_s=0.4),
    Habit("pauses of up to 2 s", 4, pause_s=2.0),
    Habit("three in one segment", 2, at_once=3),
    Habit("in two pieces", 3, pieces=True),
    Habit("a connection each", 2, pause_s=0.01, once=True),
)
GRPC = (
    Habit("gRPC, no pause", 6),
    Habit("gRPC, pauses of up to 20 ms", 6, pause_s=0.02),
    Habit("gRPC, a channel each", 4, once=True),
)


@dataclass
class Seen:
    """What the clients of one round have seen. told: ends by a reply, by FIN. lost: what of whom, and how."""

    answered: Counter = field(default_factory=Counter)
    told: Counter = field(default_factory=Counter)
    lost: list = field(default_factory=list)
    took_s: float = 0.0

    def __iadd__(self, other):
        self.answered += other.answered
        self.told += other.told
        self.lost += other.lost
        return self


class Ended(Exception):
    """The connection gave less than a whole reply."""


def messages():
    """An HTTP request as (head, body), and a gRPC message by method."""
    drawn = np.random.default_rng(7)
    columns = drawn.integers(0, USERS, ROWS), [["a"], [], ["b", "c"], ["c"]], drawn.random((ROWS, 4), np.float32)
    path, headers, body = http_bodies(*columns)["tfs"]
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines).encode() + b"\r\n\r\n", body), rpc_messages(*columns)


async def over_http(habit, port, message, seen):
    """A client, until it cannot connect."""
    loop, at = asyncio.get_running_loop(), ("127.0.0.1", port)
    head, body = message
    while True:
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await asyncio.wait_for(loop.sock_connect(connection, at), WAIT_S)
            except OSError:
                return
            buffer, last = b"", False
            while not last:
                if _ended(connection):
                    seen.told["by FIN"] += 1
                    break
                answers = 0
                try:
                    if habit.pieces:
                        await loop.sock_sendall(connection, head + body[:9])
                        await asyncio.sleep(random.uniform(0, 0.02))
                        await loop.sock_sendall(connection, body[9:])
                    else:
                        await loop.sock_sendall(connection, (head + body) * habit.at_once)
                    while answers < habit.at_once:
                        last, buffer = await asyncio.wait_for(_reply(loop, connection, buffer), WAIT_S)
                        answers += 1
                        if last:
                            await _end(loop, connection)
                            break
                except (OSError, Ended) as error:
                    last = True
                    seen.lost.append(f"{habit.name}: {type(error).__name__} {error}")
                else:
                    seen.told["by a reply"] += last
                    if answers < habit.at_once:
                        seen.lost.append(f"{habit.name}: {habit.at_once - answers} behind the last reply")
                seen.answered[habit.name] += answers
                last |= habit.once
                if not last:
                    await asyncio.sleep(random.uniform(0, habit.pause_s))


def _ended(connection):
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def _reply(loop, connection, data):
    """Whether a reply is the connection's last, and the bytes behind it."""
    while b"\r\n\r\n" not in data:
        data += await _more(loop, connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.lower().split(b"\r\n")
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    while len(rest) < int(headers[b"content-length"]):
        rest += await _more(loop, connection)
    if b" 200 " not in first:
        raise Ended(head.decode())
    return headers.get(b"connection") == b"close", rest[int(headers[b"content-length"]) :]


async def _end(loop, connection):
    """Reads the end of file behind a last reply; raises OSError for a reset."""
    while await asyncio.wait_for(loop.sock_recv(connection, 1 << 16), WAIT_S):
        pass


async def _more(loop, connection):
    data = await loop.sock_recv(connection, 1 << 16)
    if not data:
        raise Ended("end of file")
    return data


async def over_grpc(habit, port, method, message, seen):
    """A client with a channel of its own, until it cannot connect."""
    while True:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(method)
            once = False
            while not once:
                try:
                    await call(message, timeout=WAIT_S)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in error.details().lower():
                        return
                    seen.lost.append(f"{habit.name}: {error.code().name} {error.details()}")
                else:
                    seen.answered[habit.name] += 1
                await asyncio.sleep(random.uniform(0, habit.pause_s))
                once = habit.once


async def meet(server, requests):
    """One round on a server that is up: what its clients have seen when it has ended."""
    seen, (http, rpc) = Seen(), requests
    asking = [over_http(h, server.http_port, http, seen) for h in HTTP for _ in range(h.clients)]
    asking += [
        over_grpc(habit, server.grpc_port, method, rpc[method], seen)
        for habit in GRPC
        for _ in range(habit.clients // 2)
        for method in (INFER, PREDICT)
    ]
    running = [asyncio.create_task(each) for each in asking]
    await asyncio.sleep(random.uniform(*LOAD_S))
    began_s = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(server.process.wait, WAIT_S)
    seen.took_s = time.monotonic() - began_s
    await asyncio.wait_for(asyncio.gather(*running), 2 * WAIT_S)
    if code:
        seen.lost.append(f"the server ended with code {code}")
    return seen


def rounds(folder, workers, number):
    """What the clients of so many rounds have seen, a round at a time; in every fifth the server drains first."""
    write_package(folder / "repository", users=range(USERS))
    requests = messages()
    for n in range(1, number + 1):
        options = ("--workers", str(workers), "--drain-s", "0" if n % 5 else "1")
        with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
            yield asyncio.run(meet(server, requests))


def page(totals, number):
    """The report. found: what was seen in all rounds, and how long each end took, by layout."""
    lines = [
        "# SIGTERM under load",
        "",
        f"`make -C loadtest endings`: {number} rounds with each layout, "
        f"{sum(h.clients for h in HTTP)} connections over HTTP and "
        f"{sum(h.clients for h in GRPC)} over gRPC. Lost is a request that was sent before its client could know of "
        "the end and that got no whole reply.",
        "",
        "| layout | answered over HTTP | over gRPC | told by a reply | by FIN | lost | SIGTERM to exit: median, most |",
        "|---|---|---|---|---|---|---|",
    ]
    for layout, (seen, took_s) in totals.items():
        rpc = sum(count for name, count in seen.answered.items() if name.startswith("gRPC"))
        lines.append(
            f"| {layout} | {seen.answered.total() - rpc:,} | {rpc:,} | {seen.told['by a reply']:,} | "
            f"{seen.told['by FIN']:,} | {len(seen.lost)} | {statistics.median(took_s):.1f} s, {max(took_s):.1f} s |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    """0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="make -C loadtest endings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="with each layout [50]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    totals = {}
    for layout, workers in LAYOUTS.items():
        total, took_s = Seen(), []
        with tempfile.TemporaryDirectory(prefix="freshet-endings-") as root:
            for n, seen in enumerate(rounds(Path(root), workers, options.rounds), 1):
                total += seen
                took_s.append(seen.took_s)
                lost = "".join(f"\n  LOST {line} x{count}" for line, count in Counter(seen.lost).items())
                print(f"{layout} {n}: {seen.answered.total()} answered, {seen.took_s:.2f} s{lost}", flush=True)
        totals[layout] = total, took_s
    with contextlib.suppress(FileExistsError):
        options.out.mkdir(parents=True)
    (options.out / "endings.md").write_text(page(totals, options.rounds))
    return 1 if any(seen.lost for seen, _ in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
