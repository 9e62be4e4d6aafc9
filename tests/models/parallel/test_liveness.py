"""Who is there, and who went first."""

import os
import subprocess
import sys

from freshet_serving.models.parallel.liveness import SOCKET, LivenessClient, LivenessRegistry
from tests.models.parallel.starting import ROOT
from tests.support.waiting import until

PROCESS = (
    "import sys; from freshet_serving.models.parallel.liveness import LivenessClient\n"
    "here = LivenessClient(int(sys.argv[1])); sys.stdin.read()"
)


def test_registry_tracks_processes_and_which_failed_first():
    with LivenessRegistry() as roll:
        command = [sys.executable, "-c", PROCESS]
        env = {**os.environ, SOCKET: str(roll.path)}
        started = [subprocess.Popen([*command, str(n)], cwd=ROOT, env=env, stdin=subprocess.PIPE) for n in range(3)]
        until(lambda: len(roll.pids) == 3)
        assert roll.pids == {n: process.pid for n, process in enumerate(started)}
        for n in (1, 2, 0):
            started[n].kill()
            until(lambda n=n: n in roll.gone)
            with started[n]:
                pass
    assert roll.gone == [1, 2, 0]
    assert roll.failed is None


def test_process_reports_its_exit_status_before_ending(monkeypatch):
    with LivenessRegistry() as roll:
        monkeypatch.setenv(SOCKET, str(roll.path))
        present = LivenessClient(0)
        present.failing(2)
        until(lambda: roll.failed == 2)
        present.close()


def test_without_a_launcher_nothing_is_reported(monkeypatch):
    monkeypatch.delenv(SOCKET, raising=False)
    present = LivenessClient(3)
    present.failing(1)
    present.close()
