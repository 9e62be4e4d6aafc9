"""`make -C loadtest slow-store`: a live server whose Redis answers after a second; loadtest/results/slow-store.md.

`freshet serve` in one process and with two workers. Requests of a user's id and 100 item ids, whose features of the
user are in Redis, take turns with the same requests that send every feature, which ask no store: their time beside it
says what the machine adds. First Redis answers at once, then a proxy holds each of its answers back for a second. The
cache is off, so every request asks the store, unless its circuit breaker leaves it alone. No request may fail, and the
99th percentile of those that ask a held store may be 20 ms above timeout_ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.bench import needs
from loadtest.bench.bench_feast_server import Side
from loadtest.bench.bench_features import RESULTS, FeatureValues, fill_store, requests, train
from loadtest.bench.store_outages import DELAY_S, delayed, redis_server
from loadtest.load.launch import serving
from loadtest.reports.report import machine, opening, origin, table

TIMEOUT_MS, ROOM_MS, CANDIDATES = 20, 20, 100
PATH = "/v1/models/ranker:predict"
LAYOUTS = {"one process": "1", "two workers": "2"}


def ask(port: int, values: FeatureValues, count: int) -> dict[str, list[float]]:
    """Return milliseconds of requests by kind, which take turns; raises SystemExit if one fails."""
    sides = {"ids": Side(port, PATH), "all sent": Side(port, PATH)}
    bodies = {kind: requests(values, CANDIDATES, kind == "all sent", False).bodies for kind in sides}
    try:
        for number in range(count):
            for kind, side in sides.items():
                side.ask(bodies[kind][number % len(bodies[kind])])
        return {kind: side.times_ms for kind, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()


def summary(times_ms: list[float]) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(times_ms, p)) for p in (50, 99)} | {"most": max(times_ms)}


def page(results: Mapping[str, Any]) -> str:
    lines = opening("A store that answers after a second", __doc__ or "", results)
    lines += [f"timeout_ms is {TIMEOUT_MS}. Load average before the run: {results['machine']['load_average']}.", ""]
    rows = []
    for one in results["figures"]:
        held = f"{TIMEOUT_MS + ROOM_MS}" if one["held"] else ""
        for kind in ("ids", "all sent"):
            found, goal = one[kind], held if kind == "ids" else ""
            rows.append(
                [one["layout"], "held for 1 s" if one["held"] else "well", kind, one["requests"],
                 f"{found['p50']:.1f}", f"**{found['p99']:.1f}**", f"{found['most']:.1f}", goal]
            )  # fmt: skip
    heads = ["layout", "Redis", "requests of", "requests", "p50, ms", "p99, ms", "slowest, ms", "aim of p99"]
    return "\n".join([*lines, table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest slow-store", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="of each kind, layout and state of the store")
    parser.add_argument("--out", default=str(RESULTS / "slow-store.md"))
    options = parser.parse_args()
    console, values, delay_s = Console(), FeatureValues.draw(), 0.0
    needs.program("redis-server")
    made = origin("-C loadtest slow-store", "ARGS", sys.argv[1:])
    results: dict[str, Any] = {"machine": machine(), "origin": made, "figures": []}
    with (
        tempfile.TemporaryDirectory(prefix="freshet-slow-store-") as temporary,
        redis_server() as redis_port,
        delayed(redis_port, lambda: delay_s) as port,
    ):
        folder = Path(temporary)
        fill_store(redis_port, values)
        repository = train(folder, values, TIMEOUT_MS)
        (folder / "serve.toml").write_text(
            f'[online_stores.main]\nurl = "redis://127.0.0.1:{port}/0"\ncache_ttl_s = 0\n'
        )
        for layout, workers in LAYOUTS.items():
            arguments = ["--workers", workers, "--config", str(folder / "serve.toml")]
            delay_s = 0.0
            with serving(repository, folder / "serve.log", arguments) as server:
                ask(server.http_port, values, options.requests // 10)
                for held in (False, True):
                    delay_s = DELAY_S if held else 0.0
                    found = {
                        kind: summary(times) for kind, times in ask(server.http_port, values, options.requests).items()
                    }
                    console.print(f"{layout}, {'held' if held else 'well'}: {found}")
                    results["figures"].append({"layout": layout, "held": held, "requests": options.requests, **found})
    Path(options.out).write_text(page(results))
    Path(options.out).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
