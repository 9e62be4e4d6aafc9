"""An import is held to time, processor time and memory, and what ends it is told in one line."""

import os
import signal
import subprocess
import sys

import pytest

from freshet_serving.serving.extensions.auto_import import import_process
from freshet_serving.serving.extensions.auto_import.import_process import (
    KILLED,
    STOP_WAIT_S,
    UNKNOWN,
    ImportLimits,
    RunningImport,
)

LIMITS = ImportLimits(600.0, 3600, 1 << 30)
WAIT_S = 60


@pytest.fixture
def run(monkeypatch):
    """Starts an import that runs a program instead, by the limits; closed in the end."""
    running, popen = [], subprocess.Popen

    def make(program, limits=LIMITS):
        def instead(command, **options):
            assert command[1:4] == ["-P", "-m", "freshet_serving"]
            return popen([sys.executable, "-c", program], **options)

        monkeypatch.setattr(import_process.subprocess, "Popen", instead)
        running.append(RunningImport("ctr", 1, ["import"], limits, import_process.start, 100.0))
        return running[-1]

    yield make
    for one in running:
        one._process.kill()
        one._process.wait(WAIT_S)


def outcome(running, now_s=100.0):
    running._process.wait(WAIT_S)
    return running.ended(now_s)


def test_import_result_or_its_error_is_reported(run):
    assert outcome(run("")) == ""
    said = "import sys; print('noise', file=sys.stderr); sys.exit('freshet: source: variables are missing')"
    assert outcome(run(said)) == "source: variables are missing"


def test_import_exceeding_the_wall_time_is_killed(run):
    running = run("import time; time.sleep(3600)")
    assert running.ended(100.0 + LIMITS.wall_s - 1) is None
    running.ended(100.0 + LIMITS.wall_s)
    assert "took more than 600 s and was stopped" in outcome(running)


def test_import_exceeding_the_cpu_limit_is_killed_by_the_system(run):
    why = outcome(run("while True: pass", ImportLimits(600.0, 1, 1 << 30)))
    assert why == "the import took more than 1 s of processor time and was stopped; raise --import-timeout-s"


def test_import_exceeding_the_memory_limit_is_killed(run, caplog):
    why = outcome(run("bytearray(1 << 30)", ImportLimits(600.0, 60, 1 << 28)))
    assert why == f"the import needed more than {1 << 28} bytes of memory; raise --import-memory-bytes"
    assert "MemoryError" in caplog.text


def test_crashed_or_killed_import_is_reported_without_its_output(run):
    assert outcome(run("import os; os.kill(os.getpid(), 9)")) == KILLED
    assert outcome(run("print(open('/somewhere/secret'))")) == UNKNOWN


def test_temporary_files_of_an_import_are_always_removed(run):
    program = "import os, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), 9)"
    running = run(program)
    folder = running._folder.name
    running._process.wait(WAIT_S)
    assert len(os.listdir(folder)) == 1
    running.ended(100.0)
    assert not os.path.exists(folder)


def test_end_of_the_import_output_is_read(run, monkeypatch):
    monkeypatch.setattr(import_process, "SAID_NBYTES", 100)
    said = "import sys; sys.stderr.write('x' * 10000); sys.exit('\\nfreshet: why')"
    assert outcome(run(said)) == "why"


class Undying:
    """A process that waits for a mount that hangs."""

    def __init__(self):
        self.signals = []

    def poll(self):
        return None

    def kill(self):
        self.signals.append(signal.SIGKILL)

    def wait(self, timeout):
        raise subprocess.TimeoutExpired("import", timeout)


def test_unkillable_import_is_reported_and_abandoned(caplog):
    process = Undying()
    running = RunningImport("ctr", 1, [], LIMITS, lambda *_: process, 0.0)
    assert running.ended(LIMITS.wall_s) is None
    assert "took more than 600 s" in running.ended(LIMITS.wall_s + STOP_WAIT_S)
    assert process.signals == [signal.SIGKILL]
    RunningImport("ctr", 1, [], LIMITS, lambda *_: process, 0.0).close()
    assert "an import did not stop after it was killed" in caplog.text


def test_resource_limit_of_the_server_is_not_raised_for_imports():
    import resource

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    before = resource.getrlimit
    try:
        import_process.resource.getrlimit = lambda what: (100, 200)
        import_process._limit(child.pid, resource.RLIMIT_CPU, 150, 300)
        assert resource.prlimit(child.pid, resource.RLIMIT_CPU) == (150, 200)
    finally:
        import_process.resource.getrlimit = before
        child.kill()
        child.wait()


def test_import_inherits_no_secrets(run, monkeypatch):
    for name in ("FRESHET_ADMIN_TOKEN", "FRESHET_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "REDIS_URL"):
        monkeypatch.setenv(name, "secret-value")
    monkeypatch.setenv("TF_API_KEY", "secret-value")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("FRESHET_EXTENSIONS", "auto_import")
    program = (
        "import os, sys\n"
        "got = dict(os.environ)\n"
        "wrong = [n for n, v in got.items() if 'secret-value' in v]\n"
        "right = got['OMP_NUM_THREADS'] == '3' and 'freshet-import-' in got['TMPDIR'] and got['PATH']\n"
        "right = right and got['FRESHET_EXTENSIONS'] == 'auto_import'\n"
        "sys.exit(0 if right and not wrong else f'freshet: {wrong} {right}')"
    )
    assert outcome(run(program)) == ""
