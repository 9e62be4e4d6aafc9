"""The files on the way of a predict and of a delta, each in one process around tests.support.packages' model.

- predict: `freshet serve` with one process that computes inline, on a connection that is kept open; JSON, TensorFlow
  Serving's dialect. From the bytes of the request to those of the reply, once the first requests have filled the sample
  of rows (processor.versions.sample).
- folder delta, object-store delta: a Processor that the watcher asks. From the publication, by another process, until
  the generation is served; each delta brings rows and dense weights.

    python -m tests.structure.roads ADDRESS     publishes a delta for each line on stdin, which is its step
    python -m tests.structure.roads --core      prints the first two ways as JSON, taken without extensions
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from freshet_serving.processor.ports import NONE, ONLY
from tests.structure.recorder import Recorder
from tests.support.packages import write_package
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
MODEL, USERS = "small", range(20)
WARM, TIMES = 3, 25
WAIT_S, INTERVAL_S = 30, 0.05
NEEDED = ("moto", "obstore")


def predict() -> list[str]:
    """Return the files on the way of one predict over HTTP."""
    from freshet_serving.processor.versions.sample import MOST_ROWS
    from freshet_serving.serving.serve_config import ServeConfig
    from freshet_serving.serving.server import Server

    body = json.dumps({"inputs": {"user": [1, 2], "tags": [["a"], ["b", "c"]], "floats": [[0.5] * 4] * 2}}).encode()
    with tempfile.TemporaryDirectory() as folder, Recorder(ROOT) as recorder:
        write_package(folder, users=USERS)
        ports = {"http_port": 0, "grpc_port": 0}
        if os.environ.get(ONLY) != NONE:
            ports["admin_port"] = 0
        config = ServeConfig(repository=folder, **ports, workers=1, compute="inline")
        server = Server(config, out=io.StringIO())
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            with asking(server.http_address) as ask:
                until(lambda: ask("GET", "/v2/health/ready") == 200)
                post = lambda _: _expect(ask("POST", f"/v1/models/{MODEL}:predict", body), 200)  # noqa: E731
                for number in range(MOST_ROWS):
                    post(number)
                return recorder.files_of(post, TIMES)
        finally:
            server.stop()
            thread.join(WAIT_S)


@contextmanager
def asking(address: tuple[str, int]) -> Iterator[Callable[..., int]]:
    """Yield ask(method, path, body), which gives the status of the reply; all on one connection."""
    with socket.create_connection(address, WAIT_S) as connection, connection.makefile("rb") as replies:

        def ask(method, path, body=b""):
            # In one piece: whether a server meets a head without its body is not left to chance.
            head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            status = int(replies.readline().split()[1])
            headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(replies.readline, b"\r\n"))
            replies.read(int(headers.get("content-length", 0)))
            return status

        yield ask


def folder_delta() -> list[str]:
    """Return the files on the way of a delta that another process puts into the folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_package(folder, users=USERS)
        return _delta(folder, {}, {})


def object_delta() -> list[str] | str:
    """Return the files on the way of a delta in an object store; a string says why they were not taken."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"not taken: {' and '.join(missing)} is not installed (extras objects and dev)"
    from freshet_serving.processor.extensions.object_stores.object_store import open_store
    from tests.support.object_server import ObjectServer

    with ObjectServer() as server, tempfile.TemporaryDirectory() as folder, _environment(server.env):
        made, address = Path(folder, "made"), server.address("prod")
        write_package(made, users=USERS)
        store = open_store(address)
        files = sorted(path for path in made.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path.name == "model.json"):
            store.put(path.relative_to(made).as_posix(), path)
        return _delta(address, {"mirror": f"{folder}/server"}, {"FRESHET_MIRROR": f"{folder}/publisher"})


def of_core() -> dict[str, list[str]]:
    """Return the files on the way of a predict and of a folder delta without extensions, by their names."""
    command = [sys.executable, "-m", "tests.structure.roads", "--core"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, ONLY: NONE}, check=True, capture_output=True, text=True)
    ways: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return ways


def _delta(address: str, options: dict[str, str], env: dict[str, str]) -> list[str]:
    from freshet_serving.processor.engine import Processor, ProcessorConfig
    from freshet_serving.serving.loading.watcher import Watcher

    with Recorder(ROOT) as recorder, Processor.initialize(ProcessorConfig(address, **options)) as processor:
        lines: list[str] = []
        watcher = Watcher(processor.host.poll, INTERVAL_S, lines.extend)
        with _publisher(address, env) as publish:

            def one(step):
                publish(step)
                # By what the watcher is told: to ask the processor would run files of its own.
                until(lambda: any(f"1.{step}" in line for line in lines), watcher.poll_once)

            for step in range(1, WARM + 1):
                one(step)
            return recorder.files_of(lambda number: one(WARM + 1 + number), TIMES)


@contextmanager
def _publisher(address: str, env: dict[str, str]) -> Iterator[Callable[[int], None]]:
    """Yield publish(step): a process of its own does it, so that none of its files are seen."""
    command = [sys.executable, "-m", "tests.structure.roads", address]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdin=pipe, stdout=pipe, text=True, bufsize=1
    )

    def publish(step):
        process.stdin.write(f"{step}\n")
        _expect(process.stdout.readline(), f"{step}\n")

    try:
        yield publish
    finally:
        process.stdin.close()
        process.wait(WAIT_S)
        process.stdout.close()


def _publish(address: str) -> None:
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.opening import open_repository
    from tests.support.packages import make_delta

    change_log = ChangeLog.of(open_repository(address).version(MODEL, 1))
    for line in sys.stdin:
        step = int(line)
        change_log.publish(make_delta(step, [step % len(USERS)], dense_seed=step))
        print(step, flush=True)


def _expect(got: object, expected: object) -> None:
    if got != expected:
        raise RuntimeError(f"expected {expected!r}, got {got!r}")


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    if sys.argv[1] == "--core":
        print(json.dumps({"a predict": predict(), "a folder delta": folder_delta()}))
    else:
        _publish(sys.argv[1])
