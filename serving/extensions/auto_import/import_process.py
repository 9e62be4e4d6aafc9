"""Run one import in a process of its own, with limits, and report its outcome.

An import reads untrusted files with very large libraries: it may hang, compute for ever, or use all memory. So nothing
waits for it, and it has limits. The operating system enforces processor time and memory (setrlimit). Memory means the
private memory of the process: files that it maps belong to the page cache, and address space says little, because
TensorFlow reserves many times what it uses. Elapsed time is measured here; it ends a process that stands still, for
example at a pipe or on a mount that hangs.

When a process is ended, its temporary files lie in a folder that is removed with it. What it had written of the version
stays hidden, where `freshet repository prune` finds it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from freshet_serving.processor.cores import ResourceLimits

if TYPE_CHECKING:
    from freshet_serving.serving.serve_config import ServeConfig

log = logging.getLogger("freshet.importer")

PREFIX = "freshet: "
UNKNOWN = "the import failed; see the server's log"
KILLED = "the import was killed, probably because the system ran out of memory"
OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|RESOURCE_EXHAUSTED|Resource exhausted")
NEEDED = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_.*|TZ|XDG_.*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*|PYTHON.*|VIRTUAL_ENV"
    "|SSL_CERT_.*|(OMP|MKL|OPENBLAS|KMP|GOTO|NUMBA|TF|TF2|XLA|JAX|PJRT|KERAS|ONNX|ORT|OPENVINO|OV|CUDA|NVIDIA|TRT|CUPTI|PROTOCOL_BUFFERS"
    "|COVERAGE)_.*|FRESHET_EXTENSIONS"
)
SECRET = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY")
LEAST_MEMORY_NBYTES = 4 << 30
SAID_NBYTES = 64 << 10
STOP_WAIT_S = 10.0
SHOWN_LINES = 20
# Between SIGXCPU, which signals the end of the time, and SIGKILL, which cannot be ignored.
OVERTIME_S = 5


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """Limits of one import: elapsed time, processor time of all cores together, private memory."""

    wall_s: float
    processor_s: int
    memory_nbytes: int

    @classmethod
    def of(cls, config: ServeConfig) -> ImportLimits:
        """Return the limits that a server's options set; by default half of the machine's memory."""
        half_nbytes = (ResourceLimits.here().memory_nbytes or 0) // 2
        nbytes = config.import_memory_bytes or max(LEAST_MEMORY_NBYTES, half_nbytes)
        return cls(config.import_timeout_s, math.ceil(2 * config.import_timeout_s), nbytes)


Start = Callable[[Sequence[str], IO[bytes], str, ImportLimits], subprocess.Popen[bytes]]
"""Starts `freshet`, given arguments, a file for its standard error, a folder for temporary files, and limits."""


def start(arguments: Sequence[str], errors: IO[bytes], folder: str, limits: ImportLimits) -> subprocess.Popen[bytes]:
    """Start `freshet` with these arguments, and files for its standard error and temporary files.

    The limits are set from this process: between fork and exec, a process with threads can hardly do anything safely.
    """
    command = [sys.executable, "-P", "-m", "freshet_serving", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**needed_environment(os.environ), "TMPDIR": folder},
    )
    if sys.platform == "linux":
        # The process may have ended already.
        with contextlib.suppress(ProcessLookupError):
            _limit(process.pid, resource.RLIMIT_CPU, limits.processor_s, limits.processor_s + OVERTIME_S)
            _limit(process.pid, resource.RLIMIT_DATA, limits.memory_nbytes, limits.memory_nbytes)
    return process


def needed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the server's environment that an import needs.

    That is where programs, libraries, caches and devices are, and the settings of its libraries. An import reads
    untrusted files and must not see tokens, passwords or keys of object stores.
    """
    return {name: value for name, value in environ.items() if NEEDED.fullmatch(name) and not SECRET.search(name)}


def _limit(pid: int, limit: int, soft: int, hard: int) -> None:
    """Lower a resource limit of a process; a limit that this process has cannot be raised."""
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.prlimit(pid, limit, (soft, hard))


class RunningImport:
    """A running import of one version. Used by one thread at a time."""

    def __init__(
        self, model: str, version: int, arguments: Sequence[str], limits: ImportLimits, start: Start, now_s: float
    ) -> None:
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
        """Return why the import failed, "" if it succeeded, or None while it is running.

        A process that exceeds its time is killed. One that waits for a mount cannot be killed, and is abandoned.
        """
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
        self._process.kill()
        try:
            self._process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            log.warning("an import did not stop after it was killed")
        self._clean()

    def _why(self, code: int) -> str:
        text = self._tail()
        lines, limits = text.splitlines(), self._limits
        reason = next((line.removeprefix(PREFIX) for line in reversed(lines) if line.startswith(PREFIX)), "")
        if self._late:
            return f"the import took more than {limits.wall_s:g} s and was stopped; raise --import-timeout-s"
        if code == -signal.SIGXCPU:
            return (
                f"the import took more than {limits.processor_s} s of processor time and was stopped; "
                "raise --import-timeout-s"
            )
        if reason:
            return reason
        log.error("importing %s version %d failed: %s", self.model, self.version, " | ".join(lines[-SHOWN_LINES:]))
        if OUT_OF_MEMORY.search(text):
            return f"the import needed more than {limits.memory_nbytes} bytes of memory; raise --import-memory-bytes"
        return KILLED if code == -signal.SIGKILL else UNKNOWN

    def _tail(self) -> str:
        """Return the end of its standard error."""
        nbytes = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, nbytes - SAID_NBYTES))
        return self._said.read().decode(errors="replace")

    def _clean(self) -> None:
        self._said.close()
        self._folder.cleanup()
