"""What the tests of `freshet train --follow` share: the command in a process, and who sends it numbered events."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np

from tests.e2e.servers import free_port

ROOT = Path(__file__).parents[2]
MODEL, USERS, ITEMS = "followed", 50, 40


def events(first, count):
    """`count` events from number `first` on, as columns: each a function of its number."""
    numbers = np.arange(first, first + count)
    random = np.random.default_rng([7, first])
    user, item = numbers % USERS, random.integers(0, ITEMS, count)
    label = random.random(count) < 1 / (1 + np.exp(-np.sin(user) - np.cos(item)))
    return {"user": user, "item": item, "clicked": label.astype(float), "ts": 1.7e9 + numbers / 10}


def learned(checkpoints):
    """How often a run has learned each user, as its newest checkpoint has it."""
    from freshet_serving.models.training.checkpoint import map_newest

    found = dict.fromkeys(range(USERS), 0)
    for layer in reversed(map_newest(checkpoints).tables["user"]):
        found |= dict(zip(layer.keys.tolist(), layer.counts.tolist()))
    return found


def weights(checkpoints):
    """Steps, and rows by table and key, as the newest checkpoint has them."""
    from freshet_serving.models.training.checkpoint import map_newest

    newest, found = map_newest(checkpoints), {}
    for name, layers in newest.tables.items():
        for layer in reversed(layers):
            found |= {(name, key): row.tobytes() for key, row in zip(layer.keys.tolist(), layer.rows)}
    return newest.steps, found


def sent(count):
    """The same of the first so many events."""
    return {user: (count + USERS - 1 - user) // USERS for user in range(USERS)}


class FolderEvents:
    """Sends events as Parquet files."""

    def __init__(self, folder):
        self.folder, self.path, self.count = folder, str(folder), 0
        folder.mkdir()

    def send(self, rows):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.folder / f"{self.count:09}.parquet"
        hidden = path.with_name(f".{path.name}.tmp")
        pq.write_table(pa.table(self.made(self.count, rows)), hidden)
        hidden.rename(path)
        self.count += rows

    def made(self, first, rows):
        """The columns of some events."""
        return events(first, rows)

    def kill(self): ...
    def close(self): ...


class RedisEvents:
    """Sends events to a redis-server of its own, each with an id of its own, so that none comes twice."""

    def __init__(self):
        from tests.processor.extensions.remote_rows.fakes import RedisServer

        self.server, self.count = RedisServer().start(), 0
        self.path = self.server.url.removesuffix("/0") + "/clicks"

    def send(self, rows):
        import redis

        made = {name: column.tolist() for name, column in events(self.count, rows).items()}
        with self.server.client() as client:
            for n in range(rows):
                try:
                    client.xadd(
                        "clicks", {name: column[n] for name, column in made.items()}, id=f"{self.count + n + 1}-0"
                    )
                except redis.ResponseError as error:
                    # It had been taken when the server was killed.
                    if "equal or smaller" not in str(error):
                        raise
        self.count += rows

    def kill(self):
        self.server.kill()
        self.server.start()

    def close(self):
        self.server.close()


class FollowingTrainer:
    """`freshet train --follow` in a process of its own."""

    def __init__(self, folder, path, sections=(), options=(), **publish):
        """A trainer of events at a path; `sections`: lines of its file, `options`: of its command."""
        self.options = options
        self.repository, self.log = folder / "repository", folder / "train.log"
        self.config, self.metrics_port = folder / "train.toml", free_port()
        publish = {"repository": str(self.repository)} | publish
        lines = ["[model]", f'name = "{MODEL}"', "hidden = [8]"]
        lines += ["[data]", f"path = {json.dumps(path)}", 'label = "clicked"', 'time = "ts"']
        lines += ["[features.user]", 'kind = "id"', "dim = 4", "[features.item]", 'kind = "id"', "dim = 4"]
        lines += ["[train]", "batch_rows = 64"]
        lines += ["[publish]", *(f"{key} = {json.dumps(value)}" for key, value in publish.items()), *sections]
        self.config.write_text("\n".join(lines))
        self.process = None

    @property
    def checkpoints(self):
        return self.repository / ".checkpoints" / MODEL

    def start(self):
        command = [sys.executable, "-m", "freshet_serving", "train", "--config", str(self.config), "--follow"]
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(
                [*command, *self.options, "--metrics-port", str(self.metrics_port)], cwd=ROOT, stdout=out, stderr=out
            )

    def repeat(self, repository):
        """Learn all of it again, in the same steps, into another repository; return the folder of the checkpoints."""
        command = [sys.executable, "-m", "freshet_serving", "train", "--config", str(self.config)]
        command += ["--set", f"publish.repository={json.dumps(str(repository))}", "--repeat", str(self.checkpoints)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return repository / ".checkpoints" / MODEL

    def alive(self):
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return True

    def metrics(self):
        """Values by family, of this model; {} while nobody answers."""
        self.alive()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            return {}
        values = [line.rpartition(" ") for line in lines if line.startswith("freshet_train_") and "table=" not in line]
        return {name.partition("{")[0]: float(value) for name, _, value in values}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Asks it to end as an operator does; its exit status."""
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        watchdog.cancel()
        return status

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
