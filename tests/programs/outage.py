"""`make -C loadtest outage`: the object store gone for a minute under load, twice; loadtest/results/outage.md.

Two replicas that follow deltas are asked without a pause. Then the store's port refuses, and in the second round it
takes connections and never answers. Counted: requests that failed, and seconds from the store's return until both
replicas serve a delta that is published then.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from loadtest.reports.report import machine, opening, origin, store, table
from tests.support.object_server import ObjectServer
from tests.support.object_stage import MODEL, Arrivals, PublishingProcess, ReplicaSet, upload_package
from tests.support.waiting import Background, until

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
FRESH_S = 2.0


class Load(Background):
    """Clients that ask one after another and count what is no 200."""

    def __init__(self, ports, clients=2):
        super().__init__(partial(self._ask, port) for port in ports * clients)
        self.answered, self.failed, self.slowest_s = 0, [], 0.0
        self._counting = threading.Lock()

    def _ask(self, port):
        body = json.dumps({"inputs": {"user": [1, 2], "tags": [["a"], ["b"]], "floats": [[0.0] * 4] * 2}}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not self.ended.wait(0.002):
            begun_s = time.monotonic()
            try:
                connection.request("POST", f"/v1/models/{MODEL}:predict", body)
                reply = connection.getresponse()
                reply.read()
                problem = "" if reply.status == 200 else str(reply.status)
            except (OSError, http.client.HTTPException) as error:
                problem = type(error).__name__
                connection.close()
            with self._counting:
                self.answered += not problem
                self.failed += [problem] * bool(problem)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        connection.close()


def outage(folder, seconds, hangs):
    """(requests answered, failed, the slowest in seconds, seconds until fresh)"""
    folder.mkdir()
    with ObjectServer() as objects:
        os.environ.update(objects.env)
        env = {**os.environ, "FRESHET_MIRROR": str(folder / "writer")}
        address = objects.address("outage")
        upload_package(objects, address, folder / "package")
        publisher = PublishingProcess(address, env, folder / "publish.log")
        try:
            with (
                ReplicaSet(address, env, folder, 2) as fleet,
                Arrivals(fleet.servers) as arrivals,
                Load([server.http_port for server in fleet.servers]) as load,
            ):
                for n in range(3):
                    step, _ = publisher.publish(1000, n)
                    until(lambda step=step: arrivals.everywhere_s(step))
                (objects.hang if hangs else objects.refuse)()
                time.sleep(seconds)
                (objects.wake if hangs else objects.serve)()
                back_s = time.monotonic()
                step, _ = publisher.publish(1000, 100)
                fresh_s = until(lambda: arrivals.everywhere_s(step)) - back_s
                assert len(set(fleet.digests())) == 1
        finally:
            publisher.close()
    return load.answered, len(load.failed), load.slowest_s, fresh_s


def page(results):
    heads = [f"for {results['seconds']:.0f} s its port", "answered", "failed", "slowest, ms", "fresh after, s"]
    rows = [
        [name, f"{r['answered']:,}", r["failed"], f"{r['slowest_s'] * 1e3:.0f}", f"{r['fresh_s']:.2f}"]
        for name, r in results["rounds"].items()
    ]
    lines = opening("The object store gone under load", __doc__ or "", results)
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="the object store gone under load")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    rounds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, hangs in (("refuses", False), ("never answers", True)):
            answered, failed, slowest_s, fresh_s = outage(Path(folder) / name, options.seconds, hangs)
            rounds[name] = {"answered": answered, "failed": failed, "slowest_s": slowest_s, "fresh_s": fresh_s}
            print(name, rounds[name], flush=True)
    results = {"machine": machine(), "origin": origin("-C loadtest outage", "ARGS", sys.argv[1:])}
    results |= {"seconds": options.seconds, "rounds": rounds}
    store(options.out, "outage", results, page(results))
    return int(any(each["failed"] or each["fresh_s"] > FRESH_S for each in rounds.values()))


if __name__ == "__main__":
    sys.exit(main())
