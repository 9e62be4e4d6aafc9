"""Hostile ONNX files: each is refused or ended at a limit, and no request beside them fails.

One server imports the files by itself, from version folders, while a client predicts without a pause with a model that
ONNX Runtime computes; at the end with ids far beyond its table. Each file is imported by a process of its own, so every
fourth is tried here, and all of them by `make -C loadtest fuzz` (FRESHET_HOSTILE_STEP=1).
"""

import json
import os
import threading
import time

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving import Client
from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.processor.errors import FreshetError
from tests.compiler.imports.onnx_native.hostile_models import HOSTILE
from tests.compiler.imports.onnx_native.native_models import spelled
from tests.e2e.servers import ALONE, LiveServer
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long, pytest.mark.campaign]

PATIENCE_S = 1200.0
TRIED = list(HOSTILE)[:: int(os.environ.get("FRESHET_HOSTILE_STEP", "4"))]
# Names of Python's and of libraries' exceptions in a message tell a user nothing.
LEAKS = ("Error:", "Exception", "Traceback", "RuntimeError", "site-packages")
GATHER = "g (int64[n] k, float[n, 8] x) => (float[n, 8] y) { r = Gather (w, k) t = Add (r, x) y = Shrink (t) }"
ROWS = np.random.default_rng(5).standard_normal((30, 8)).astype(np.float32)


class Bystander(threading.Thread):
    """A client that predicts until it is stopped; counts answers, and keeps failures."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.answered, self.failures, self.stopped = port, 0, [], threading.Event()

    def run(self):
        given = {"k": np.array([1, 2]), "x": np.zeros((2, 8), np.float32)}
        with Client(f"http://127.0.0.1:{self.port}", timeout_s=60.0) as client:
            while not self.stopped.is_set():
                try:
                    client.predict("good", given)
                    self.answered += 1
                except FreshetError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                time.sleep(0.01)


def states(server, names):
    """State and message of each model's version."""
    found = {}
    for name in names:
        code, _, body = server.get(f"/v1/models/{name}")
        if code == 200:
            (status,) = json.loads(body)["model_version_status"]
            found[name] = (status["state"], status["status"]["error_message"])
    return found


def ended(server, names):
    found = states(server, names)
    return found if len(found) == len(names) and all(state == "END" for state, _ in found.values()) else None


def test_hostile_files_are_refused_while_others_are_answered(tmp_path):
    repository = tmp_path / "repository"
    good = spelled(tmp_path / "good.onnx", GATHER, w=ROWS)
    import_model(good, repository, "good")
    assert len(HOSTILE) >= 30
    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        bystander = Bystander(server.http_port)
        bystander.start()
        for name in TRIED:
            folder = repository / f"hostile_{name}" / "1"
            folder.mkdir(parents=True)
            HOSTILE[name](folder / "model.onnx")
        names = [f"hostile_{name}" for name in TRIED]
        found = until(lambda: ended(server, names), lambda: time.sleep(1.0), within_s=PATIENCE_S)
        for name, (_, message) in found.items():
            print(f"{name}: {message}")
            assert message, name
            assert not any(leak in message for leak in LEAKS), f"{name}: {message}"

        with Client(f"http://127.0.0.1:{server.http_port}", timeout_s=60.0) as client:
            for ids in ([1 << 40], [-(1 << 63)], [2, 99_999]):
                # An id without a row has the default one; it fails nobody.
                client.predict("good", {"k": np.array(ids), "x": np.zeros((len(ids), 8), np.float32)})
        bystander.stopped.set()
        bystander.join()
        print(f"{bystander.answered} other requests answered, {len(bystander.failures)} failed")
        assert bystander.answered > 0
        assert not bystander.failures
