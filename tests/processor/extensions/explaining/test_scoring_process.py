"""The process that scores for explanations: the same scores, whatever becomes of it."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from freshet_serving.processor.errors import Corrupt, NotReady
from freshet_serving.processor.extensions.explaining import scoring_process
from freshet_serving.processor.extensions.explaining.scoring_process import ScoringProcess
from freshet_serving.processor.extensions.explaining.spare_executable import ScoringPath, SpareExecutables
from freshet_serving.processor.repository.version import VersionReader
from tests.processor.backends.artefacts import WIDTH
from tests.support.packages import make_weights, write_package
from tests.support.waiting import until

DENSE = make_weights(0)


@pytest.fixture
def files(tmp_path):
    return VersionReader(write_package(tmp_path))


@pytest.fixture
def process():
    made = ScoringProcess()
    yield made
    made.close()


def x_of(rows=5):
    return {"x": np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)}


def pid_of(process):
    """The process at the other end."""
    return process._end.peek()[2][0].pid


def test_scoring_process_scores_like_a_local_executable(files, process):
    for bucket, seed in ((4, 0), (1, 0), (4, 1), (4, 0)):
        there, here = (
            score(files, ScoringPath(bucket), make_weights(seed), x_of())
            for score in (process.score, SpareExecutables().score)
        )
        np.testing.assert_array_equal(there.outputs["score"], here.outputs["score"])
        assert (there.entry, there.computes) == (here.entry, here.computes)


def test_same_weights_are_packed_once(files, process):
    first = process.score(files, ScoringPath(4), DENSE, x_of())
    again = [process.score(files, ScoringPath(4), make_weights(0), x_of()).open_s for _ in range(5)]
    assert min(again) < first.open_s / 3


def test_unreadable_executable_is_refused_as_in_this_process(files, process):
    for path in (files.folder / "compiled" / "onnxruntime-cpu").iterdir():
        path.write_bytes(b"no graph")
    with pytest.raises(Corrupt, match="expected 375 bytes"):
        process.score(files, ScoringPath(4), DENSE, x_of())


def test_dead_scoring_process_is_replaced(files, process):
    process.score(files, ScoringPath(4), DENSE, x_of())
    first = pid_of(process)
    os.kill(first, signal.SIGKILL)
    assert len(process.score(files, ScoringPath(4), DENSE, x_of()).outputs["score"]) == 5
    assert pid_of(process) != first


def test_crash_of_the_scoring_process_fails_only_one_request(files, process, monkeypatch):
    monkeypatch.setattr(scoring_process.sys, "executable", "/bin/false")
    with pytest.raises(NotReady, match="has ended or does not answer"):
        process.score(files, ScoringPath(4), DENSE, x_of())
    monkeypatch.undo()
    assert len(process.score(files, ScoringPath(4), DENSE, x_of()).outputs["score"]) == 5


def test_unresponsive_scoring_process_is_killed(files, process, monkeypatch):
    process.score(files, ScoringPath(4), DENSE, x_of())
    first = pid_of(process)
    os.kill(first, signal.SIGSTOP)
    process._socket.settimeout(0.05)
    with pytest.raises(NotReady):
        process.score(files, ScoringPath(4), DENSE, x_of())
    until(lambda: not os.path.exists(f"/proc/{first}"))


IDLE = """
import sys
from freshet_serving.processor.extensions.explaining import scoring_process

scoring_process.IDLE_S = 0.05
sys.exit(scoring_process.main(int(sys.argv[1])))
"""


def test_scoring_process_ends_when_idle_or_when_its_parent_dies(files):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        idle = subprocess.run(
            [sys.executable, "-c", IDLE, str(theirs.fileno())], pass_fds=(theirs.fileno(),), timeout=60
        )
        assert idle.returncode == 0
    process = ScoringProcess()
    process.score(files, ScoringPath(4), DENSE, x_of())
    pid = pid_of(process)
    process._socket.close()
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    process.close()


def test_scoring_process_imports_no_kernels_and_no_server(files):
    modules = "{'numba', 'fastapi', 'pyarrow'} & set(sys.modules)"
    code = f"import sys, freshet_serving.processor.extensions.explaining.scoring_process; print(sorted({modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
