"""A live server for the console to look at: two models, a canary, deltas good, undone and held, and requests."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time

import numpy as np

from freshet_serving.processor.package.delta import TableDelta, write_delta
from tests.e2e.servers import LiveServer
from tests.support.guarded import TAGS, USERS, Stream, as_inputs, weights
from tests.support.packages import write_package
from tests.support.waiting import until

MODEL, OTHER = "ctr", "home-feed"
POLICY = f"""
[model.{MODEL}]
versions = "all"
labels = {{ stable = 1, canary = 2 }}
split = {{ stable = 90, canary = 10 }}
"""


def as_json(count, seed):
    columns = as_inputs(count, seed)
    tags = columns["tags"]
    words = [word.decode() for word in tags.values.tolist()]
    rows = [words[a:b] for a, b in zip(tags.row_splits.tolist(), tags.row_splits.tolist()[1:])]
    return {"user": columns["user"].tolist(), "tags": rows, "floats": columns["floats"].tolist()}


class Stage:
    """The server and who asks it; a context manager."""

    def __init__(self, folder, *options, pause_s=0.004):
        """pause_s: between two requests."""
        self.folder, self.repository = folder, folder / "repository"
        for version in (1, 2):
            write_package(self.repository, version, USERS, TAGS, model=MODEL, weights=weights)
        write_package(self.repository, 1, USERS, TAGS, model=OTHER, weights=weights)
        (folder / "serve.toml").write_text(POLICY)
        self.server = LiveServer(
            self.repository, "--config", str(folder / "serve.toml"), "--delta-guard", "on", *options,
            log=folder / "serve.log",
        )  # fmt: skip
        self._random = np.random.default_rng(3)
        self._stream, self._stop, self._pause_s = Stream(), threading.Event(), pause_s
        self._asking = threading.Thread(target=self._ask)

    def __enter__(self):
        self.server.__enter__()
        self._asking.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._asking.join()
        self.server.__exit__(*error)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.admin_port}"

    def delta(self, fault=""):
        """The next delta's file, not applied: good, or with a fault."""
        delta, served = (
            self._stream.fault(fault) if fault else self._some(self._stream.good()),
            self.model()["served"]["1"],
        )
        step, parent = served["chain"]["next_step"], int(served["generation"].partition(".")[2])
        path = self.folder / f"{step}{fault}.safetensors"
        write_delta(path, dataclasses.replace(delta, model=MODEL, step=step, parent_step=parent))
        return path

    def _some(self, delta):
        """The delta with a part of its rows, so that no two are alike."""
        share = self._random.uniform(0.05, 1.0) ** 2
        tables = {
            name: TableDelta(
                t.keys[: max(1, int(share * len(t.keys)))], t.rows[: max(1, int(share * len(t.keys)))], t.removed
            )
            for name, t in delta.tables.items()
        }
        return dataclasses.replace(delta, tables=tables)

    def apply(self, path):
        return self.server.upload(MODEL, path.read_bytes())

    def feed(self, count):
        for _ in range(count):
            status, reply = self.apply(self.delta())
            assert status == 200, reply

    def model(self):
        return json.loads(self.server.get("/admin/models", admin=True)[2])["models"][MODEL]

    def generation(self):
        return self.model()["generation"]

    def _ask(self):
        seed = 0
        bodies = [json.dumps({"inputs": as_json(8, n)}).encode() for n in range(64)]
        while not self._stop.is_set():
            seed += 1
            with contextlib.suppress(OSError):
                name = MODEL if seed % 5 else OTHER
                body = bodies[seed % 64] if seed % 97 else b"{}"
                self.server.request("POST", f"/v1/models/{name}:predict", body)
            time.sleep(self._pause_s)


def played(stage):
    """What a day brings: deltas, a rollback, one that is held."""
    until(lambda: stage.generation() == "1.0")
    stage.feed(16)
    status, reply = stage.server.post_json(
        f"/admin/models/{MODEL}/rollback", {"generation": "1.14", "reason": "labels of the last hour were late"}
    )
    assert status == 200, reply
    stage.feed(5)


def held(stage):
    """A delta with a fault, which the guard holds."""
    status, reply = stage.apply(stage.delta("hundredfold"))
    assert status == 409, reply
