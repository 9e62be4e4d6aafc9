"""`make -C loadtest feast-server`: features over HTTP, Feast's server and Freshet; loadtest/results/feast-server.md.

One user and 100 or 500 items: six features of the user and thirty of each item. Feast's own server, in an environment
of its own (feast_server_side.py), answers the features, all of which it reads from a redis-server. `freshet serve`
answers the scores of a model that reads these features, the items' from the model itself and the user's from the same
Redis, in every request. So Freshet's time has a network on top of the features. Each has one process; one client asks
one after the other, by turns, over a connection that stays open.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.bench import needs
from loadtest.bench.bench_feast import NO_FEAST, feast_python
from loadtest.bench.bench_features import (
    ITEM_KINDS,
    ITEMS,
    RESULTS,
    USER_KINDS,
    USERS,
    FeatureValues,
    fill_store,
    train,
)
from loadtest.bench.store_outages import redis_server
from loadtest.load.launch import free_ports, serving
from loadtest.reports.report import machine, opening, origin, table

SIDE = Path(__file__).with_name("feast_server_side.py")
START_S = 300.0
ASKED = [f"users:{name}" for name in USER_KINDS] + [f"items:{name}" for name in ITEM_KINDS]


@contextmanager
def feast_server(python: str, folder: Path, values: FeatureValues, redis_port: int) -> Iterator[int]:
    """Feast's server on the features; yields its port."""
    (port,) = free_ports(1)
    for name, columns in (("users", values.user), ("items", values.item)):
        (folder / f"{name}.json").write_text(json.dumps({n: np.asarray(c).tolist() for n, c in columns.items()}))
    # Feast reports its use to its makers unless told not to.
    environment = os.environ | {"FEAST_USAGE": "False", "PYTHONPATH": ""}
    command = [python, "-W", "ignore", str(SIDE), str(folder), str(redis_port), str(port)]
    with open(folder / "feast.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        end_s = time.monotonic() + START_S
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit("Feast's server did not start: " + (folder / "feast.log").read_text()[-2000:])
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Side:
    """One server, asked over one connection."""

    def __init__(self, port: int, path: str) -> None:
        self._path = path
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.times_ms: list[float] = []

    def ask(self, body: bytes) -> bytes:
        began_s = time.perf_counter()
        self._connection.request("POST", self._path, body, {"content-type": "application/json"})
        reply = self._connection.getresponse()
        data = reply.read()
        self.times_ms.append((time.perf_counter() - began_s) * 1e3)
        if reply.status != 200:
            raise SystemExit(f"{self._path} answered {reply.status}: {data[:300]!r}")
        return data

    def close(self) -> None:
        self._connection.close()


def bodies(user: int, items: list[int]) -> tuple[bytes, bytes]:
    """The same question for Feast's server, and for ours."""
    theirs = {"features": ASKED, "entities": {"user_id": [user] * len(items), "item_id": items}}
    return json.dumps(theirs).encode(), json.dumps({"inputs": {"user_id": [user], "item_id": items}}).encode()


def check(reply: bytes, values: FeatureValues, items: list[int]) -> None:
    """Raise SystemExit unless Feast's server answers what was written: one feature of each item."""
    answer = json.loads(reply)
    column = answer["metadata"]["feature_names"].index("i0")
    if answer["results"][column]["values"] != np.asarray(values.item["i0"])[items].tolist():
        raise SystemExit("Feast's server answers other features than were written")


def measure(ports: Mapping[str, int], values: FeatureValues, candidates: int, requests: int) -> dict[str, list[float]]:
    """Return milliseconds of requests by side, which take turns."""
    random = np.random.default_rng(candidates)
    feast = Side(ports["Feast"], "/get-online-features")
    freshet = Side(ports["Freshet"], "/v1/models/ranker:predict")
    try:
        for number in range(requests + requests // 10):
            if number == requests // 10:
                feast.times_ms.clear()
                freshet.times_ms.clear()
            user, items = int(random.integers(USERS)), random.choice(ITEMS, candidates, replace=False).tolist()
            theirs, ours = bodies(user, items)
            reply = feast.ask(theirs)
            if not number:
                check(reply, values, items)
            freshet.ask(ours)
        return {"Feast": feast.times_ms, "Freshet": freshet.times_ms}
    finally:
        feast.close()
        freshet.close()


def page(results: Mapping[str, Any]) -> str:
    lines = opening("Feast's server and Freshet over HTTP", __doc__ or "", results)
    lines += [f"Load average before the run: {results['machine']['load_average']}.", ""]
    rows = []
    for one in results["figures"]:
        p50, p99 = one["Feast"]["p50"] / one["Freshet"]["p50"], one["Feast"]["p99"] / one["Freshet"]["p99"]
        for side in ("Feast", "Freshet"):
            ratio = ["", ""] if side == "Feast" else [f"1/{p50:.0f}", f"1/{p99:.0f}"]
            rows.append([one["items"], side, f"{one[side]['p50']:.1f}", f"{one[side]['p99']:.1f}", *ratio])
    heads = ["items", "server", "p50 ms", "p99 ms", "p50 of Feast's", "p99 of Feast's"]
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest feast-server", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--items", default="100,500", help="items of a request")
    parser.add_argument("--out", default=str(RESULTS / "feast-server.md"))
    options = parser.parse_args()
    console, python, values = Console(), feast_python(), FeatureValues.draw()
    needs.program("redis-server")
    if not python:
        needs.refuse(NO_FEAST)
    made = origin("-C loadtest feast-server", "ARGS", sys.argv[1:])
    results: dict[str, Any] = {"machine": machine(), "origin": made, "figures": []}
    with tempfile.TemporaryDirectory(prefix="freshet-feast-") as temporary, redis_server() as redis_port:
        folder = Path(temporary)
        (folder / "feast").mkdir()
        fill_store(redis_port, values)
        repository = train(folder, values)
        (folder / "serve.toml").write_text(
            f'[online_stores.main]\nurl = "redis://127.0.0.1:{redis_port}/0"\ncache_ttl_s = 0\n'
        )
        ours = ["--workers", "1", "--config", str(folder / "serve.toml")]
        with (
            feast_server(python, folder / "feast", values, redis_port) as feast_port,
            serving(repository, folder / "serve.log", ours) as freshet,
        ):
            for candidates in map(int, options.items.split(",")):
                ports = {"Feast": feast_port, "Freshet": freshet.http_port}
                times = measure(ports, values, candidates, options.requests)
                shown = {n: {f"p{p}": float(np.percentile(t, p)) for p in (50, 99)} for n, t in times.items()}
                console.print(f"{candidates} items: {shown}")
                results["figures"].append({"items": candidates, **shown})
    Path(options.out).write_text(page(results))
    Path(options.out).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
