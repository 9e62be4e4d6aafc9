"""h2load as the client that saturates a gRPC port: a closed loop in C over HTTP/2, as wrk is for HTTP/1.1.

It sends one message over and over and counts replies by their HTTP status, which gRPC says 200 in for errors too; so
whoever calls has to ask the server how many it has answered well.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.launch import HOST, CommandFailed
from loadtest.load.wrk import client

RATE = re.compile(r"finished in .*?, ([\d.]+) req/s")
DONE = re.compile(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed")


@dataclass(frozen=True, slots=True)
class H2LoadRun:
    """One run of h2load. requests: replies of HTTP status 2xx."""

    requests: int
    per_s: float


def saturate(port: int, method: str, message: bytes, seconds: float, connections: int) -> H2LoadRun:
    """Sends a message to a method ("/package.Service/Method") on loopback, one at a time on each connection."""
    length_s = max(1, round(seconds))
    with tempfile.TemporaryDirectory(prefix="freshet-h2load-") as folder:
        body = Path(folder) / "body"
        # gRPC's frame: not compressed, and the length.
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        words = ("-t", 1, "-c", connections, "-m", 1, "-D", length_s, "-d", body)
        headers = ("-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{HOST}:{port}{method}")
        return parse(client("h2load", length_s, *words, *headers))


def parse(output: str) -> H2LoadRun:
    """The figures in what h2load printed; raises CommandFailed without them, and when a request failed."""
    rate, done = RATE.search(output), DONE.search(output)
    if rate is None or done is None:
        raise CommandFailed(f"h2load: no figures in its output\n{output.strip()[-500:]}")
    requests, failed = int(done[2]), int(done[3])
    if not requests or failed:
        raise CommandFailed(f"h2load: {requests} requests, {failed} failed")
    return H2LoadRun(requests, float(rate[1]))
