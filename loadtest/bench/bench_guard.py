"""`make -C loadtest guard`: what the guard holds of good and bad deltas, and its costs; loadtest/results/guard.md.

Six good streams are trained as `freshet train` does it, and followed in process as a server follows them, a delta a
look, while rows are asked for, scored and labelled: 2,000 deltas each. A good delta that is held counts once, with the
deltas until it was released automatically; one that a person would have to release after 20 deltas is *by hand*. A
rollback of good deltas counts as well. Behind 60 good deltas each poison is tried (loadtest.bench.guard_poison); what
is held, rolled back or served is defined in loadtest.bench.guard_trial.

Costs are of single deltas of 1,000 rows for the benchmark's DeepFM, five with the guard and five without in turn, and
of a request of one row through the engine: looked at for the sample, or not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.models.bench import bench_delta, write_model
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.guard.guard import guard_of
from freshet_serving.processor.generation import OFF, ON
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.watching import DeltaBounds
from loadtest.bench.guard_streams import STREAMS, train_stream
from loadtest.bench.guard_trial import HELD, NOT_TRIED, ROLLED_BACK, try_stream
from loadtest.load.sides import Ratio, ratio
from loadtest.reports.report import machine, opening, origin, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
MEMORY = Path("/dev/shm")
"""Where it is there: thousands of small files are written, and the disk is not what is measured."""
QUICK_DELTAS = 150
BLOCK = 5
"""Deltas in a row with the guard, and without."""


def costs(folder: Path, rounds: int, rows: int, say: Callable[[str], None]) -> Any:
    """Milliseconds and processor time of deltas with the guard and without, and of requests."""
    write_model(folder, rows)
    config = ProcessorConfig(str(folder), sessions=1, compute="inline", policies={})
    sides: dict[str, list[tuple[float, float]]] = {ON: [], OFF: []}
    requests: dict[str, list[float]] = {"looked at": [], "not": []}
    random = np.random.default_rng(0)
    with Processor.initialize(config) as processor:
        model = processor.host.catalogue["bench"]
        manifest = model.pick().manifest

        def inputs(count: int) -> Any:
            ids = random.integers(0, rows, (count, 26))
            return {"ids": ids, "floats": random.standard_normal((count, 13)).astype(np.float32)}

        for _ in range(40):
            processor.process(PredictRequest("bench", inputs(8)))
        path = folder / "next"
        for step in range(1, (2 * rounds // (BLOCK - 1) + 3) * BLOCK):
            mode = (ON, OFF)[step // BLOCK % 2]
            model.policy = ModelPolicy(delta_guard=DeltaBounds(mode=mode))
            write_delta(path, bench_delta(manifest, step, 1000))
            data = path.read_bytes()
            began_s, cpu_s = time.perf_counter(), time.process_time()
            model.apply_bytes(data)
            # The first of a block scores both states: what it stands on was not looked at.
            if step >= 2 * BLOCK and step % BLOCK:
                sides[mode].append(((time.perf_counter() - began_s) * 1e3, (time.process_time() - cpu_s) * 1e3))
        replica = processor.predictor.replica("bench")
        one = PredictRequest("bench", inputs(1))
        for n in range(2 * rounds):
            looked = n % 2 == 0
            # A sample that is full is what nearly every request meets; one that is never full takes every request.
            replica.sample.wanted = looked
            replica.sample._most = 1 << 60
            began_s = time.process_time()
            for _ in range(200):
                processor.process(one)
            requests["looked at" if looked else "not"].append((time.process_time() - began_s) / 200 * 1e6)
            replica.sample._gathered.clear()
        preview = guard_of(model).preview_s
    found = {
        "delta_ms": {mode: [wall for wall, _ in each] for mode, each in sides.items()},
        "delta_cpu_ms": {mode: [cpu for _, cpu in each] for mode, each in sides.items()},
        "request_cpu_us": requests,
        "preview_ms": preview.total / max(1, sum(preview.counts)) * 1e3,
    }
    for what, sides_of in found.items():
        if isinstance(sides_of, dict):
            say(f"{what}: " + ", ".join(f"{side} {statistics.median(each):.2f}" for side, each in sides_of.items()))
    return found


def page(document: Any) -> str:
    """Write guard.md."""
    lines = [*opening("Guard", __doc__ or "", document)]
    before = document.get("before", {})
    rows = []
    for name, found in document["streams"].items():
        now, old = found["good"], before.get(name, {}).get("good")
        fewer = f"of {old['deltas']:,} " if old and old["deltas"] != now["deltas"] else ""
        rows.append([name, f"{now['deltas']:,}", fewer + _good(old), _good(now), str(len(found["trainer_held"]))])
    heads = ["stream", "good deltas", "the former guard", "held, of them rolled back", "lines of the trainer's guard"]
    lines += ["## Good streams", "", table(heads, rows), ""]
    for name, found in document["streams"].items():
        reasons = [f"at delta {number}: {reason}" for number, reason in found["good"]["held"]]
        lines += [f"- {name}: {reason}" for reason in (reasons + found["good"]["taken_back"])[:5]]
    lines += ["", "## Poison", ""]
    rows = []
    for name, found in document["streams"].items():
        for poison, outcome in found["poisons"].items():
            old = before.get(name, {}).get("poisons", {}).get(poison)
            rows.append([name, poison, _poison(old), _poison(outcome), _damage(outcome), outcome["reason"][:110]])
    heads = ["stream", "poison", "the former guard", "this one", "mean score, rank correlation", "why"]
    lines += [table(heads, rows), ""]
    missed = sum(_missed(o) for found in document["streams"].values() for o in found["poisons"].values())
    lines += [f"Neither held nor rolled back: {missed} of {len(rows)}.", ""]
    cost = document.get("costs")
    if cost:
        rows = []
        for what, key, (some, others) in (
            ("a delta of 1,000 rows, ms", "delta_ms", (ON, OFF)),
            ("its processor time, ms", "delta_cpu_ms", (ON, OFF)),
            ("processor time of a request that is added to the sample, us", "request_cpu_us", ("looked at", "not")),
        ):
            with_, without = cost[key][some], cost[key][others]
            count = min(len(with_), len(without))
            with_, without = with_[:count], without[:count]
            rows.append(
                [
                    what,
                    f"{statistics.median(with_):.2f}",
                    f"{statistics.median(without):.2f}",
                    _spelled(ratio(with_, without)),
                ]
            )
        lines += ["## Costs", ""]
        if "origin" in cost:
            lines += [f"{cost['origin']['date']}, `{cost['origin']['command']}`.", ""]
        lines += [table(["what", "with the guard", "without", "ratio"], rows), ""]
    return "\n".join(lines)


def _good(found: Any) -> str:
    """`3 held (released after 1, 2 deltas; 1 by hand), 1 back`."""
    if found is None:
        return ""
    released = [str(waited) for waited in found["waited"] if waited is not None]
    by_hand = len(found["waited"]) - len(released)
    parts = [f"released after {', '.join(released[:8])}"] * bool(released) + [f"{by_hand} by hand"] * bool(by_hand)
    held = f"{len(found['held'])} held" + f" ({'; '.join(parts)})" * bool(parts)
    return held + f", {len(found['taken_back'])} rolled back" * bool(found["taken_back"])


def _poison(found: Any) -> str:
    if found is None:
        return ""
    deltas = f" after {found['deltas']} deltas" * bool(found["deltas"])
    seconds = f" in {found['seconds']} s" if found["outcome"] == ROLLED_BACK else ""
    return f"{found['outcome']}{deltas}{seconds}"


def _damage(found: Any) -> str:
    if found["outcome"] in (HELD, NOT_TRIED) and not found["deltas"]:
        return ""
    return f"{found['moved']:+.0%}, {found['correlation']:.2f}"


def _missed(found: Any) -> bool:
    return str(found["outcome"]) not in (HELD, ROLLED_BACK, NOT_TRIED)


def _spelled(found: Ratio) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest guard", description=__doc__)
    parser.add_argument("--deltas", type=int, default=2000, help="of each stream")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DELTAS} deltas of each stream, no costs")
    parser.add_argument(
        "--only", default="", help="streams whose names hold this, the others stay as they were; no costs"
    )
    parser.add_argument("--costs", action="store_true", help="costs alone, the streams stay as they were")
    parser.add_argument("--keep", type=Path, help="folder where trained streams stay, to be tried again")
    parser.add_argument("--before", type=Path, help="a guard.json of a former guard, to compare with")
    parser.add_argument("--rounds", type=int, default=100, help="of deltas whose cost is measured")
    parser.add_argument("--rows", type=int, default=100_000, help="of each of the benchmark's tables")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m and criteo; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, kept = Console(stderr=True, highlight=False, soft_wrap=True), arguments.out / "guard.json"
    here = {"machine": machine(), "origin": origin("-C loadtest guard", "ARGS", sys.argv[1:])}
    last = json.loads(kept.read_bytes()) if kept.exists() else {}
    document: dict[str, Any] = {key: last.get(key, here[key]) if arguments.costs else here[key] for key in here}
    document["streams"] = last["streams"] if (arguments.only or arguments.costs) and last else {}
    document["before"] = last.get("before", {})
    if arguments.only and "costs" in last:
        document["costs"] = last["costs"]
    if arguments.before:
        document["before"] = json.loads(arguments.before.read_bytes())["streams"]
    deltas = QUICK_DELTAS if arguments.quick else arguments.deltas
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as work:
        for n, stream in enumerate(STREAMS):
            if arguments.costs or arguments.only not in stream.name:
                continue
            if stream.data and not (arguments.data / stream.data).exists():
                console.print(f"{stream.name}: not at --data")
                continue
            console.print(f"[bold]{stream.name}[/bold]")
            folder = (arguments.keep or Path(work)) / str(n)
            trained = train_stream(stream, arguments.data, folder, deltas)
            document["streams"][stream.name] = try_stream(trained, Path(work), console.print)
            kept.write_text(json.dumps(document, indent=1) + "\n")
            if not arguments.keep:
                shutil.rmtree(folder)
        if arguments.costs or not (arguments.quick or arguments.only):
            document["costs"] = here | costs(Path(work) / "bench", arguments.rounds, arguments.rows, console.print)
    kept.write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "guard.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
