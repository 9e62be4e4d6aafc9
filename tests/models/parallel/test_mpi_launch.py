"""What becomes of processes under mpiexec: rank 0's words go through, a death is one line, nobody is left behind."""

import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from freshet_serving.models.parallel.mpi_launch import Relay, death
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import how_to_install
from tests.models.parallel.starting import PATIENCE_S, ROOT
from tests.support.waiting import until

BANNER = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 8798 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""

LAUNCH = """
import sys
from freshet_serving.models.parallel.mpi_launch import launch
sys.exit(launch(int(sys.argv[1]), [sys.executable, "-c", sys.argv[2]]))
"""
RANK = """
import os, sys, time
from freshet_serving.models.parallel.mpi_ranks import MpiRanks
from freshet_serving.models.parallel.liveness import LivenessClient
ranks = MpiRanks()
present = LivenessClient(ranks.rank)
if ranks.rank == 0:
    pids = [*(int(ranks.receive(of).view("i8")[0]) for of in range(1, ranks.size)), os.getpid()]
    os.write(1, " ".join(["pids", *map(str, pids)]).encode() + b"\\n")
else:
    import numpy as np
    ranks.send(0, np.array([os.getpid()]))
"""
WAITING = RANK + "time.sleep(200)"


def test_crash_is_parsed_from_the_mpiexec_output():
    out = io.StringIO()
    relay = Relay(out)
    for line in ["published m 1.0\n", *BANNER.strip().splitlines(keepends=True)]:
        relay.line(line)
    assert out.getvalue() == "published m 1.0\n"
    assert (relay.pid, relay.status) == (8798, 9)


def test_crash_is_reported_in_one_line():
    assert death(1, 9, 3) == "process 1 of 3 ended by signal 9 (SIGKILL), and so did all others"
    assert death(None, 200, 3) == "a process of 3 ended by status 200, and so did all others"
    assert death(2, 0, 3) == "process 2 of 3 ended, and so did all others"


def test_missing_mpi_gives_one_line_naming_the_package(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **named: None)
    from freshet_serving.models.parallel.mpi_launch import launch

    with pytest.raises(BadInput, match=re.escape(how_to_install("mpi"))):
        launch(2, ["true"])


def start(processes, code):
    pytest.importorskip("mpi4py", reason="several processes need the mpi extra")
    command = [sys.executable, "-c", LAUNCH, str(processes), code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **pipes)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def pids_of(started):
    line = started.stdout.readline().split()
    assert line[0] == "pids", line
    return [int(pid) for pid in line[1:]]


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 2])
def test_killed_process_ends_all_and_is_named_in_one_line(which):
    started = start(3, WAITING)
    pids = pids_of(started)
    os.kill(pids[which - 1], signal.SIGKILL)
    _, told = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 128 + 9
    assert told.splitlines() == [
        f"freshet: process {which} of 3 ended by signal 9 (SIGKILL), and so did all others; run the same command again"
        " to continue from the last checkpoint"
    ]
    assert not any(map(is_there, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_the_command_stops_all_processes(number):
    started = start(2, WAITING)
    pids = pids_of(started)
    started.send_signal(number)
    _, told = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 128 + number
    assert told.splitlines() == [
        f"freshet: stopped by {number.name}; run the same command again to continue from the last checkpoint"
    ]
    assert not any(map(is_there, pids))


def test_no_process_outlives_the_command():
    started = start(2, WAITING)
    pids = pids_of(started)
    started.kill()
    started.communicate(timeout=PATIENCE_S)
    until(lambda: not any(map(is_there, pids)))


@pytest.mark.parametrize("status", [0, 3])
def test_exit_status_is_that_of_rank_0(status):
    end = (
        "ranks.end()"
        if not status
        else f"(present.failing({status}), os._exit({status})) if ranks.rank == 0 else time.sleep(99)"
    )
    started = start(2, RANK + end)
    began_s = time.monotonic()
    _, told = started.communicate(timeout=PATIENCE_S)
    assert (started.returncode, told) == (status, "")
    assert time.monotonic() - began_s < 60
