"""`freshet train --processes N`: run N copies of the command under mpiexec and report in one line how they ended.

This process only waits. Rank 0's output is passed through; one line replaces mpiexec's messages about processes that
died. When a process dies, mpiexec ends all others, as when it is terminated or this process is killed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO

from freshet_serving.models.parallel.liveness import SOCKET, LivenessRegistry
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import how_to_install

BANNER = re.compile(r"=+\s*")
DEAD = re.compile(r"=\s+PID ([0-9]+) RUNNING AT .*")
STATUS = re.compile(r"=\s+EXIT CODE: ([0-9]+)\s*")
GOES_ON = "run the same command again to continue from the last checkpoint"
PARENT_DIED = 1
"""The option PR_SET_PDEATHSIG of prctl."""


class Relay:
    """Passes on rank 0's lines of mpiexec's output, and keeps the pid and status that it reports for a death."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._ended = out, False
        self.pid = self.status = 0

    def line(self, text: str) -> None:
        if BANNER.fullmatch(text) or self._ended:
            self._ended = True
            if match := DEAD.match(text):
                self.pid = int(match[1])
            elif match := STATUS.match(text):
                self.status = int(match[1])
        else:
            self._out.write(text)
            self._out.flush()


def launch(processes: int, command: Sequence[str]) -> int:
    """Run several copies of a command under mpiexec; return the exit status. Raises BadInput without MPI."""
    if find_spec("mpi4py") is None:
        raise BadInput(f"--processes requires mpi4py, which is not installed: {how_to_install('mpi')}")
    relay, signals = Relay(sys.stdout), list[int]()
    libc = ctypes.CDLL(None)
    with (
        LivenessRegistry() as roll,
        subprocess.Popen(
            [mpiexec(), "-n", str(processes), *command],
            env={**os.environ, SOCKET: str(roll.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            bufsize=1,
            # A new session, so that Ctrl-C reaches this process only.
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PARENT_DIED, signal.SIGTERM) and None,
        ) as started,
    ):

        def stop(number: int, frame: FrameType | None) -> None:
            signals.append(number)
            started.terminate()

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            assert started.stdout is not None
            assert started.stderr is not None
            errors = threading.Thread(target=_copy, args=(started.stderr, sys.stderr, signals))
            errors.start()
            for text in started.stdout:
                relay.line(text)
            errors.join()
            status = started.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if signals:
        print(f"freshet: stopped by {signal.Signals(signals[0]).name}; {GOES_ON}", file=sys.stderr)
        return 128 + signals[0]
    if status == 0 or roll.failed is not None:
        return roll.failed or 0
    died = roll.gone[0] if roll.gone else None
    # mpiexec may not report the first process that died; a death without a core dump is nearly always SIGKILL.
    reported = died is None or relay.pid == roll.pids[died]
    by = relay.status if reported else int(signal.SIGKILL)
    print(f"freshet: {death(died, by, processes)}; {GOES_ON}", file=sys.stderr)
    return 128 + by if by else status


def _copy(source: IO[str], target: IO[str], signals: list[int]) -> None:
    for text in source:
        if not text.startswith(("[mpiexec@", "[proxy:")) and not signals:
            target.write(text)
            target.flush()


def death(rank: int | None, number: int, processes: int) -> str:
    """Describe how a process ended; rank None is one that had not connected, number 0 an unknown signal or status."""
    which = f"a process of {processes}" if rank is None else f"process {rank} of {processes}"
    if number == 0:
        return f"{which} ended, and so did all others"
    is_signal = number in signal.valid_signals()
    how = f"signal {number} ({signal.Signals(number).name})" if is_signal else f"status {number}"
    return f"{which} ended by {how}, and so did all others"


def mpiexec() -> str:
    """Return the mpiexec of this Python, or the first in PATH."""
    path = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    if path is None:
        raise BadInput(f"--processes requires MPI: mpiexec not found: {how_to_install('mpi')}")
    return str(Path(path))
