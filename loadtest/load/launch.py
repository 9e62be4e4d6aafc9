"""The installed `freshet` command in processes of its own: writing a repository, serving it on free ports."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
READY_TIMEOUT_S = 300.0
READY_POLL_S = 0.01
STOP_TIMEOUT_S = 40.0
TAIL_LINES = 20
READY = "freshet: ready in "
MODEL = "bench"


class CommandFailed(Exception):
    """A command of ours ended badly; the message carries the end of what it said."""


def freshet() -> list[str]:
    """The command beside this interpreter; the package's own entry where it is not installed."""
    installed = Path(sys.executable).with_name("freshet")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "freshet_serving"]


class LineProcess:
    """A process that answers lines of its standard input with lines; ended with its block."""

    def __init__(self, command: Sequence[str], name: str, **options: Any) -> None:
        """name: for the error of one that has ended. options: of subprocess.Popen."""
        self._name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.pid = self._process.pid

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        # Of one that has ended the answer is what tells.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def read(self) -> str:
        """Return the next line; raises CommandFailed where there is none."""
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            raise CommandFailed(f"{self._name} ended")
        return line

    def ask(self, line: str) -> str:
        self.write(line)
        return self.read()

    def close(self) -> None:
        """End it, kindly: some have processes of their own."""
        self._process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_freshet(*arguments: str) -> None:
    """Runs one command to its end; raises CommandFailed when it fails."""
    result = subprocess.run([*freshet(), *arguments], capture_output=True, text=True, errors="replace")
    if result.returncode:
        raise CommandFailed(_ended(f"freshet {arguments[0]}", result.returncode, result.stderr))


def prepare(repository: Path, deltas: Path, table_rows: int, delta_rows: int, count: int) -> Path:
    """Writes the benchmark's model and a chain of deltas for it; returns the version's folder."""
    run_freshet("bench", "model", "--rows", str(table_rows), "--repository", str(repository))
    deltas.mkdir(parents=True, exist_ok=True)
    sizes = ["--rows", str(delta_rows), "--count", str(count)]
    run_freshet("bench", "deltas", *sizes, "--repository", str(repository), "--out", str(deltas))
    versions = [int(p.name) for p in (repository / MODEL).iterdir() if p.name.isdigit()]
    return repository / MODEL / str(max(versions))


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server. ready_s: from its start to the first 200 of /v2/health/ready. pid: of its first process. log:
    what it says."""

    http_port: int
    admin_port: int
    ready_s: float
    pid: int
    grpc_port: int
    log: Path

    @property
    def host(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def admin(self) -> str:
        return f"http://{HOST}:{self.admin_port}"

    @property
    def layout(self) -> str:
        """How its processes are laid out, in the words of its ready line; empty before that is printed."""
        return layout_of(self.log.read_text(errors="replace"))


def layout_of(said: str) -> str:
    """The layout in a server's ready line: all that it says behind the ports, but for the models."""
    line = next((line for line in said.splitlines() if line.startswith(READY)), "")
    words = line[line.find("workers=") :].split() if "workers=" in line else []
    return " ".join(word for word in words if not word.startswith("models="))


@contextlib.contextmanager
def serving(repository: Path, log: Path, options: list[str], checkout: Path | None = None) -> Iterator[RunningServer]:
    """`freshet serve` while the block runs; raises CommandFailed when it is never ready, or ends early. checkout: whose
    code is to serve; None for what is installed."""
    http_port, grpc_port, admin_port = free_ports(3)
    ports = port_options([http_port, grpc_port, admin_port])
    program = freshet() if checkout is None else [sys.executable, "-m", "freshet_serving"]
    command = [*program, "serve", "--repository", str(repository), "--host", HOST, *ports, *options]
    start_s = time.monotonic()
    ready = partial(_ready, http_port)
    with started(
        command, log, "freshet serve", ready, READY_TIMEOUT_S, cwd=checkout, env=environment(checkout)
    ) as process:
        yield RunningServer(http_port, admin_port, time.monotonic() - start_s, process.pid, grpc_port, log)
        if process.poll() is not None:
            raise CommandFailed(_ended("freshet serve", process.returncode, _read(log)))


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, name: str, ready: Callable[[], bool], timeout_s: float, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process while the block runs, once it is ready; raises CommandFailed, with the end of its log, if it never is.
    options: of subprocess.Popen; with start_new_session all that it started is ended with it."""
    start_s = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **options)
    try:
        while not ready():
            if process.poll() is not None or time.monotonic() - start_s > timeout_s:
                raise CommandFailed(_ended(f"{name}: not ready", process.returncode, _read(log)))
            time.sleep(READY_POLL_S)
        yield process
    finally:
        _stop(process)
        if options.get("start_new_session"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def environment(checkout: Path | None) -> dict[str, str] | None:
    """The environment of a process that imports a checkout's modules; None, this process's own, where there is none."""
    return None if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)}


def free_ports(count: int) -> list[int]:
    """Loopback ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def port_options(ports: Sequence[int]) -> list[str]:
    """Return the options of `freshet serve` for its ports: of HTTP, of gRPC and of the admin API."""
    names = ("--http-port", "--grpc-port", "--admin-port")
    return [text for name, port in zip(names, ports, strict=True) for text in (name, str(port))]


def first_answer(port: int, model: str, body: bytes, ended: Callable[[], bool], timeout_s: float) -> bytes | None:
    """Ask a server that starts over HTTP until it answers; return the answer, or None if it has ended or takes too
    long."""
    url, until_s = f"http://{HOST}:{port}/v1/models/{model}:predict", time.monotonic() + timeout_s
    while not ended() and time.monotonic() < until_s:
        try:
            answer: bytes = urllib.request.urlopen(url, body, timeout=5).read()
            return answer
        except OSError:
            time.sleep(READY_POLL_S)
    return None


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _ended(what: str, code: int | None, said: str) -> str:
    tail = "\n".join(said.strip().splitlines()[-TAIL_LINES:])
    return f"{what}: exit code {code}\n{tail}"
