"""One import at work: a process of its own, held to limits, and what became of it.

An import reads what somebody else wrote with libraries of millions of lines: it may take for ever, compute for ever, or
want all the memory that there is. So nobody waits for it, and it is held to limits. Processor time and memory are the
system's to count (setrlimit): they hold however the process spends them. Memory is what the process has for itself;
files that it maps are the page cache's, and address space says little, of which TensorFlow reserves many times what it
uses. Time is counted here, and ends a process that stands still: at a pipe, on a mount that hangs.

What a process leaves behind when it is ended: its temporary files lie in a folder that goes with it; what it had
written of the version stays hidden, where `freshet repository prune` finds it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

log = logging.getLogger("freshet.importer")

PREFIX = "freshet: "
UNKNOWN = "the import failed; the server's log says why"
KILLED = "the import was killed, as the system does with processes that want more memory than there is"
OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|RESOURCE_EXHAUSTED|Resource exhausted")
NEEDED = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_.*|TZ|XDG_.*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*|PYTHON.*|VIRTUAL_ENV"
    "|SSL_CERT_.*|(OMP|MKL|OPENBLAS|KMP|GOTO|NUMBA|TF|TF2|XLA|JAX|PJRT|KERAS|ONNX|ORT|OPENVINO|OV|CUDA|NVIDIA|TRT|CUPTI|PROTOCOL_BUFFERS"
    "|COVERAGE)_.*"
)
SECRET = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY")
SAID_NBYTES = 64 << 10
STOP_WAIT_S = 10.0
SHOWN_LINES = 20
# Between the signal that says that the time is over and the one that nobody can ignore.
OVERTIME_S = 5


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """What one import may take. wall_s: time; processor_s: of all cores together; memory_nbytes: of its own."""

    wall_s: float
    processor_s: int
    memory_nbytes: int


class Process(Protocol):
    """A process, the part of subprocess.Popen that is used."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int: ...


Start = Callable[[Sequence[str], IO[bytes], str, ImportLimits], Process]
"""Starts `freshet` with these arguments, a file for its standard error, a folder for temporary files, limits."""


def start(arguments: Sequence[str], said: IO[bytes], folder: str, limits: ImportLimits) -> Process:
    """See Start. The limits are set from here: between fork and exec a process with threads may do next to nothing."""
    command = [sys.executable, "-P", "-m", "freshet_serving", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        env={**needed_environment(os.environ), "TMPDIR": folder},
    )
    if sys.platform == "linux":
        # It may have ended already.
        with contextlib.suppress(ProcessLookupError):
            _limit(process.pid, resource.RLIMIT_CPU, limits.processor_s, limits.processor_s + OVERTIME_S)
            _limit(process.pid, resource.RLIMIT_DATA, limits.memory_nbytes, limits.memory_nbytes)
    return process


def needed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What an import needs of the server's environment: where programs, libraries, caches and devices are, and how its
    libraries are set. Nothing else: an import reads what somebody else wrote, and tokens, passwords and the keys of
    object stores are none of its business."""
    return {name: value for name, value in environ.items() if NEEDED.fullmatch(name) and not SECRET.search(name)}


def _limit(pid: int, what: int, soft: int, hard: int) -> None:
    """Lowers a limit of a process; what holds for this one already cannot be raised."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.prlimit(pid, what, (soft, hard))


class RunningImport:
    """An import at work. Used by one thread at a time."""

    def __init__(
        self, model: str, version: int, arguments: Sequence[str], limits: ImportLimits, start: Start, now_s: float
    ) -> None:
        """Starts it; raises OSError."""
        self.model, self.version = model, version
        self._limits, self._until_s, self._late = limits, now_s + limits.wall_s, False
        self._folder = tempfile.TemporaryDirectory(prefix="freshet-import-", ignore_cleanup_errors=True)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it
        try:
            self._process = start(arguments, self._said, self._folder.name, limits)
        except OSError:
            self._clean()
            raise

    def ended(self, now_s: float) -> str | None:
        """Why it failed, "" where it did not; None while it is at work. One that has had its time is ended, and left
        to itself where it does not end: the system lets nobody kill a process that waits for a mount."""
        code = self._process.poll()
        if code is None:
            if now_s >= self._until_s and not self._late:
                self._late = True
                self._process.kill()
            if now_s < self._until_s + STOP_WAIT_S:
                return None
            code = -signal.SIGKILL
        try:
            return "" if code == 0 else self._why(code)
        finally:
            self._clean()

    def close(self) -> None:
        """Ends it, if it is at work."""
        self._process.kill()
        try:
            self._process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            log.warning("an import does not end")
        self._clean()

    def _why(self, code: int) -> str:
        said = self._tail()
        lines, limits = said.splitlines(), self._limits
        told = next((line.removeprefix(PREFIX) for line in reversed(lines) if line.startswith(PREFIX)), "")
        if self._late:
            return f"the import took more than {limits.wall_s:g} s and was ended; --import-timeout-s allows more"
        if code == -signal.SIGXCPU:
            spent = f"more than {limits.processor_s} s of processor time"
            return f"the import took {spent} and was ended; --import-cpu-s allows more"
        if told:
            return told
        log.error("importing %s version %d failed: %s", self.model, self.version, " | ".join(lines[-SHOWN_LINES:]))
        if OUT_OF_MEMORY.search(said):
            wanted = f"more than {limits.memory_nbytes} bytes of memory"
            return f"the import wanted {wanted}; --import-memory-bytes allows more"
        return KILLED if code == -signal.SIGKILL else UNKNOWN

    def _tail(self) -> str:
        """The end of what it has said."""
        nbytes = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, nbytes - SAID_NBYTES))
        return self._said.read().decode(errors="replace")

    def _clean(self) -> None:
        self._said.close()
        self._folder.cleanup()
