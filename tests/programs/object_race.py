"""`make -C loadtest objects`: from published to served through an S3 server; loadtest/results/objects.md.

The server is moto, a Python program of one process on the same machine and the same cores as the replicas: what is
measured is the engine's way through a store, and more of moto than of any store that people run. A delta is published
when its record is in the store; it is served when a prediction of each replica, asked for every few milliseconds, names
its generation or a later one. Requests are those that replicas say in their metrics to have made of the store.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from loadtest.reports.report import machine, opening, origin, store, table
from tests.support.object_server import ObjectServer
from tests.support.object_stage import Arrivals, PublishingProcess, ReplicaSet, upload_package
from tests.support.waiting import until

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
BOUND_S, QUANTILES = 1.0, (50, 90, 99, 100)
FEW_CORES = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def race(folder, replicas, deltas, rows, every_s, shared=False):
    """Seconds from published to served by all replicas, a delta each; requests a second that one of them made."""
    folder.mkdir()
    with ObjectServer() as objects:
        os.environ.update(objects.env)
        env = {**os.environ, **FEW_CORES, "FRESHET_MIRROR": str(folder / "writer")}
        address = objects.address("race")
        upload_package(objects, address, folder / "package")
        publisher = PublishingProcess(address, env, folder / "publish.log")
        took = []
        try:
            # Sixteen threads that ask are load of their own: as often as the figure needs, and no oftener.
            with (
                ReplicaSet(address, env, folder, replicas, shared) as fleet,
                Arrivals(fleet.servers, 0.005 if replicas < 4 else 0.03) as arrivals,
            ):
                asked, since_s = [requests_of(server) for server in fleet.servers], time.monotonic()
                for n in range(deltas):
                    begun_s = time.monotonic()
                    step, at_s = publisher.publish(rows, n)
                    took.append(until(lambda step=step: arrivals.everywhere_s(step)) - at_s)
                    print(f"step {step}: {took[-1] * 1e3:.0f} ms to {replicas} replicas", flush=True)
                    time.sleep(max(0.0, every_s - (time.monotonic() - begun_s)))
                requests = sum(requests_of(server) for server in fleet.servers) - sum(asked)
                rate = requests / replicas / (time.monotonic() - since_s)
                assert len(set(fleet.digests())) == 1
        finally:
            publisher.close()
    return took, rate


def requests_of(server):
    """How many requests of the store a replica counts."""
    lines = server.get("/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("freshet_store_requests_total"))


def percentiles(took):
    return {f"p{q}_ms": round(float(np.percentile(took, q)) * 1e3, 1) for q in QUANTILES}


def page(results):
    heads = ["", "deltas", "rows a delta", "p50, ms", "p90, ms", "p99, ms", "most, ms", "requests a second and replica"]
    rows = [
        [name, race["deltas"], f"{race['rows']:,}", *(f"{race[f'p{q}_ms']:.0f}" for q in QUANTILES), race["requests"]]
        for name, race in results["races"].items()
    ]
    lines = opening("From published to served, through an S3 server", __doc__ or "", results)
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="published to served, through an S3 server")
    parser.add_argument("--deltas", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from a delta to the next")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    rounds = {
        "two replicas": (2, False),
        f"{options.replicas} replicas, a mirror each": (options.replicas, False),
        f"{options.replicas} replicas, one mirror": (options.replicas, True),
    }
    races = {}
    with tempfile.TemporaryDirectory() as folder:
        for n, (name, (replicas, shared)) in enumerate(rounds.items()):
            took, rate = race(Path(folder) / str(n), replicas, options.deltas, options.rows, options.every, shared)
            races[name] = percentiles(took) | {"deltas": len(took), "rows": options.rows, "requests": round(rate, 1)}
            print(name, races[name], flush=True)
    results = {"machine": machine(), "origin": origin("-C loadtest objects", "ARGS", sys.argv[1:]), "races": races}
    store(options.out, "objects", results, page(results))
    return int(any(race["p99_ms"] >= BOUND_S * 1e3 for race in races.values()))


if __name__ == "__main__":
    sys.exit(main())
