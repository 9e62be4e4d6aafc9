"""Check what a benchmark needs from outside: one line says what is missing, with exit code 2, before it measures.

And a Redis server, for those that read one.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from loadtest.load.launch import free_ports, started

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FRESHET_DATA", ROOT / "shared" / "data"))
"""The folder that has MovieLens-1M."""


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Run a redis-server without persistence on a loopback port, in a folder; yield the port."""
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]

    def ready() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            return False

    with started(command, folder / "redis.log", "redis-server", ready, 30):
        yield port


def refuse(line: str) -> NoReturn:
    """End this process: nothing was measured, for the reason that the line gives."""
    print(line, file=sys.stderr)
    raise SystemExit(2)


def movielens(data: Path) -> Path:
    """Return the folder of MovieLens-1M among all data; refuse if it is not there."""
    folder = data / "ml-1m"
    if not folder.is_dir():
        refuse(f"--data: expected a folder that has ml-1m, got {data}: name it there or in FRESHET_DATA")
    return folder


def program(name: str) -> None:
    """Refuse unless a program is installed."""
    if shutil.which(name) is None:
        refuse(f"{name} is not installed: install it, or put it on PATH")


def interpreter(path: Path, advice: str) -> None:
    """Refuse unless a Python of its own environment is there; advice: how to get it."""
    if not path.is_file():
        refuse(f"{path.name} of another environment does not exist: {advice}")
