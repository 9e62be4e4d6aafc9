"""`make -C loadtest fuzz`: so many broken inputs through every parser. loadtest/results/fuzz.md has what was run.

A case fails when its parser raises anything but a FreshetError, or takes longer than SLOW_S. The first failures of a
target are written out, hex; a seed and a number of cases give the same inputs again.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from freshet_serving.processor.errors import FreshetError
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import targets

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
SLOW_S, HANG_S = 1.0, 60.0
SHOWN = 3


def main() -> int:
    """0 when every case was decoded or refused."""
    parser = argparse.ArgumentParser(prog="make -C loadtest fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=200_000, help="over all targets [200000]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--only", default="", help="targets whose names begin so [all]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    given = parser.parse_args()
    # A disk that has much to do is no fault of a parser.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="freshet-fuzz-", dir=memory) as folder:
        chosen = [t for t in targets(Path(folder)) if t.name.startswith(given.only)]
        shares = sum(t.share for t in chosen)
        failed = 0
        for target in chosen:
            cases = -(-given.cases * target.share // shares)
            record = run(target, cases, given.seed)
            keep(given.out, record)
            failed += len(record["failures"])
            print(
                f"{record['name']}: {cases} cases, {record['refused']} refused, {record['seconds']:.0f} s", flush=True
            )
            for failure in record["failures"]:
                print("  FAILED", failure, flush=True)
    return 1 if failed else 0


def run(target, cases, seed):
    """One target's cases; what came of them."""
    random = Random(f"{seed} {target.name}")
    refused, failures, slowest_s = 0, [], 0.0
    for data in target.corpus:
        target.run(data)
    # Starts anew with every block of cases: what hangs is shown with its stack, and ends the run.
    began_s = time.perf_counter()
    kinds = collections.Counter()
    for number in range(cases):
        if number % 10_000 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        data = mutate(random, target.corpus)
        start_s = time.perf_counter()
        try:
            target.run(data)
        except FreshetError:
            refused += 1
        except Exception as error:
            kinds[type(error).__name__] += 1
            if len(failures) < SHOWN:
                failures.append(f"{type(error).__name__}: {str(error)[:200]}: {data.hex()}")
        took_s = time.perf_counter() - start_s
        slowest_s = max(slowest_s, took_s)
        if took_s > SLOW_S and len(failures) < SHOWN:
            failures.append(f"{took_s:.1f} s: {data.hex()}")
    faulthandler.cancel_dump_traceback_later()
    return {
        "name": target.name,
        "cases": cases,
        "seed": seed,
        "refused": refused,
        "slowest_ms": slowest_s * 1e3,
        "seconds": time.perf_counter() - began_s,
        "failures": failures,
        "failed": sum(kinds.values()),
    }


def keep(out: Path, record) -> None:
    """Adds a record to fuzz.json and writes the page anew."""
    path = out / "fuzz.json"
    records = json.loads(path.read_text()) if path.exists() else []
    records = [r for r in records if (r["name"], r["seed"]) != (record["name"], record["seed"])] + [record]
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1) + "\n")
    lines = [
        "# Fuzzing",
        "",
        "Broken inputs through every parser (`make -C loadtest fuzz`): valid ones, changed in one to five places. A "
        "case passes",
        "when the parser decodes it, and the engine binds what it decoded, or refuses it with an error of its own,",
        f"each within {SLOW_S:g} s.",
        "",
        "| parser | cases | refused | failed | slowest, ms | seeds |",
        "|---|---:|---:|---:|---:|---|",
    ]
    total = failed = 0
    for name in dict.fromkeys(r["name"] for r in records):
        mine = [r for r in records if r["name"] == name]
        cases, bad = sum(r["cases"] for r in mine), sum(r["failed"] for r in mine)
        total, failed = total + cases, failed + bad
        refused = sum(r["refused"] for r in mine) / cases
        slowest = max(r["slowest_ms"] for r in mine)
        seeds = ", ".join(str(r["seed"]) for r in mine)
        lines.append(f"| {name} | {cases:,} | {refused:.0%} | {bad} | {slowest:.1f} | {seeds} |")
    lines += ["", f"{total:,} cases in all, {failed} failed.", ""]
    (out / "fuzz.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
