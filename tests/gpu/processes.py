"""Run steps of the GPU check in processes of their own, so that one that crashes or hangs costs itself alone.

Steps run one after the other in one process, which loads libraries and compiles executables once for all of them. It
writes a JSON line for each figure and for each end of a step. A step that fails, crashes or hangs ends it, as nobody
knows what it leaves on the device; another process goes on with the next step.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import IO

from tests.gpu.bundled import Check, Skip, device_of
from tests.gpu.report import FAILED, PASSED, SKIPPED, Outcome
from tests.gpu.steps import STEPS

ROOT = Path(__file__).parents[2]
ENOUGH_S = 120.0
"""Twice what the longest step takes on an H200: one that takes longer there hangs, one that has less may be slow."""
LAST_CHARACTERS = 300


def run_steps(names: Sequence[str], bundle: Path, device: str, ends_s: float) -> Iterator[Outcome]:
    """Yield what becomes of each step; those that have no time left by time.monotonic() are skipped."""
    left = list(names)
    while left and time.monotonic() < ends_s:
        together = list(takewhile(lambda name: not STEPS[name].alone, left)) or left[:1]
        for outcome in _run_together(together, bundle, device, ends_s):
            left.pop(0)
            yield outcome
    for name in left:
        yield Outcome(name, SKIPPED, "the check's time was over")


def _run_together(names: Sequence[str], bundle: Path, device: str, ends_s: float) -> Iterator[Outcome]:
    """Yield what becomes of the first steps, at least of one, in one process."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory(prefix="freshet-gpu-") as folder, open(Path(folder) / "log", "a+") as log:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.gpu", "steps", ",".join(names)]
        command += ["--bundle", str(bundle.absolute()), "--device", device, "--folder", folder]
        with subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as process:
            try:
                for name in names:
                    left_s = max(0.0, ends_s - time.monotonic())
                    # Others may use the processors as well, and nobody waits for these.
                    limit_s = min(left_s, ENOUGH_S) if device == "cuda" else left_s
                    yield _outcome(name, process, log, left_s, limit_s)
                    if process.returncode is not None:
                        return
            finally:
                _end(process, signal.SIGKILL)


def _outcome(name: str, process: subprocess.Popen[str], log: IO[str], left_s: float, limit_s: float) -> Outcome:
    """Wait for the next step's end, or the process's, which is ended after limit_s of the check's left_s."""
    outcome, started_s, begins = Outcome(name), time.monotonic(), log.seek(0, os.SEEK_END)
    # The signal has faulthandler say in the log where each thread hangs.
    timer = threading.Timer(limit_s, _end, (process, signal.SIGABRT))
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if "figure" not in said:
            outcome.result, outcome.why, outcome.processor_s = said["result"], said["why"], said["processor_s"]
            break
        outcome.figures.append(said["figure"])
    else:
        status = process.wait()
        outcome.result, late = FAILED, time.monotonic() - started_s >= limit_s
        log.seek(begins)
        outcome.log = log.read()
        if late and left_s < ENOUGH_S:
            outcome.result, outcome.why = SKIPPED, f"the check's time was over after {left_s:.0f} s of it"
        elif late:
            outcome.why = f"no answer within {limit_s:.0f} s"
        elif status < 0:
            outcome.why = f"ended by {signal.Signals(-status).name}"
        else:
            lines = [line for line in outcome.log.splitlines() if line.strip()]
            outcome.why = lines[-1][:LAST_CHARACTERS] if lines else f"ended with status {status}"
    timer.cancel()
    outcome.seconds = time.monotonic() - started_s
    return outcome


def _end(process: subprocess.Popen[str], number: int) -> None:
    """Signal the process and those that it has started, such as servers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def serve_steps(names: Sequence[str], bundle: Path, device: str, folder: Path) -> None:
    """Run steps in this process, and write what they find to standard output, where nothing else may write."""
    with os.fdopen(os.dup(1), "w", buffering=1) as output, device_of(device):
        os.dup2(2, 1)
        check = Check(bundle, device, folder)
        for name in names:
            result, why, before_s = PASSED, "", _processor_s()
            try:
                for figure in STEPS[name].run(check):
                    print(json.dumps({"figure": figure}), file=output)
            except Skip as skip:
                result, why = SKIPPED, str(skip)
            said = {"result": result, "why": why, "processor_s": _processor_s() - before_s}
            print(json.dumps(said), file=output)
            # What a step leaves on the device is no longer in the way of the next.
            gc.collect()


def _processor_s() -> float:
    """Seconds of processors, of this process and of those that it has waited for."""
    return sum(os.times()[:4])
