"""A stage for what is shown of object stores: an S3 server, one who publishes, replicas with mirrors of their own.

python -m tests.support.object_stage publish ADDRESS    deltas, as they are asked for on stdin: a line 'rows seed' each,
                                                        answered by 'step seconds' (CLOCK_MONOTONIC, once published)
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, write_package
from tests.support.waiting import Background

ROOT = Path(__file__).parents[2]
MODEL, USERS = "small", 20_000


def upload_package(server, address, folder, **options):
    """A full version of the small model, made in a folder and put where servers look: its manifest last."""
    from freshet_serving.processor.extensions.object_stores.object_store import open_store

    write_package(folder, users=range(USERS), **options)
    store = open_store(address)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.name == "model.json"):
        store.put(path.relative_to(folder).as_posix(), path)


class PublishingProcess:
    """Publishes deltas from a process of its own, so that no load of this one is in their times."""

    def __init__(self, address, env, log):
        command = [sys.executable, "-m", "tests.support.object_stage", "publish", address]
        pipe = subprocess.PIPE
        with open(log, "a") as err:
            self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=err, text=True)

    def publish(self, rows, seed):
        """(step, when it was published, on CLOCK_MONOTONIC)."""
        self.process.stdin.write(f"{rows} {seed}\n")
        self.process.stdin.flush()
        step, at_s = self.process.stdout.readline().split()
        return int(step), float(at_s)

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class ReplicaSet:
    """Servers of one repository, each with a mirror of its own unless they share one."""

    def __init__(self, address, env, folder, replicas, shared=False, options=ALONE):
        self.address, self.env, self.folder, self.options = address, env, folder, options
        self.mirrors = [folder / ("mirror" if shared else f"mirror-{n}") for n in range(replicas)]
        self.servers = [None] * replicas

    def start(self, number):
        mirror = ("--mirror", str(self.mirrors[number]))
        log = self.folder / f"serve-{number}.log"
        self.servers[number] = LiveServer(self.address, *self.options, *mirror, log=log, env=self.env)
        return self.servers[number]

    def __enter__(self):
        try:
            for number in range(len(self.servers)):
                self.start(number)
            for server in self.servers:
                server.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            if server is not None:
                server.__exit__()

    def generations(self):
        return [server.generation(MODEL) for server in self.servers]

    def digests(self):
        return [served(server)["digest"] for server in self.servers]


def served(server, model=MODEL):
    """What a server says of the newest version that it serves."""
    models = json.loads(server.get("/admin/models", admin=True)[2])["models"]
    versions = models[model]["served"]
    return versions[max(versions, key=int)]


class Arrivals(Background):
    """When each step was first served by each server, asked for every few milliseconds by a thread for each."""

    def __init__(self, servers, every_s=0.005):
        super().__init__(partial(self._watch, n) for n in range(len(servers)))
        self.servers, self.every_s = servers, every_s
        self.at_s = [{} for _ in servers]

    def _watch(self, number):
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.servers[number].http_port, timeout=30)
        body = json.dumps({"inputs": {"user": [1], "tags": [["a"]], "floats": [[0.0] * 4]}}).encode()
        while not self.ended.wait(self.every_s):
            connection.request("POST", f"/v1/models/{MODEL}:predict", body)
            reply = connection.getresponse()
            reply.read()
            step = int(reply.headers["x-model-generation"].partition(".")[2])
            self.at_s[number].setdefault(step, time.monotonic())
        connection.close()

    def everywhere_s(self, step):
        """When the last of them served it or a later one; None while one does not."""
        firsts = [min((at for s, at in seen.copy().items() if s >= step), default=None) for seen in self.at_s]
        return None if None in firsts else max(firsts)


def publish(address):
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.opening import open_repository

    version = open_repository(address).version(MODEL)
    change_log = ChangeLog.of(version)
    for line in sys.stdin:
        rows, seed = map(int, line.split())
        change_log.look()
        users = np.random.default_rng(seed).choice(USERS, rows, replace=False)
        step = change_log.history.top + 1
        change_log.publish(make_delta(step, users=users.tolist(), parent=change_log.history.head.step, tag=step))
        print(step, time.monotonic(), flush=True)


if __name__ == "__main__":
    publish(sys.argv[2])
    os._exit(0)
