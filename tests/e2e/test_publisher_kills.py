"""kill -9 of a publisher and of a server at random moments, with rollbacks in between: what is served in the end is
what the trainer has, to the bit.

FRESHET_KILL_ROUNDS kills of each kind of trainer (2 if not set), three of four of them of the publisher, drawn by
FRESHET_KILL_SEED.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.engine import Processor, ProcessorConfig
from tests.e2e.killed_publisher import BIAS, DIM, MODEL, ROWS, state_of
from tests.models.publishing.torches import WHY, torch_python
from tests.support.packages import make_weights, rows_of, write_package

pytestmark = [pytest.mark.kills, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "2"))
SEED = os.environ.get("FRESHET_KILL_SEED", "freshet")
LIFE = 20
"""Kills of one repository, whose chain every start reads."""
HANGS_AFTER_S = 120.0


class Child:
    """A process whose lines are read as it says them."""

    def __init__(self, log, python, *arguments):
        command = [python, "-m", "tests.e2e.killed_publisher", *map(str, arguments)]
        self.log, self.said = log, []
        with open(log, "w") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.said.append(line.strip())

    def kill_after(self, lines):
        give_up_s = time.monotonic() + HANGS_AFTER_S
        while len(self.said) < lines:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up_s, f"hung after {self.said[-3:]}"
            time.sleep(0.0005)
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@pytest.mark.parametrize("run", range(-(-ROUNDS // LIFE)))
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_served_weights_equal_the_trainer_after_kills_and_rollbacks(tmp_path, kind, run):
    python = sys.executable if kind == "numpy" else torch_python()
    if python is None:
        pytest.skip(WHY)
    draw = random.Random(f"publisher {kind} {run} {SEED}")
    rounds = min(LIFE, ROUNDS - run * LIFE)
    repository, checkpoint = tmp_path / "repository", tmp_path / "checkpoint.json"
    write_package(repository, users=range(ROWS))
    checkpoint.write_text(json.dumps(state_of(rows_of(range(ROWS), 0), make_weights(0)[BIAS], [], "1.0")))

    def trainer():
        return Child(tmp_path / "trainer.log", python, "train", repository, checkpoint, kind, draw.getrandbits(32))

    def server():
        return Child(tmp_path / "server.log", sys.executable, "serve", repository, draw.getrandbits(32))

    children, said = {"trainer": trainer(), "server": server()}, []
    try:
        for _ in range(rounds):
            name = draw.choice(["trainer", "trainer", "trainer", "server"])
            children[name].kill_after(draw.randint(1, 60))
            said += children[name].said
            children[name] = trainer() if name == "trainer" else server()
    finally:
        for child in children.values():
            child.end()
            said += child.said

    command = [python, "-m", "tests.e2e.killed_publisher", "finish", repository, checkpoint, kind, "0"]
    result = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert result.returncode == 0, result.stderr
    state = json.loads(result.stdout.splitlines()[-1])
    kept = np.array([key for key in range(ROWS) if key not in state["removed"]])
    rows = np.frombuffer(bytes.fromhex(state["rows"]), np.float32).reshape(ROWS, DIM)[kept]
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        assert str(processor.predictor.manifest(MODEL)[1]) == state["generation"]
        tables, dense = processor.host.catalogue[MODEL].pick().export()
    contents = Publisher(repository, MODEL).served()
    for keys, served in (tables["user"], contents.table("user")):
        assert keys.tolist() == kept.tolist()
        assert served.tobytes() == rows.tobytes()
    assert dense[BIAS].tobytes().hex() == contents.dense[BIAS].tobytes().hex() == state["bias"]
    rollbacks = sum(line == "rolled back" for line in said)
    published = sum(line.startswith("published") for line in said)
    print(f"{rounds} kills, {published} publications, {rollbacks} rollbacks, at {state['generation']} in the end")
