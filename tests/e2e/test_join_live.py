"""`freshet join` in processes of its own: what a real server recorded, and kill -9 at random moments.

FRESHET_KILL_ROUNDS kills (3 if not set), at moments drawn by FRESHET_KILL_SEED.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.servers import ALONE, LiveServer, free_port
from tests.e2e.test_kills import SEED
from tests.models.streams.recordings import BEGAN_S, outcomes, put, recording
from tests.support.console_stage import as_json
from tests.support.guarded import Stream, write_guarded
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "3"))
INPUTS = {"user": [0, 1, 2, 3], "tags": [["a"], [], ["b"], ["c"]], "floats": [[0.1, 0.2, 0.3, 0.4]]}


class Join:
    """The command in a process."""

    def __init__(self, folder, *options):
        self.out, self.log, self.port = folder / "joined", folder / "join.log", free_port()
        self.command = [sys.executable, "-m", "freshet_serving", "join", "--out", str(self.out)]
        self.command += ["--recordings", str(folder / "recordings"), "--outcomes", str(folder / "outcomes"), *options]
        self.process = None

    def once(self):
        return subprocess.run(self.command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def start(self):
        command = [*self.command, "--follow", "--metrics-port", str(self.port)]
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    def metrics(self):
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as reply:
                lines = [line for line in reply.read().decode().splitlines() if line.startswith("freshet_join_")]
        except OSError:
            return {}
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def rows(self):
        names = [f"freshet.{name}" for name in ("request", "row", "label", "late", "weight")]
        return [
            row
            for path in sorted(self.out.glob("*.parquet"))
            for row in zip(*(column.to_pylist() for column in pq.read_table(path, columns=names).columns))
        ]


def test_recorded_requests_are_joined_with_their_outcomes(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=range(6))
    recorded = ("--record", str(tmp_path / "recordings"), "--record-share", "1")
    with LiveServer(repository, *ALONE, *recorded, log=tmp_path / "serve.log") as server:
        for n in range(5):
            headers = {"x-request-id": f"request-{n}"}
            body = json.dumps({"inputs": INPUTS}).encode()
            assert server.request("POST", "/v1/models/small:predict", body, headers)[0] == 200
        now_s = time.time() - BEGAN_S
    put(tmp_path / "outcomes", "a", outcomes([("request-1", 2, now_s), ("request-4", 0, now_s), ("nobody", 0, now_s)]))
    join = Join(tmp_path, "--wait", "3", "--late", "60", "--lag", "0", "--every", "0")
    until(lambda: time.time() - BEGAN_S > now_s + 3.1)
    said = join.once()
    assert said.returncode == 0, said.stderr
    assert "20 rows, 2 positives in time" in " ".join(said.stdout.split())
    found = join.rows()
    assert [row[:2] for row in found] == [(f"request-{n}", row) for n in range(5) for row in range(4)]
    assert [row[:2] for row in found if row[2]] == [("request-1", 2), ("request-4", 0)]
    # Again: nothing is left to do, and a late outcome is.
    put(tmp_path / "outcomes", "b", outcomes([("request-0", 0, now_s + 4)]))
    assert join.once().returncode == 0
    assert join.rows()[20:] == [("request-0", 0, 1.0, True, 1.0)]


def test_calibration_report_tolerates_an_unreachable_server(tmp_path):
    put(tmp_path / "recordings", "ctr-w0-1-1", recording([("r", 0, 0, 0.5)]))
    (tmp_path / "outcomes").mkdir()
    said = Join(tmp_path, "--admin", f"http://127.0.0.1:{free_port()}").once()
    assert said.returncode == 0, said.stderr
    assert "could not report calibration: admin: no answer" in " ".join(said.stdout.split())


def test_server_rolls_back_when_joined_labels_show_miscalibration(tmp_path):
    repository = tmp_path / "repository"
    write_guarded(repository)
    # Small, so that each round of requests fills a file.
    recorded = ("--record", str(tmp_path / "recordings"), "--record-share", "1", "--record-max-bytes", "1600000")
    rounds = []

    def round_of_requests(server, off):
        """Requests, and outcomes of which scores are off by that factor; all in files of their own."""
        clicks = []
        for n in range(10):
            name, inputs = f"{len(rounds)}-{n}", as_json(500, seed=n)
            body = json.dumps({"inputs": inputs}).encode()
            status, _, reply = server.request("POST", "/v1/models/small:predict", body, {"x-request-id": name})
            assert status == 200, reply
            count = round(float(np.sum(json.loads(reply)["outputs"])) / off)
            clicks += [(name, row, time.time() - BEGAN_S) for row in range(count)]
        rounds.append(len(clicks))
        put(tmp_path / "outcomes", f"{len(rounds)}", outcomes(clicks))
        until(lambda: len(list((tmp_path / "recordings").glob("*.parquet"))) >= len(rounds))

    with LiveServer(repository, *ALONE, "--delta-guard", "on", *recorded, log=tmp_path / "serve.log") as server:
        admin = f"http://127.0.0.1:{server.admin_port}"
        join = Join(tmp_path, "--wait", "0.5", "--late", "0", "--lag", "0", "--every", "0", "--admin", admin)
        round_of_requests(server, off=1.0)
        # A server looks at what it serves once a second; what was there at the first look is taken to be good.
        seen_s = time.monotonic()
        until(lambda: time.monotonic() > seen_s + 2.5)
        write_delta(repository / "small" / "1" / "deltas" / "1.safetensors", Stream().good())
        until(lambda: server.generation("small") == "1.1")
        round_of_requests(server, off=2.0)
        assert min(rounds) > 50
        join.start()
        try:
            until(lambda: server.generation("small") == "1.0", within_s=30)
            assert join.end() == 0
        finally:
            if join.process.poll() is None:
                join.kill()
    newest = list(ChangeLog.of(Repository(repository).version("small", 1)).records())[-1]
    assert newest.kind == "rollback"
    assert re.match(r"rolled back automatically: calibration: scores are (1\.9|2\.0)\d times the labels", newest.reason)
    assert "calibration was not told" not in join.log.read_text()


@pytest.mark.kills
def test_killed_join_emits_every_row_once(tmp_path):
    draw = random.Random(f"join {SEED}")
    (tmp_path / "recordings").mkdir()
    (tmp_path / "outcomes").mkdir()
    join = Join(tmp_path, "--wait", "1", "--late", "120", "--lag", "0.5", "--every", "0.1", "--file-rows", "50")
    rows, coming, clicked, files = [], [], set(), [0, 0]

    def send(most):
        """Up to so many new rows, and the clicks that are due, one of them twice."""
        now_s = time.time() - BEGAN_S
        made = [(f"r{len(rows) + n}", 0, now_s, 0.25) for n in range(draw.randint(1, most))] if most else []
        rows.extend(made)
        coming.extend((row[0], 0, now_s + draw.choice((0.1, 0.5, 2.0, 4.0))) for row in made if draw.random() < 0.4)
        due = sorted((one for one in coming if one[2] <= now_s), key=lambda one: one[2])
        coming[:] = [one for one in coming if one[2] > now_s]
        if made:
            files[0] += 1
            name = f"ctr-w{files[0] % 2}-{int((BEGAN_S + now_s) * 1e3)}-{files[0]}"
            put(tmp_path / "recordings", name, recording(made))
        if due:
            files[1] += 1
            put(tmp_path / "outcomes", f"{files[1]:06}", outcomes([*due, due[0]]))
            clicked.update(one[0] for one in due)

    join.start()
    try:
        for life in range(ROUNDS):
            until(join.metrics)
            ends_s = time.monotonic() + draw.random() * 4.0
            while time.monotonic() < ends_s:
                send(40)
                time.sleep(0.05)
            join.kill()
            print(f"life {life}: {len(rows):,} rows, {len(clicked):,} clicks, {len(join.rows()):,} emitted")
            join.start()
        until(lambda: not coming, lambda: send(0))

        def all_there():
            found = join.metrics()
            done = found.get("freshet_join_positives_total", 0) + found.get("freshet_join_late_total", 0)
            return found.get("freshet_join_rows_total") == len(rows) and done == len(clicked)

        until(all_there)
        assert join.end() == 0
    finally:
        if join.process.poll() is None:
            join.kill()
    found = join.rows()
    assert Counter(row[0] for row in found if not row[3]) == Counter(row[0] for row in rows)
    assert Counter(row[0] for row in found if row[2]) == Counter(clicked)


def test_joined_rows_are_accepted_by_training(tmp_path):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    draw = random.Random(3)
    rows = [(f"r{n}", 0, float(n), 0.25) for n in range(3000)]
    put(tmp_path / "recordings", "ctr-w0-1-1", recording(rows, price=pa.array([draw.random() for _ in rows])))
    put(tmp_path / "outcomes", "a", outcomes([(row[0], 0, row[2] + 5) for row in rows if draw.random() < 0.3]))
    assert Join(tmp_path).once().returncode == 0
    config = tmp_path / "ctr.toml"
    config.write_text(
        f"""[model]
name = "ctr"
hidden = [8]
[data]
path = {json.dumps(str(tmp_path / "joined"))}
label = "freshet.label"
weight = "freshet.weight"
time = "freshet.time"
[features.item]
kind = "id"
dim = 4
[features.price]
kind = "float"
[publish]
repository = {json.dumps(str(tmp_path / "repository"))}
"""
    )
    command = [sys.executable, "-m", "freshet_serving", "train", "--config", str(config)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    assert "ctr 1.0 is in" in " ".join(said.stdout.split())
