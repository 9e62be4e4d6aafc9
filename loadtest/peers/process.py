"""A peer in its virtual environment: installed, started, ended."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.launch import HOST, CommandFailed, free_ports, started
from loadtest.load.payload import Payload
from loadtest.peers.roster import Peer

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 180.0
INSTALL_TIMEOUT_S = 1800.0
REPLY_TIMEOUT_S = 30.0


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
def running(peer: Peer, python: Path, options: str, version: Path, payload: Payload) -> Iterator[int]:
    """The peer's server over a version's folder while the block runs; yields its port once it has answered a request.

    Raises CommandFailed, with the end of what it said, when it never does.
    """
    port, *others = free_ports(3)
    command = [str(python), str(peer.server), "--folder", str(version), "--port", str(port), *shlex.split(options)]
    if peer.other_ports:
        command += ["--other-ports", *map(str, others)]
    # Its own cache of compiled kernels: another version of Numba would throw ours away.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(python.parents[1] / "numba")}
    home = python.parents[1]

    def ready() -> bool:
        try:
            return ask(port, payload).status == 200
        except (OSError, http.client.HTTPException):
            return False

    # A session of its own, so that all its processes can be ended together.
    own: dict[str, Any] = {"env": environ, "cwd": home, "start_new_session": True}
    with started(command, home / "server.log", peer.name, ready, READY_TIMEOUT_S, **own):
        yield port


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


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=INSTALL_TIMEOUT_S)
    if result.returncode:
        raise CommandFailed(f"{' '.join(command[1:4])}: {result.stderr.strip()[-400:]}")
