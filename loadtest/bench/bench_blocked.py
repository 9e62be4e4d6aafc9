"""`make -C loadtest blocked`: how long writers keep the event loop from what is due; loadtest/results/blocked.md.

One process answers and writes (`freshet serve --workers 1 --compute threads`), so that a writer has no interpreter of
its own. Another process writes the time into a pipe every millisecond, and the loop reads it as it reads connections:
what it notes is how long a byte of a client would have waited. Writers take turns with an idle null: a delta of 100,000
rows a second, uploaded; a new version of the same network with other weights and rows, put into the repository; one
JSON request of 16 MiB after the other. A figure is the 99th percentile over a turn, and the median of the turns.

Beside the null is what counts: the machine and the kernel make the loop late as well. Each writer's share of the time
differs, so a turn of versions is as long as loading them takes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console

from loadtest.bench.blocked_side import INSTANT
from loadtest.load.admin_calls import post_delta
from loadtest.load.launch import HOST, MODEL, CommandFailed, free_ports
from loadtest.load.payload import bench_inputs
from loadtest.reports.report import machine, opening, origin, store, table

RESULTS = Path(__file__).parents[1] / "results"
IDLE = "idle"
AIMS_MS = {"deltas": 1.0, "versions": 5.0, "JSON": 60.0}
PERIOD_S, EVERY_S, LOOK_S, GIVE_UP_S = 0.001, 1.0, 0.25, 120.0
JSON_NBYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Material:
    """What the writers write.

    Attributes:
        repository: Has version 1; later ones are hidden in it until they are published.
        versions: Folders of the later versions, by number.
        deltas: Files of the chain of version 1.
    """

    repository: Path
    versions: dict[int, Path]
    deltas: list[Path]


def prepared(folder: Path, table_rows: int, delta_rows: int, deltas: int, versions: int) -> Material:
    """Write versions and deltas; this imports TensorFlow, so it is called in a process of its own."""
    from freshet_serving.models.bench import write_deltas, write_model

    repository = folder / "repository"
    write_model(repository, table_rows)
    files = list(write_deltas(repository, delta_rows, deltas, folder / "deltas"))
    hidden = {number: repository / MODEL / f".{number}.prepared" for number in range(2, 2 + versions)}
    for number in hidden:
        write_model(repository, table_rows, seed=number)
    for number, path in hidden.items():
        (repository / MODEL / str(number)).rename(path)
    return Material(repository, hidden, files)


class ProbedProcess:
    """A server in a process of its own, and the pipe into its loop."""

    def __init__(self, repository: Path, log: IO[bytes]) -> None:
        self.http_port, grpc_port, self.admin_port = free_ports(3)
        options = {
            "repository": str(repository), "workers": 1, "compute": "threads", "host": HOST,
            "http_port": self.http_port, "grpc_port": grpc_port, "admin_port": self.admin_port,
        }  # fmt: skip
        command = [sys.executable, "-m", "loadtest.bench.blocked_side", json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._write_instants, daemon=True)

    def start(self) -> None:
        """Wait until it answers, and begin to write instants."""
        give_up_s = time.monotonic() + GIVE_UP_S
        while self._status("/v2/health/ready") != 200:
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                raise CommandFailed("the probed server is not ready")
            time.sleep(LOOK_S)
        self._thread.start()

    def waited_ms(self, turn: Callable[[], None]) -> np.ndarray:
        """Run a turn; return how long each instant of it waited, in milliseconds."""
        self._asked()
        turn()
        return np.array(self._asked()) / 1e3

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._process.terminate()
        self._process.communicate()

    def post(self, path: str, body: bytes) -> int:
        """Post JSON; return the status."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=GIVE_UP_S)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            return reply.status

    def generation(self) -> str:
        """Return the generation that requests meet now."""
        connection = http.client.HTTPConnection(HOST, self.admin_port, timeout=GIVE_UP_S)
        with contextlib.closing(connection):
            connection.request("GET", "/admin/models")
            found: str = json.loads(connection.getresponse().read())["models"][MODEL]["generation"]
            return found

    def _asked(self) -> list[int]:
        self._write(0)
        assert self._process.stdout is not None, "it is a pipe"
        found: list[int] = json.loads(self._process.stdout.readline())
        return found

    def _write(self, instant_ns: int) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        with self._writing:
            self._process.stdin.write(INSTANT.pack(instant_ns))
            self._process.stdin.flush()

    def _write_instants(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._write(time.monotonic_ns())

    def _status(self, path: str) -> int:
        try:
            connection = http.client.HTTPConnection(HOST, self.http_port, timeout=LOOK_S)
            with contextlib.closing(connection):
                connection.request("GET", path)
                return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def json_body(nbytes: int, table_rows: int) -> bytes:
    """Return a request to the benchmark's model of at most so many bytes, but of one row at least."""
    (inputs,) = bench_inputs(1, 1, table_rows)
    row = {name: values.tolist()[0] for name, values in inputs.items()}
    rows = max(1, nbytes // (len(json.dumps(row)) + 4))
    return json.dumps({"inputs": {name: [values] * rows for name, values in row.items()}}).encode()


def turns(server: ProbedProcess, material: Material, seconds: float, body: bytes) -> Mapping[str, Callable[[], None]]:
    """Return what a turn of each writer does."""
    deltas, hidden = iter(material.deltas), iter(material.versions.items())

    def post_deltas() -> None:
        for _ in range(max(1, int(seconds / EVERY_S))):
            started_s = time.monotonic()
            post_delta(server.admin_port, MODEL, next(deltas).read_bytes())
            time.sleep(max(0.0, started_s + EVERY_S - time.monotonic()))

    def publish() -> None:
        number, folder = next(hidden)
        folder.rename(folder.with_name(str(number)))
        give_up_s = time.monotonic() + GIVE_UP_S
        while server.generation().split(".")[0] != str(number):
            if time.monotonic() > give_up_s:
                raise CommandFailed(f"version {number} does not answer")
            time.sleep(LOOK_S)

    def post_json() -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            if (status := server.post(f"/v1/models/{MODEL}:predict", body)) != 200:
                raise CommandFailed(f"JSON of {len(body)} bytes: {status}")

    # Deltas are of version 1, so they come before the later versions.
    return {IDLE: lambda: time.sleep(seconds), "deltas": post_deltas, "JSON": post_json, "versions": publish}


@contextlib.contextmanager
def probed(repository: Path, log: Path) -> Iterator[ProbedProcess]:
    with open(log, "wb") as file:
        server = ProbedProcess(repository, file)
        try:
            server.start()
            yield server
        finally:
            server.close()


def summary(waited_ms: np.ndarray) -> dict[str, float]:
    """Return percentiles of a turn."""
    return {
        "p50": float(np.median(waited_ms)),
        "p99": float(np.percentile(waited_ms, 99)),
        "most": float(waited_ms.max()),
    }


def page(results: Mapping[str, Any]) -> str:
    lines = opening("How long writers block the event loop", __doc__ or "", results)
    lines += [f"Load average before the run: {results['machine']['load_average']}.", ""]
    null = results["figures"][IDLE]
    rows = []
    for kind, found in results["figures"].items():
        ratio = "" if kind == IDLE else f"{found['p99'] / null['p99']:.1f}"
        aim = AIMS_MS.get(kind)
        rows.append(
            [kind, f"{found['p50']:.2f}", f"**{found['p99']:.2f}**", f"{found['most']:.1f}", ratio,
             "" if aim is None else f"{aim:g}{'' if found['p99'] <= aim else ', missed'}"]
        )  # fmt: skip
    heads = ["writer", "p50, ms", "p99, ms", "longest, ms", "p99 / idle", "aim of p99, ms"]
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest blocked", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--table-rows", type=int, default=100_000, help="of each of the 26 tables")
    parser.add_argument("--delta-rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console, made = Console(), origin("-C loadtest blocked", "ARGS", sys.argv[1:])
    about = machine()
    waits: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="freshet-blocked-") as temporary:
        folder, per_turn = Path(temporary), max(1, int(options.seconds / EVERY_S))
        sizes = options.table_rows, min(options.delta_rows, 26 * options.table_rows), options.rounds * per_turn
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            material = pool.submit(prepared, folder, *sizes, options.rounds).result()
        with probed(material.repository, folder / "serve.log") as server:
            kinds = turns(server, material, options.seconds, json_body(JSON_NBYTES - (1 << 16), options.table_rows))
            for kind in (IDLE, "deltas", IDLE, "JSON", IDLE, "versions"):
                for _ in range(options.rounds):
                    found = summary(server.waited_ms(kinds[kind]))
                    waits.setdefault(kind, []).append(found)
                    console.print(f"{kind}: {found}")
    figures = {
        kind: {key: statistics.median(turn[key] for turn in each) for key in each[0]} for kind, each in waits.items()
    }
    results = {"machine": about, "origin": made, "figures": figures}
    store(options.out, "blocked", results, page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
