"""A peer in its virtual environment: installed, started, ended."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.launch import HOST, CommandFailed, free_ports
from loadtest.load.payload import Payload
from loadtest.peers.roster import Peer

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 180.0
INSTALL_TIMEOUT_S = 1800.0
POLL_S = 0.2
STOP_TIMEOUT_S = 15.0
REPLY_TIMEOUT_S = 30.0
TAIL_LINES = 12


def install(peer: Peer, venvs: Path, interpreter: str = sys.executable) -> Path:
    """The interpreter of the peer's environment, made on first use with `interpreter`, and brought up to date whenever
    its requirements change."""
    folder = venvs / peer.name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    if not python.exists():
        _run([interpreter, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(peer.requirements)])
    stamp.write_text(wanted)
    return python


@contextlib.contextmanager
def running(peer: Peer, python: Path, options: tuple[str, ...], version: Path, payload: Payload) -> Iterator[int]:
    """The peer's server over a version's folder while the block runs; yields its port once it has answered a request.

    Raises CommandFailed, with the end of what it said, when it never does.
    """
    port, *others = free_ports(3)
    command = [str(python), str(peer.server), "--folder", str(version), "--port", str(port), *options]
    if peer.other_ports:
        command += ["--other-ports", *map(str, others)]
    # Its own cache of compiled kernels: another version of Numba would throw ours away.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(python.parents[1] / "numba")}
    log = python.parents[1] / "server.log"
    with open(log, "wb") as out:
        # A session of its own, so that all its processes can be ended together.
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=python.parents[1], start_new_session=True
        )
    try:
        _wait(port, payload, process, log)
        yield port
    finally:
        _end(process)


@dataclass(frozen=True, slots=True)
class PeerReply:
    """headers: by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(port: int, payload: Payload, number: int = 0) -> PeerReply:
    """Asks a server one request of a payload; raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection(HOST, port, timeout=REPLY_TIMEOUT_S)
    try:
        connection.request("POST", payload.path, payload.bodies[number], dict(payload.headers))
        reply = connection.getresponse()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return PeerReply(reply.status, headers, reply.read())
    finally:
        connection.close()


def _wait(port: int, payload: Payload, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s, said = time.monotonic() + READY_TIMEOUT_S, "no connection"
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise CommandFailed(f"it ended with code {process.returncode}: {_tail(log)}")
        try:
            reply = ask(port, payload)
            if reply.status == 200:
                return
            said = f"status {reply.status}"
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(POLL_S)
    raise CommandFailed(f"not ready after {READY_TIMEOUT_S:g} s ({said}): {_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole session: first kindly, then whatever of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=INSTALL_TIMEOUT_S)
    if result.returncode:
        raise CommandFailed(f"{' '.join(command[1:4])}: {result.stderr.strip()[-400:]}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:])
