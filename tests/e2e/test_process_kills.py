"""kill -9 at random moments of any of the processes that train together, each life with another number of them.

FRESHET_KILL_ROUNDS kills (1 if not set), at moments drawn by FRESHET_KILL_SEED, as in test_kills. Killed is a rank, or
mpiexec itself.
"""

import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from freshet_serving.models.training.checkpoint import Checkpoints
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e import killing
from tests.e2e.test_kills import HANGS_AFTER_S, ROOT, ROUNDS, SEED, open_processor
from tests.e2e.test_trainer_kills import assert_served, newest
from tests.models.parallel.test_mpi_launch import is_there
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("mpi4py", reason="several processes need the mpi extra")


def kill_one_after(lines, draw, processes, log, repository):
    """Starts so many, kills one of them once rank 0 has said `lines` lines; returns all that it said."""
    from freshet_serving.models.parallel.mpi_launch import mpiexec

    command = [mpiexec(), "-n", str(processes), sys.executable, "-m", "tests.e2e.killing", "processes", repository]
    with open(log, "w") as errors:
        started = subprocess.Popen(
            [*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, stdin=subprocess.DEVNULL
        )
    watchdog = threading.Timer(HANGS_AFTER_S, started.kill)
    watchdog.start()
    pids, said = [], []
    try:
        while len(said) < lines:
            line = started.stdout.readline()
            assert line, f"hung or died after {said[-5:]!r}: {log.read_text()}"
            words = line.split()
            if words[0] == "rank":
                pids.append(int(words[2]))
            else:
                said.append(words)
        assert len(pids) == processes
        target = draw.choice([*pids, started.pid])
        os.kill(target, signal.SIGKILL)
        # A line cut off by the kill was not said, and mpiexec's words about it are none of rank 0's.
        rest = started.stdout.readlines()
        said += [line.split() for line in rest if line.endswith("\n") and line.split()[:1] == ["published"]]
        started.wait()
        until(lambda: not any(map(is_there, pids)))
    finally:
        watchdog.cancel()
        started.kill()
        started.wait()
        started.stdout.close()
    which = "mpiexec" if target == started.pid else f"{pids.index(target)} of the pids"
    print(f"{processes} processes, killed {which} after {len(said)} lines:", *(" ".join(line) for line in said[-2:]))
    return said


def published_rows(repository):
    """Rows that the deltas of the newest line carry, by what they say of themselves."""
    change_log = ChangeLog.of(Repository(repository).version(killing.MODEL), whole=True)
    return sum(change_log.read_delta(link).events for link in change_log.history.line()[1:])


def held(run):
    exports = {name: table.export() for name, table in run.trainer.tables.items()}
    return {name: (export.keys, export.rows) for name, export in exports.items()}, run.trainer.dense.weights()


def test_killing_any_process_still_publishes_every_row_once(tmp_path):
    draw = random.Random(f"processes {SEED}")
    repository, reached, follower = tmp_path / "repository", None, None
    repository.mkdir()
    try:
        for life in range(ROUNDS):
            processes = draw.randint(1, 4)
            said = kill_one_after(draw.randint(1, 250), draw, processes, tmp_path / "processes.log", repository)
            if not Repository(repository).versions(killing.MODEL):
                continue
            generation = newest(repository)
            published = [Generation.parse(line[1]) for line in said if line[0] == "published"]
            assert generation >= max(published, default=generation), (life, said)
            assert generation >= (reached or generation), (life, said)
            reached = generation
            follower = follower or open_processor(repository)
            assert_served(repository, generation, follower)
            assert published_rows(repository) == generation.step * killing.DELTA_ROWS
            saved = Checkpoints(repository / ".checkpoints" / killing.MODEL).newest()
            assert saved.position - killing.FULL_ROWS in (
                published_rows(repository),
                published_rows(repository) + killing.DELTA_ROWS,
            )

        run = killing.make_run(repository)
        run.full()
        assert next(run.stream()) > (reached or Generation(0, 0))
        twin = killing.make_run(tmp_path / "twin")
        twin.full()
        for _ in twin.stream(stop_row=run.state.position):
            pass
        (tables, dense), (twin_tables, twin_dense) = held(run), held(twin)
        for name, (keys, rows) in tables.items():
            assert np.array_equal(keys, twin_tables[name][0]), name
            np.testing.assert_allclose(rows, twin_tables[name][1], atol=1e-4)
        for name, weights in dense.items():
            np.testing.assert_allclose(weights, twin_dense[name], atol=1e-4)
    finally:
        if follower is not None:
            follower.close()
