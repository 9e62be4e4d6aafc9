"""wrk as the client that saturates a server: a closed loop in C, so that little of the machine goes to the client.

wrk sends the bodies of a saved payload in turn (wrk.lua) and counts what came back. A run with any reply that is not a
success, or with any broken connection, is a failed run: its throughput would be that of errors. Its latencies are those
of a closed loop: of use to compare servers at equal connections, not to say what users would see (see openloop).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.launch import HOST, CommandFailed
from loadtest.load.payload import Payload

SCRIPT = Path(__file__).with_name("wrk.lua")
MARK = "@wrk "
REPLY_TIMEOUT_S = 10
STARTUP_S = 30.0
MISSING = {
    "wrk": "wrk is not installed: it is the Debian and Ubuntu package wrk (apt-get install wrk), in Homebrew too",
    "h2load": "h2load is not installed: it is in the Debian and Ubuntu package nghttp2-client",
}
ERRORS = ("status", "connect", "read", "write", "timeout")


@dataclass(frozen=True, slots=True)
class WrkRun:
    """One run of wrk. latency_ms: p50, p90, p99, max of the closed loop. errors: by kind, those that happened."""

    requests: int
    seconds: float
    latency_ms: dict[str, float]
    errors: dict[str, int]

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


def available(program: str = "wrk") -> str:
    """The path of wrk, or of h2load; raises CommandFailed with one line on what to install."""
    found = shutil.which(program)
    if found is None:
        raise CommandFailed(MISSING[program])
    return found


def client(program: str, length_s: int, *words: object) -> str:
    """Run a client that is to end by itself after so many seconds; return what it printed. Raises CommandFailed."""
    command = [available(program), *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=length_s + REPLY_TIMEOUT_S + STARTUP_S)
    if run.returncode:
        raise CommandFailed(f"{program}: exit code {run.returncode}\n{(run.stderr or run.stdout).strip()[-500:]}")
    return run.stdout


def saturate(port: int, payload: Path, seconds: float, connections: int) -> WrkRun:
    """Sends a payload to a server on loopback from `connections` connections, each as fast as its replies come.

    Raises CommandFailed when wrk fails, and when any reply was not a success.
    """
    about = Payload.load(payload)
    headers = [text for item in about.headers.items() for text in item]
    length_s = max(1, round(seconds))
    words = ("-t", 1, "-c", connections, "-d", f"{length_s}s", "--timeout", f"{REPLY_TIMEOUT_S}s", "-s", SCRIPT)
    script = (f"http://{HOST}:{port}{about.path}", "--", payload, about.path, len(about.bodies), *headers)
    found = parse(client("wrk", length_s, *words, *script))
    if found.errors or not found.requests:
        counted = ", ".join(f"{count} by {kind}" for kind, count in found.errors.items()) or "no reply at all"
        raise CommandFailed(f"wrk: {found.requests} requests, but failed: {counted}")
    return found


def parse(output: str) -> WrkRun:
    """The figures in what wrk printed, by the line that wrk.lua adds; raises CommandFailed without one."""
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    try:
        found = json.loads(lines[-1].removeprefix(MARK))
        return WrkRun(
            requests=int(found["requests"]),
            seconds=int(found["duration_us"]) / 1e6,
            latency_ms={name: found[f"{name}_us"] / 1e3 for name in ("p50", "p90", "p99", "max")},
            errors={kind: int(found[kind]) for kind in ERRORS if found[kind]},
        )
    except (IndexError, KeyError, TypeError, ValueError):
        raise CommandFailed(f"wrk: no figures in its output\n{output.strip()[-500:]}") from None
