"""`freshet train --follow` in a process of its own, for programs that measure what it costs and brings."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.load.launch import free_ports, freshet

LOOK_S = 0.02
TICKS = os.sysconf("SC_CLK_TCK")


class Follower:
    """A running trainer."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process, self._port, self._log = process, port, log

    def value(self, family: str) -> float:
        """Return a metric of the trainer; 0 before it answers. Raises RuntimeError once it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(self._log.read_text()[-2000:])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            return 0.0
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{family}{{")), 0.0)

    def cpu_s(self) -> float:
        """Return the processor seconds that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def following(scratch: Path, config: str, options: Sequence[str] = ()) -> Iterator[Follower]:
    """The trainer of a training file while the block runs.

    Args:
        scratch: A folder for its file and log.
        config: Text of the file.
        options: More options of the command.
    """
    file, log = scratch / "train.toml", scratch / "train.log"
    file.write_text(config)
    (port,) = free_ports(1)
    command = [*freshet(), "train", "--config", str(file), "--follow", "--metrics-port", str(port), *options]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=scratch)
    try:
        yield Follower(process, port, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait(condition: Callable[[], bool], seconds: float, awaited: str) -> None:
    """Wait until a condition holds; raise RuntimeError after so many seconds.

    Args:
        condition: Looked at every LOOK_S.
        seconds: How long at most.
        awaited: What is waited for, for the message.
    """
    give_up_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{awaited}: waited {seconds:g} s")
        time.sleep(LOOK_S)
