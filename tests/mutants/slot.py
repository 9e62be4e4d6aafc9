"""One module's mutants, one after the other, in a copy of the tree: `python -m tests.mutants.slot`, run in that copy.

What the tests need and a mutant does not change (libraries, and the modules of ours that do not import the mutated one)
is imported once; each mutant is written to the copy, and a fork runs the tests and imports what is left. A fork costs
milliseconds where an interpreter that imports everything costs seconds.

Invariants
- Nothing is written outside the copy. The mutated module is put back after each mutant, as it was to the nanosecond.
- No mutant meets what was compiled of another: each has a time of change of its own, by which Python tells what it has
  compiled; kernels are known by what they are compiled from (processor.kernels.kernel).
- Tests draw the same examples for every mutant (Hypothesis is derandomised), and shrink none.
- A mutant that hangs is ended, with all that it has started.

Reads a job as JSON from standard input: module, beneath (what to import before), tests
(own and beside), until_s, mutants (name and source). Answers a line of JSON for each mutant that there was time for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

KILLED, SURVIVED, HUNG = "killed", "survived", "hung"
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
MOST_DATA_NBYTES = 12 << 30
BASELINE_S = 900.0
# A mutant may take so much more than what is there: of processor time, and, on a machine that does something else as
# well, of any.
MORE, MARGIN_S, SLOWER = 3.0, 10.0, 4.0
# Plugins were imported before pytest could rewrite them.
QUICK = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def main() -> int:
    job = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # What a test has started and left behind is ours to end.
    _prctl(SET_CHILD_SUBREAPER, 1)
    for name in ("hypothesis", "pytest", *job["beneath"]):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    module = Module(job["module"])

    def tell(**answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    own = module.sound(job["own"])
    if not own:
        tell(error=f"no test file passes as things are: {module.unsound}")
        return 1
    left = []
    for mutant in job["mutants"]:
        if time.time() > job["until_s"]:
            break
        outcome, by, seconds = module.run(own, mutant["source"])
        if outcome == SURVIVED:
            left.append((mutant, seconds))
        else:
            tell(name=mutant["name"], outcome=outcome, by=by, seconds=seconds)
    beside = module.sound(job["beside"]) if left else []
    for mutant, before_s in left:
        if time.time() > job["until_s"]:
            break
        outcome, by, seconds = module.run(beside, mutant["source"]) if beside else (SURVIVED, "", 0.0)
        tell(name=mutant["name"], outcome=outcome, by=by, seconds=before_s + seconds)
    return 0


class Module:
    """The module that is mutated."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._source, self._stat = self._path.read_text(), self._path.stat()
        # Seconds and processor seconds by test file.
        self._took: dict[str, tuple[float, float]] = {}
        # Test files that do not pass as things are, and why.
        self.unsound: dict[str, str] = {}
        self._runs = 0

    def sound(self, tests: list[str]) -> list[str]:
        """Those of the test files that pass as things are."""
        for test in tests:
            if test not in self._took and test not in self.unsound:
                outcome, by, took = attempt([test], (BASELINE_S, BASELINE_S))
                if outcome == SURVIVED:
                    self._took[test] = took
                else:
                    self.unsound[test] = by
        return [test for test in tests if test in self._took]

    def run(self, tests: list[str], source: str) -> tuple[str, str, float]:
        """What becomes of a mutant: (outcome, by which test, seconds). tests: sound ones."""
        took_s, worked_s = (sum(self._took[test][n] for test in tests) for n in (0, 1))
        limits = MARGIN_S + SLOWER * took_s, MARGIN_S + MORE * worked_s
        self._runs += 1
        try:
            self._path.write_text(source)
            # Whole seconds: Python compares no more of it.
            os.utime(self._path, (self._runs, self._runs))
            outcome, by, (seconds, _) = attempt(tests, limits)
            return outcome, by, seconds
        finally:
            self._path.write_text(self._source)
            os.utime(self._path, ns=(self._stat.st_atime_ns, self._stat.st_mtime_ns))


Seconds = tuple[float, float]
"""Of a clock, and of processors."""


def attempt(tests: list[str], limits: Seconds) -> tuple[str, str, Seconds]:
    """Runs test files in a fork: (outcome, the first test that failed, what it took). Where no test has passed
    nothing has survived."""
    began_s = time.monotonic()
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(told)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limits[1]) + 1, int(limits[1]) + 1))
            os.write(tell, json.dumps(_tested(tests)).encode())
        except BaseException as error:
            os.write(tell, json.dumps((KILLED, f"{type(error).__name__}: {error}"[:500])).encode())
        finally:
            os._exit(0)
    os.close(tell)
    ended = os.pidfd_open(pid)
    try:
        in_time = _readable(ended, limits[0])
        took_s = time.monotonic() - began_s
        worked_s = _end_all(pid)
        if not in_time or worked_s > limits[1]:
            return HUNG, "", (took_s, worked_s)
        said = os.read(told, 1 << 16) if _readable(told, 0) else b""
        outcome, by = json.loads(said) if said else (KILLED, "the interpreter")
        return outcome, by, (took_s, worked_s)
    finally:
        os.close(told)
        os.close(ended)


def _readable(number: int, patience_s: float) -> bool:
    """Whether a file can be read from within a time. Not by select(), whose numbers end at 1,024: whoever runs this may
    have more files open."""
    watched = select.poll()
    watched.register(number, select.POLLIN)
    return bool(watched.poll(patience_s * 1000))


def _tested(tests: list[str]) -> tuple[str, str]:
    """In the fork: the outcome, and the first test that failed."""
    os.setsid()
    _prctl(SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA_NBYTES, MOST_DATA_NBYTES))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    first = First()
    code = pytest.main([*QUICK, f"--basetemp={tempfile.gettempdir()}/{os.getpid()}", *tests], plugins=[first])
    if first.passed and code == pytest.ExitCode.OK:
        return SURVIVED, ""
    return KILLED, first.failed or f"pytest, which ended with {int(code)}"


class First:
    """The first test that fails."""

    def __init__(self) -> None:
        self.passed, self.failed = 0, ""

    def pytest_runtest_logreport(self, report) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}, which cannot be imported"


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _end_all(pid: int) -> float:
    """Ends a fork, its group, and what it has left to us; returns the processor seconds that the fork has taken."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    usage = os.wait4(pid, 0)[2]
    while left := _children():
        for child in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return usage.ru_utime + usage.ru_stime


def _children() -> list[int]:
    return [int(n) for task in Path("/proc/self/task").glob("*/children") for n in task.read_text().split()]


if __name__ == "__main__":
    sys.exit(main())
