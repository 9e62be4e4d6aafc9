"""kill -9 at random moments: a server in the middle of applying. Trainers are test_trainer_kills's.

FRESHET_KILL_ROUNDS kills of each (1 if not set), at moments drawn by FRESHET_KILL_SEED. A moment is a number of lines
that the child has said; the kill then meets it wherever it has got to.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e import killing
from tests.support.packages import make_inputs, row_of, write_package

pytestmark = [pytest.mark.kills, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "1"))
SEED = os.environ.get("FRESHET_KILL_SEED", "freshet")
HANGS_AFTER_S = 120.0


def kill_after(lines, log, *arguments):
    """Starts the child, kills it once it has said `lines` lines; returns all that it said."""
    with open(log, "w") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.killing", *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    watchdog = threading.Timer(HANGS_AFTER_S, child.kill)
    watchdog.start()
    try:
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
        assert child.wait() == -signal.SIGKILL, log.read_text()
        assert said[lines - 1], f"hung or died after {said!r}: {log.read_text()}"
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
    # A line cut off by the kill was not said.
    said = [line.split() for line in said if line.endswith("\n")]
    print(f"killed after {len(said)} lines:", *(" ".join(line) for line in said[-3:]), sep="; ")
    return said


def open_processor(repository):
    return Processor.initialize(ProcessorConfig(str(repository), sessions=1))


def assert_whole_chain(repository, model):
    """Every file of the newest version, every record and every delta is sound; returns the newest generation's line."""
    version = Repository(repository).version(model)
    version.verify()
    change_log = ChangeLog.of(version)
    line = change_log.history.line()
    for link in line[1:]:
        delta = change_log.read_delta(link)
        assert (delta.step, delta.parent_step) == (link.step, link.record.parent_step)
    return [Generation(version.manifest.version, link.step) for link in line]


def bytes_of(processor, model):
    tables, dense = processor.host.catalogue[model].pick().export()
    parts = {f"{name}/{part}": a.tobytes() for name, pair in tables.items() for part, a in zip(("keys", "rows"), pair)}
    return parts | {name: a.tobytes() for name, a in dense.items()}


def test_killed_server_serves_the_acknowledged_generation_or_later(tmp_path):
    draw = random.Random(f"server {SEED}")
    repository, scratch = tmp_path / "repository", tmp_path / "scratch"
    scratch.mkdir()
    write_package(repository)
    for life in range(ROUNDS):
        said = kill_after(
            draw.randint(1, 150), tmp_path / "server.log", "serve", repository, scratch, draw.getrandbits(32)
        )

        floor = Generation(1, 0)
        for line in said:
            if line[0] in ("serves", "rolling"):
                floor = Generation.parse(line[-1])
        line = assert_whole_chain(repository, "small")
        generation = line[-1]
        assert floor in line, (life, said[-12:])
        with open_processor(repository) as restarted:
            assert restarted.predictor.manifest("small")[1] == generation
            tables, _ = restarted.host.catalogue["small"].pick().export()
            wanted = killing.contents([one.step for one in line[1:]])
            assert tables["user"][0].tolist() == sorted(wanted)
            assert all(np.array_equal(row, row_of(k, wanted[k])) for k, row in zip(*tables["user"]))
            reply = restarted.process(PredictRequest("small", make_inputs(range(30))))
            assert reply.generation == generation
            assert np.isfinite(reply.outputs["score"]).all()
