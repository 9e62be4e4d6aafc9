"""`make -C loadtest siege`, the part about access: what floods of handshakes and of guessed keys cost everybody else.
loadtest/results/siege-access.md.

Clients with a key ask over TLS at a steady rate, by turns with nobody else, with a flood at a null server beside it (it
shakes hands by itself, and answers 401 to whatever comes), and with the same flood at the server. A flood has a fixed
rate, whatever it meets, and comes from 127.0.0.2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop
from cryptography.hazmat.primitives.asymmetric import rsa

from freshet_serving.serving.access.key_file import RateLimits, changing
from loadtest.load.processes import tree
from tests.e2e.test_access_clients import SecureServer
from tests.faults.load import Refused
from tests.faults.siege import CLIENTS, MAX_RATIO, PAUSE_S, RESULTS, Client, latencies_of, memory_nbytes
from tests.serving.access.certified import Authority
from tests.support.packages import write_package

SECONDS, FROM = 4.0, "127.0.0.2"
RATES = {"handshakes": 200, "guessed keys": 1000}
SETUPS = {"two workers": ("--workers", "2"), "one process": ("--workers", "1")}
# Clients, of 127.0.0.1, ask half as often all together.
ADDRESS_RATE = 400.0
BODY = b'{"error":"authorization: expected a valid bearer token"}'
REFUSAL = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Null(asyncio.Protocol):
    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._transport.write(REFUSAL)


async def serve_null(chain, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    server = await asyncio.get_running_loop().create_server(Null, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def flood(name, port):
    """Floods a port for SECONDS, at its rate; what came of it on stdout."""
    context, rate, seen = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), RATES[name], Counter()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    began_s, connection = time.monotonic(), None
    number = 0
    while (now_s := time.monotonic()) < began_s + SECONDS:
        if (early_s := began_s + number / rate - now_s) > 0:
            time.sleep(early_s)
        number += 1
        try:
            if name == "handshakes":
                connect(context, port).close()
                seen["shaken"] += 1
                continue
            connection = connection or connect(context, port)
            guess = b"GET /v2 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer freshet_%043d\r\n\r\n" % number
            connection.sendall(guess)
            seen[connection.recv(4096)[9:12].decode()] += 1
        except OSError as error:
            seen[type(error).__name__] += 1
            connection = None
    print(json.dumps(seen), flush=True)


def connect(context, port):
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 10, (FROM, 0)))


class TlsSide:
    """One kept connection over TLS, with a key (tests.faults.load.HttpSide)."""

    def __init__(self, server):
        inputs = {"user": [3], "tags": [["a"]], "floats": [[0.5] * 4]}
        self._body = json.dumps({"inputs": inputs})
        self._headers = {"content-type": "application/json", **server.keyed.headers("predict")}
        self._connection = http.client.HTTPSConnection(
            "localhost", server.http_port, timeout=30, context=server.authority.client()
        )

    def ask(self, server, number):
        self._connection.request("POST", "/v1/models/small:predict", self._body, self._headers)
        reply = self._connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise Refused(reply.status)

    def close(self):
        """The next request connects anew."""
        self._connection.close()


def besiege(server, clients, name, null_port, rounds):
    """One line of the report."""
    before, most, seen = memory_nbytes(server.process.pid), 0, Counter()
    latencies = {"quiet": [], "null": [], "under": []}
    for _ in range(rounds):
        for where, port in (("quiet", 0), ("null", null_port), ("under", server.http_port)):
            began_s = time.monotonic()
            if port:
                command = [sys.executable, "-m", "tests.faults.access_siege", "--flood", name, "--port", str(port)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooding:
                    time.sleep(1.0)
                    began_s = time.monotonic()
                    while flooding.poll() is None:
                        most = max(most, memory_nbytes(server.process.pid)) if where == "under" else most
                        time.sleep(0.2)
                    outcome = json.loads(flooding.stdout.read())
                if where == "under":
                    seen += Counter(outcome)
            else:
                time.sleep(SECONDS)
            latencies[where] += latencies_of(clients, began_s, time.monotonic())
    p99_ms = {where: float(np.quantile(seconds, 0.99)) * 1e3 for where, seconds in latencies.items()}
    return {"name": name, "seen": dict(seen), "p99_ms": p99_ms, "more_nbytes": max(0, most - before)}


def page(measured):
    """Markdown. found: setup -> (lines, workers lost, clients' requests that failed)."""
    lines = [
        "# Floods of handshakes and of guessed keys",
        "",
        f"`make -C loadtest siege`: {CLIENTS} clients with a key ask over TLS every {PAUSE_S * 1e3:.0f} ms, alone, "
        f"with a flood from {FROM} at a null server beside it, and with the same flood at the server, RSA keys of "
        f"2048 bits, each address limited to {ADDRESS_RATE:g} requests a second, all on the same cores.",
    ]
    for setup, (rows, lost, failed) in measured.items():
        lines += [
            "",
            f"## {setup}: {lost} workers lost, {failed} of the clients' requests failed",
            "",
            "| flood | a second | met | p99 alone | at a null server | at the server | over a null server "
            "| memory above |",
            "|---|---:|---|---:|---:|---:|---:|---:|",
        ]
        for row in rows:
            p99_ms, met = row["p99_ms"], ", ".join(f"{n:,} x {status}" for status, n in sorted(row["seen"].items()))
            lines.append(
                f"| {row['name']} | {RATES[row['name']]} | {met} | {p99_ms['quiet']:.1f} ms "
                f"| {p99_ms['null']:.1f} ms | {p99_ms['under']:.1f} ms | {p99_ms['under'] / p99_ms['null']:.1f} "
                f"| {row['more_nbytes'] / 1e6:.0f} MB |"
            )
    return "\n".join([*lines, ""])


def main() -> int:
    """0 when every p99 is at most MAX_RATIO times that with a null server, and nothing is lost."""
    parser = argparse.ArgumentParser(prog="make -C loadtest siege", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--rounds", type=int, default=2, help="of each flood [2]")
    parser.add_argument("--flood", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--null", nargs=2, default=(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        flood(arguments.flood, arguments.port)
        return 0
    if arguments.null:
        uvloop.run(serve_null(*arguments.null))
        return 0
    measured, bad = {}, False
    for setup, options in SETUPS.items():
        with tempfile.TemporaryDirectory(prefix="freshet-siege-") as root, contextlib.ExitStack() as stack:
            folder = Path(root)
            write_package(folder / "repository", users=range(20))
            authority = Authority(folder, made=lambda: rsa.generate_private_key(65537, 2048))
            server = SecureServer(folder, *options, authority=authority)
            with changing(server.keyed.path) as held:
                held[0] = type(held[0])(held[0].keys, RateLimits(rate=ADDRESS_RATE))
            stack.enter_context(server)
            paths = authority.write("null")
            command = [sys.executable, "-m", "tests.faults.access_siege", "--null", *map(str, paths)]
            null = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            port = int(null.stdout.readline())
            processes = set(tree(server.process.pid))
            clients = [Client(server, n, TlsSide(server)) for n in range(CLIENTS)]
            rows = [besiege(server, clients, name, port, arguments.rounds) for name in RATES]
            for client in clients:
                client.stopped.set()
            for client in clients:
                client.join()
            null.kill()
            lost, failed = len(processes.difference(tree(server.process.pid))), sum(client.failed for client in clients)
            measured[setup] = rows, lost, failed
            bad |= bool(lost or failed) or any(r["p99_ms"]["under"] > MAX_RATIO * r["p99_ms"]["null"] for r in rows)
    text = page(measured)
    (arguments.out / "siege-access.md").write_text(text)
    print(text)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
