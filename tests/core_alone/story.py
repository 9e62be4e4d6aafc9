"""A plain package served over both ports, with deltas and a rollback: `python -m tests.core_alone.story`, in a copy.

An engine and a server each run in a process of their own, which notes what it has loaded when it ends. The aims of what
is loaded are printed and not asserted: a test bounds what importing loads. What is published, this process writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.client.client import Client
from tests.e2e.servers import free_port
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package

MODEL = "small"
USERS = range(20)
PROBE = [0, 3, 7, 19, 55]
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(len(PROBE))]
DEADLINE_S = 90.0
AIMS = {"engine": (132, 28_500), "server": (222, 45_000)}
STEPS = (0, 1, 2, 1)
"""What is served in turn: the version, two deltas, and the first of them again."""

NOTE = """
import atexit, json, os, sys

def note():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("freshet_serving")]
    files = {getattr(module, "__file__", None) for module in modules}
    with open(os.environ["FRESHET_TEST_LOADED"], "w") as out:
        json.dump(sorted({os.path.realpath(file) for file in files if file}), out)

atexit.register(note)
"""
SERVER = NOTE + "from freshet_serving.serving.commands.cli import main\nmain()\n"
ENGINE = NOTE + "from tests.core_alone.engine import run\nrun(*sys.argv[1:])\n"


def expected(step: int) -> np.ndarray:
    """Return the probe's scores [n] once the delta of a step is served."""
    tags = dict.fromkeys([tag_id(tag) for tag in "abc"], 0)
    return reference(dict.fromkeys(USERS, step), tags, make_weights(0), PROBE, TAGS, make_inputs(PROBE)["floats"])


def publish(root: Path, nth: int) -> None:
    """Record what leads to the nth of STEPS, as a trainer does."""
    log = ChangeLog(Repository(root).version(MODEL, 1))
    if STEPS[nth] > STEPS[nth - 1]:
        log.publish(make_delta(STEPS[nth], list(USERS)))
    else:
        log.rollback(STEPS[nth])


def engine(root: Path, environment: dict[str, str]) -> None:
    """Run an engine through STEPS, in a process of its own: publishing in it would load what writes."""
    command = [sys.executable, "-c", ENGINE, str(root), MODEL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        inputs = {"user": PROBE, "tags": TAGS, "floats": make_inputs(PROBE)["floats"].tolist()}
        process.stdin.write(json.dumps(inputs) + "\n")
        for nth, step in enumerate(STEPS):
            if nth:
                publish(root, nth)
            process.stdin.write("\n")
            process.stdin.flush()
            generation, scores = json.loads(process.stdout.readline())
            assert generation == f"1.{step}", generation
            np.testing.assert_allclose(scores, expected(step), atol=1e-5)
    assert process.returncode == 0, process.returncode


def server(root: Path, environment: dict[str, str], log: Path) -> None:
    """Run a server through STEPS, in a process of its own, asked over HTTP and gRPC."""
    http, grpc = free_port(), free_port()
    options = ["--repository", str(root), "--workers", "1", "--delta-guard", "off"]
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, "serve", *options, *ports], env=environment, stdout=out, stderr=out
        )
    try:
        with Client(f"http://127.0.0.1:{http}") as over_http, Client(f"grpc://127.0.0.1:{grpc}") as over_grpc:
            for nth, step in enumerate(STEPS):
                if nth:
                    publish(root, nth)
                for client in (over_http, over_grpc):
                    ask(client, step, process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(client: Any, step: int, process: subprocess.Popen, log: Path) -> None:
    """Ask until the generation of a step answers, and compare its scores."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()
        try:
            reply = client.predict(MODEL, make_inputs(PROBE), timeout_s=10)
        except FreshetError:
            reply = None
        if reply is not None and reply.generation == f"1.{step}":
            np.testing.assert_allclose(reply.scores(), expected(step), atol=1e-5)
            return
        time.sleep(0.05)
    raise AssertionError(f"1.{step} is not served: {log.read_text()}")


def loaded(name: str, noted: Path) -> str:
    """Return a line: the files and lines of ours that a process has loaded, beside the aim."""
    files = json.loads(noted.read_text())
    lines = sum(len(Path(file).read_text().splitlines()) for file in files)
    most_files, most_lines = AIMS[name]
    return f"{name}: {len(files)} files, {lines:,} lines (aim: {most_files} files, {most_lines:,} lines)"


def main() -> None:
    """Run both, and print what they loaded."""
    with tempfile.TemporaryDirectory(prefix="freshet-core-") as folder:
        for name in AIMS:
            root, noted = Path(folder, name), Path(folder, f"{name}.json")
            write_package(root, users=USERS)
            environment = {**os.environ, "FRESHET_TEST_LOADED": str(noted)}
            if name == "engine":
                engine(root, environment)
            else:
                server(root, environment, Path(folder, "server.log"))
            print(loaded(name, noted), flush=True)


if __name__ == "__main__":
    main()
