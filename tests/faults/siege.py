"""`make -C loadtest siege`: what hostile requests cost everybody else. loadtest/results/siege.md.

For each request of tests.faults.hostile, at its largest: clients ask at a steady rate, by turns with nobody else, with
attackers that send that request again and again, each when its last one is answered, and with the same attackers
sending the same to a sink, a process beside the server that reads it and throws it away: what the cores are kept busy
with whoever reads. What is seen: how attackers are answered and how late, the clients' p99, memory, workers lost.

And for a server of few descriptors: how long its gRPC port is kept from a client by connections that say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from loadtest.load.processes import pss_nbytes, tree
from tests.e2e.servers import ALONE, LiveServer
from tests.faults import hostile
from tests.faults.load import HttpSide, Refused, Unsent
from tests.faults.truth import QUESTIONS
from tests.support.packages import write_package

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
ATTACKERS, CLIENTS, PAUSE_S = (1, 4), 4, 0.02
SECONDS = 2.5
SETUPS = {"default": (), "one process": ALONE, "recording": ("--record", "{root}/recordings", "--record-share", "1")}
"""Options of a server; {root} is its own folder."""
DESCRIPTORS, CROWD, MAX_WAIT_S = 700, 1500, 10.0
MAX_RATIO, MAX_NBYTES, MAX_ANSWER_S = 3.0, 100_000_000, 1.0
# What may be asked for is computed, in slices; the rest is refused at once.
COMPUTED = ("ids_within_limits", "rows_within_limits", "list_for_all")


class Client(threading.Thread):
    """Asks at a steady rate and notes how long each reply took: latencies, [(when, seconds)]."""

    def __init__(self, server, seed, side=None):
        super().__init__(daemon=True)
        self._server, self._number, self._side = server, seed, side or HttpSide("kserve")
        self.latencies, self.failed = [], 0
        self.stopped = threading.Event()
        self.start()

    def run(self):
        while not self.stopped.wait(PAUSE_S):
            began_s = time.monotonic()
            self._number = (self._number + 1) % len(QUESTIONS)
            try:
                self._side.ask(self._server, self._number)
                self.latencies.append((began_s, time.monotonic() - began_s))
            except (OSError, http.client.HTTPException, Refused, Unsent):
                self.failed += 1
                self._side.close()


def attack(port, name, seconds):
    """Sends the largest of a request for so long; {"answers": {status: count}, "slowest_s": ...} on stdout."""
    data = hostile.REQUESTS[name](2)
    answers, slowest_s = Counter(), 0.0
    # Whoever started this process counts from here on.
    print("begin", flush=True)
    sys.stdin.readline()
    give_up_s = time.monotonic() + seconds
    while time.monotonic() < give_up_s:
        with contextlib.closing(hostile.connect(port)) as sock:
            began_s = time.monotonic()
            with contextlib.suppress(OSError):
                sock.sendall(data)
            try:
                answers[hostile.answer(sock)] += 1
            except hostile.Bad as error:
                answers[str(error)[:60]] += 1
            slowest_s = max(slowest_s, time.monotonic() - began_s)
    print(json.dumps({"answers": answers, "slowest_s": slowest_s}), flush=True)


class Sink(asyncio.Protocol):
    """Reads one request, answers it with 413 whatever it was, and ends the connection."""

    def connection_made(self, transport):
        self._transport, self._head, self._left, self._tail = transport, b"", None, b""

    def data_received(self, data):
        if self._left is None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            declared = re.search(rb"\ncontent-length: (\d+)", head)
            self._left = int(declared[1]) if declared else 0 if b"chunked" not in head else 1 << 40
        self._left -= len(data)
        self._tail = (self._tail + data)[-5:]
        if self._left <= 0 or self._tail == b"0\r\n\r\n":
            self._transport.write(b"HTTP/1.1 413 x\r\ncontent-length: 0\r\n\r\n")
            self._transport.close()

    @classmethod
    async def serve(cls):
        """Until it is killed; its port on stdout."""
        server = await asyncio.get_running_loop().create_server(cls, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


@contextlib.contextmanager
def sink():
    """The port of a sink."""
    command = [sys.executable, "-m", "tests.faults.siege", "--sink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())
        process.kill()


def memory_nbytes(pid):
    """What a tree of processes takes, what they share counted once."""
    return pss_nbytes(tree(pid))


def besiege(server, clients, name, count, sink_port, rounds):
    """One line of the report."""
    answers, slowest_s, most = Counter(), 0.0, 0
    latencies = {"quiet": [], "sink": [], "under": []}
    before = memory_nbytes(server.process.pid)
    for _ in range(rounds):
        began_s = time.monotonic()
        time.sleep(SECONDS)
        latencies["quiet"] += latencies_of(clients, began_s, time.monotonic())
        for where, port in (("sink", sink_port), ("under", server.http_port)):
            with contextlib.ExitStack() as stack:
                attackers = [stack.enter_context(_attacker(name, port)) for _ in range(count)]
                began_s = time.monotonic()
                for attacker in attackers:
                    attacker.stdin.write("\n")
                    attacker.stdin.flush()
                while any(attacker.poll() is None for attacker in attackers):
                    if where == "under":
                        most = max(most, memory_nbytes(server.process.pid))
                    time.sleep(0.05)
                latencies[where] += latencies_of(clients, began_s, time.monotonic())
                outcomes = [json.loads(attacker.stdout.readline()) for attacker in attackers]
            if where == "under":
                answers += sum((Counter(outcome["answers"]) for outcome in outcomes), Counter())
                slowest_s = max(slowest_s, *(outcome["slowest_s"] for outcome in outcomes))
    p99_ms = {where: float(np.quantile(seconds, 0.99)) * 1e3 for where, seconds in latencies.items()}
    return {
        "request": name,
        "nbytes": len(hostile.REQUESTS[name](2)),
        "answers": dict(answers),
        "slowest_s": slowest_s,
        "p99_ms": p99_ms,
        "more_nbytes": max(0, most - before),
    }


def crowded(root):
    """Seconds until a gRPC client is answered by a server whose connections are all taken by such that are silent, half
    of them after their first words; MAX_WAIT_S times 6 where it is not."""
    import grpc

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    write_package(Path(root, "repository"), users=range(20))
    with (
        LiveServer(Path(root, "repository"), log=Path(root, "serve.log"), descriptors=DESCRIPTORS) as server,
        contextlib.ExitStack() as held,
    ):
        for n in range(CROWD):
            with contextlib.suppress(OSError):
                sock = held.enter_context(hostile.connect(server.grpc_port))
                sock.sendall(hostile.RPC_PREFACE if n % 2 else b"")
        began_s = time.monotonic()
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with contextlib.suppress(grpc.RpcError):
                live(b"", timeout=6 * MAX_WAIT_S, wait_for_ready=True)
        waited_s = time.monotonic() - began_s
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return waited_s


def _attacker(name, port):
    """A process that is about to attack a port."""
    command = [sys.executable, "-m", "tests.faults.siege", "--attack", name, "--port", str(port)]
    attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    attacker.stdout.readline()
    return attacker


def latencies_of(clients, from_s, until_s):
    """Seconds of replies to requests that clients sent in this time."""
    return [s for client in clients for at_s, s in list(client.latencies) if from_s <= at_s <= until_s]


def held(line):
    """What of a line is not as it should be."""
    bad = []
    if line["p99_ms"]["under"] > MAX_RATIO * line["p99_ms"]["quiet"]:
        bad.append("p99")
    if line["more_nbytes"] > MAX_NBYTES:
        bad.append("memory")
    if line["slowest_s"] > MAX_ANSWER_S and line["request"] not in COMPUTED:
        bad.append("late")
    if not all(status == "closed" or status in ("200", "503") or status.startswith("4") for status in line["answers"]):
        bad.append("answer")
    return bad


def page(results, rounds, waited_s):
    """Markdown. found: setup -> (lines, workers lost, clients' requests that failed). waited_s: see crowded(); None
    where it was not run."""
    lines = [
        "# Hostile requests",
        "",
        f"`make -C loadtest siege`: attackers send the same hostile request again and again, {CLIENTS} clients ask "
        f"every {PAUSE_S * 1e3:.0f} ms; {rounds} times {SECONDS:g} s without attackers, with them at a sink beside the "
        "server, and with them at the server, all on the same cores.",
    ]
    for setup, (rows, lost, failed) in results.items():
        lines += [
            "",
            f"## {setup}: {lost} workers lost, {failed} of the clients' requests failed",
            "",
            "| request | sent | answered | slowest | p99 alone | at a sink | at the server | over alone | over a sink "
            "| memory above | missed |",
            "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        for row in rows:
            name, missed, p99_ms = row["request"].replace("_", " "), ", ".join(held(row)), row["p99_ms"]
            quiet, elsewhere, under = p99_ms["quiet"], p99_ms["sink"], p99_ms["under"]
            answered = ", ".join(f"{n:,} x {status}" for status, n in sorted(row["answers"].items()))
            lines.append(
                f"| {name} | {row['nbytes'] / 1e3:,.0f} kB | {answered} "
                f"| {row['slowest_s']:.2f} s | {quiet:.1f} ms | {elsewhere:.1f} ms | {under:.1f} ms "
                f"| {under / quiet:.1f} | {under / elsewhere:.1f} | {row['more_nbytes'] / 1e6:.0f} MB | {missed} |"
            )
    if waited_s is not None:
        lines += [
            "",
            f"## {DESCRIPTORS} descriptors, {CROWD} gRPC connections that say nothing",
            "",
            f"A gRPC client was answered after {waited_s:.1f} s, at most {MAX_WAIT_S:g} s wanted.",
        ]
    return "\n".join([*lines, ""])


def measured(names, rounds):
    """Runs the requests against each setup, with each number of attackers; yields page()'s results as they complete."""
    for setup, options in SETUPS.items():
        with tempfile.TemporaryDirectory(prefix="freshet-siege-") as root, sink() as sink_port:
            write_package(Path(root, "repository"), users=range(20))
            options = [option.format(root=root) for option in options]
            with LiveServer(Path(root, "repository"), *options, log=Path(root, "serve.log")) as server:
                before = set(tree(server.process.pid))
                clients = [Client(server, n) for n in range(CLIENTS)]
                time.sleep(1.0)
                for count in ATTACKERS:
                    rows, failed = [], sum(client.failed for client in clients)
                    for name in names:
                        rows.append(besiege(server, clients, name, count, sink_port, rounds))
                        print(f"{setup}, {count}: {rows[-1]} {held(rows[-1])}", flush=True)
                    lost = len(before.difference(tree(server.process.pid)))
                    failed = sum(c.failed for c in clients) - failed
                    yield f"{setup}, {count} attacker{'s' * (count > 1)}", (rows, lost, failed)
                for client in clients:
                    client.stopped.set()
                    client.join()


def main() -> int:
    """0 when every line is as it should be."""
    parser = argparse.ArgumentParser(prog="make -C loadtest siege", description=__doc__)
    parser.add_argument("--only", default="", help="requests with one of these words, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--rounds", type=int, default=2, help="of each request [2]")
    parser.add_argument("--attack", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sink:
        asyncio.run(Sink.serve())
    if options.attack:
        attack(options.port, options.attack, SECONDS)
        return 0
    words = [word for word in options.only.split(",") if word]
    names = [name for name in hostile.REQUESTS if not words or any(word in name for word in words)]
    results, waited_s = {}, None

    def write() -> str:
        text = page(results, options.rounds, waited_s)
        (options.out / "siege.md").write_text(text)
        return text

    options.out.mkdir(parents=True, exist_ok=True)
    # After each setup: a run that is cut off leaves what it has measured.
    for title, outcome in measured(names, options.rounds) if names else ():
        results[title] = outcome
        write()
    if not words or any(word in "idle_rpc" for word in words):
        with tempfile.TemporaryDirectory(prefix="freshet-siege-") as root:
            waited_s = crowded(root)
        print(f"crowded: {waited_s:.1f} s", flush=True)
    print(write())
    if waited_s is not None and waited_s > MAX_WAIT_S:
        return 1
    return 1 if any(lost or failed or any(map(held, rows)) for rows, lost, failed in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
