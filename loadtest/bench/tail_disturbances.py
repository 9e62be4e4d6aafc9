"""What disturbs a server while another client measures: deltas, new versions, a saturated neighbour, long JSON.

A disturbance is prepared before a turn (files are written, versions copied) and returns what disturbs, so that
little of its cost falls on the client's core during the turn.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.bench import LIMIT, bench_delta
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.version import VersionReader
from loadtest.load.admin_calls import post_delta
from loadtest.load.launch import HOST, CommandFailed, RunningServer
from loadtest.load.openloop import Job, Openloop
from loadtest.load.payload import FLOATS, IDS, Payload, bench_count, bench_payload

OURS, NULL = "server", "null server"
MODEL, NEIGHBOUR = "bench", "bench-b"
CANDIDATES, NEIGHBOUR_CANDIDATES, NEIGHBOUR_CONNECTIONS = 8, 64, 16
CHANGED_ROWS, EVERY_S, VERSIONS = 100_000, 1.0, 2
WARM_S, LOOK_S, VERSION_TIMEOUT_S = 0.5, 0.05, 60.0
FASTEST = 20_000.0
"""Requests a second that no server reaches: so many, and a client's connections are always busy."""
PATIENCE_S = 0.5
FILLED = 0.98
"""Of the longest body of JSON: rows differ in length."""
UNDISTURBED = "none"


@dataclass(slots=True)
class Bed:
    """Both servers of one layout, and what turns need. rate: of the client. steps: the last delta of each version."""

    work: Path
    servers: dict[str, RunningServer]
    stamps: dict[str, Path]
    repository: Path
    table_rows: int
    seconds: float
    json_nbytes: int
    rate: float = 0.0
    steps: dict[int, int] = field(default_factory=dict)

    def payload(self, candidates: int, model: str = MODEL) -> str:
        """Return the folder of a payload, written once."""
        folder = self.work / f"payload-{model}-{candidates}"
        if not folder.exists():
            bench_payload(candidates, bench_count(candidates), self.table_rows, model=model).save(folder)
        return str(folder)

    def reply_nbytes(self) -> int:
        """Return the length of the body of a reply of our server."""
        about = Payload.load(Path(self.payload(CANDIDATES)))
        connection = http.client.HTTPConnection(HOST, self.servers[OURS].http_port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", about.path, about.bodies[0], dict(about.headers))
            reply = connection.getresponse()
            said = reply.read()
        if reply.status != 200:
            raise CommandFailed(f"a predict request was answered {reply.status}: {said[:300]!r}")
        return len(said)

    def job(self, side: str, **options: Any) -> Job:
        """Return the client's job at a server."""
        options = {"rate": self.rate, "seconds": self.seconds, "warm_s": WARM_S, **options}
        return Job(HOST, self.servers[side].http_port, self.payload(CANDIDATES), **options)


Disturb = Callable[[float, float], None]
"""Disturbs our server from an instant of the monotonic clock on, for so many seconds; returns early once told to."""


@contextlib.contextmanager
def disturbing(disturb: Disturb | None, start_s: float, seconds: float) -> Iterator[None]:
    """Disturb on a thread while the block runs; its error is the block's."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            assert disturb is not None, "started only with one"
            disturb(start_s, seconds)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    if disturb is not None:
        thread.start()
    yield
    if disturb is not None:
        thread.join()
    if errors:
        raise errors[0]


def undisturbed(bed: Bed) -> Disturb | None:
    """Return nothing to do."""
    return None


def deltas(bed: Bed) -> Disturb:
    """Prepare deltas of the newest version; return what posts one of them a second."""
    version = newest(bed)
    manifest = VersionReader(bed.repository / MODEL / str(version)).manifest
    path, files = bed.work / "delta.safetensors", []
    for _ in range(max(1, int(bed.seconds / EVERY_S))):
        bed.steps[version] = bed.steps.get(version, 0) + 1
        changed = min(CHANGED_ROWS, bed.table_rows * len(manifest.tables))
        delta = bench_delta(manifest, bed.steps[version], changed)
        # The rows as they were published: others would move scores, and the gate would hold the versions that follow.
        for number, entry in enumerate(manifest.tables):
            if entry.name in delta.tables:
                part = delta.tables[entry.name]
                init_rows(part.keys, np.uint64(number), np.float32(LIMIT), part.rows)
        write_delta(path, delta)
        files.append(path.read_bytes())

    def disturb(start_s: float, seconds: float) -> None:
        for number, file in enumerate(files):
            time.sleep(max(0.0, start_s + number * EVERY_S - time.monotonic()))
            post_delta(bed.servers[OURS].admin_port, MODEL, file)

    return disturb


def versions(bed: Bed) -> Disturb:
    """Prepare copies of the newest version under later numbers; return what gives them their names."""
    first = newest(bed)
    hidden = [copy_version(bed.repository / MODEL, first, first + n + 1) for n in range(VERSIONS)]

    def disturb(start_s: float, seconds: float) -> None:
        for number, folder in enumerate(hidden):
            time.sleep(max(0.0, start_s + seconds * (number + 0.25) / VERSIONS - time.monotonic()))
            folder.rename(folder.with_name(folder.name.split(".")[1]))
        until_s = time.monotonic() + VERSION_TIMEOUT_S
        while served_version(bed) < first + VERSIONS:
            if time.monotonic() > until_s:
                raise CommandFailed(f"version {first + VERSIONS} is not served within {VERSION_TIMEOUT_S:g} s")
            time.sleep(LOOK_S)

    return disturb


def neighbour(bed: Bed) -> Disturb:
    """Return what keeps the second model saturated."""
    port, payload = bed.servers[OURS].http_port, bed.payload(NEIGHBOUR_CANDIDATES, NEIGHBOUR)

    def disturb(start_s: float, seconds: float) -> None:
        job = Job(HOST, port, payload, FASTEST, seconds, 0.0, NEIGHBOUR_CONNECTIONS, deadline_s=PATIENCE_S)
        with Openloop(job) as client:
            client.started()
            client.result()

    return disturb


def long_json(bed: Bed) -> Disturb:
    """Prepare a body of JSON; return what posts it again and again."""
    random = np.random.default_rng(0)
    row_nbytes = len(json_rows(random, 100, bed.table_rows)) / 100
    body = json_rows(random, max(1, int(FILLED * bed.json_nbytes / row_nbytes)), bed.table_rows)

    def disturb(start_s: float, seconds: float) -> None:
        time.sleep(max(0.0, start_s - time.monotonic()))
        connection = http.client.HTTPConnection(HOST, bed.servers[OURS].http_port, timeout=60)
        with contextlib.closing(connection):
            while time.monotonic() < start_s + seconds:
                headers = {"content-type": "application/json"}
                connection.request("POST", f"/v1/models/{MODEL}:predict", body, headers)
                reply = connection.getresponse()
                said = reply.read()
                if reply.status != 200:
                    raise CommandFailed(f"JSON of {len(body)} bytes: {reply.status}: {said[:300].decode()}")

    return disturb


DISTURBANCES: dict[str, Callable[[Bed], Disturb | None]] = {
    UNDISTURBED: undisturbed,
    "100,000 rows a second": deltas,
    "two versions": versions,
    "saturated neighbour": neighbour,
    "JSON of 16 MiB": long_json,
}


def json_rows(random: np.random.Generator, count: int, table_rows: int) -> bytes:
    """Return a body of so many rows."""
    ids = random.integers(0, table_rows, (count, IDS)).tolist()
    floats = random.random((count, FLOATS), np.float32).tolist()
    return json.dumps({"inputs": {"ids": ids, "floats": floats}}).encode()


def newest(bed: Bed) -> int:
    """Return the number of the newest version."""
    return max(int(path.name) for path in (bed.repository / MODEL).iterdir() if path.name.isdigit())


def served_version(bed: Bed) -> int:
    """Return the version that the server answers with."""
    connection = http.client.HTTPConnection(HOST, bed.servers[OURS].admin_port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/admin/models")
        generation: str = json.loads(connection.getresponse().read())["models"][MODEL]["generation"]
    return int(generation.split(".")[0])


def copy_version(model: Path, version: int, number: int) -> Path:
    """Copy a version without its deltas, hidden from the server, under a later number."""
    hidden = model / f".{number}.prepared"
    shutil.copytree(model / str(version), hidden, ignore=shutil.ignore_patterns("chain", "deltas"))
    manifest = hidden / "model.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": number}))
    return hidden


def copy_model(repository: Path, model: str, name: str) -> None:
    """Copy a model of one version under another name."""
    shutil.copytree(repository / model, repository / name)
    for manifest in (repository / name).glob("*/model.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "model": name}))
