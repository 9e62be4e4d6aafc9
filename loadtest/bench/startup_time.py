"""`python -m loadtest.bench.startup_time FOLDER`: a start after many deltas that a snapshot holds, against a fresh
version.

Model `bench` twice in FOLDER: as it was published, and with a chain of deltas folded into a snapshot. A start is a
process of its own that opens the processor and answers one request; imports are not counted. Both in turn, many times,
swapping who goes first; ratios are pair by pair, of the time and of the processor's, which neighbours on the machine
change less. One start that reads every delta instead is told beside it. Prints JSON. What lies in FOLDER is used again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def start(repository: Path) -> tuple[float, float]:
    """(seconds, seconds of processor time) from opening the processor until its first answer."""
    import numpy as np

    from freshet_serving.models.bench import FLOATS, MODEL, TABLES
    from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig

    inputs: dict[str, Any] = {"ids": np.zeros((4, TABLES), np.int64), "floats": np.zeros((4, FLOATS), np.float32)}
    started_s, busy_s = time.perf_counter(), time.process_time()
    processor = Processor.initialize(ProcessorConfig(str(repository), sessions=1))
    processor.process(PredictRequest(MODEL, inputs))
    took = time.perf_counter() - started_s, time.process_time() - busy_s
    processor.close()
    return took


def in_its_own_process(repository: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "loadtest.bench.startup_time", str(repository), "--start"]
    took_s, busy_s = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return float(took_s), float(busy_s)


def prepare(folder: Path, rows: int, deltas: int, changed: int) -> dict[str, Path]:
    """The repositories, by what is in them: fresh, folded, unfolded."""
    from freshet_serving.models.bench import MODEL, bench_delta, write_model
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository
    from freshet_serving.processor.tables.compaction import compact

    found = {name: folder / name for name in ("fresh", "folded", "unfolded")}
    if found["unfolded"].exists():
        return found
    write_model(found["fresh"], rows)
    shutil.copytree(found["fresh"], found["folded"])
    version = Repository(found["folded"]).version(MODEL)
    change_log = ChangeLog.of(version)
    for step in range(1, deltas + 1):
        change_log.publish(bench_delta(version.manifest, step, changed))
    shutil.copytree(found["folded"], folder / "copying")
    compact(version, change_log)
    (folder / "copying").rename(found["unfolded"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", action="store_true", help="Only start what lies in FOLDER, once.")
    parser.add_argument("--rows", type=int, default=100_000, help="Of each of the 26 tables.")
    parser.add_argument("--deltas", type=int, default=5_000)
    parser.add_argument("--changed", type=int, default=1_000, help="Rows of a delta.")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    if asked.start:
        print(json.dumps(start(asked.folder)))
        return
    there = prepare(asked.folder, asked.rows, asked.deltas, asked.changed)
    times: dict[str, list[tuple[float, float]]] = {"fresh": [], "folded": []}
    for name in times:
        in_its_own_process(there[name])
    for n in range(asked.rounds):
        for name in ("fresh", "folded") if n % 2 else ("folded", "fresh"):
            times[name].append(in_its_own_process(there[name]))
    print(
        json.dumps(
            {
                "deltas": asked.deltas,
                "rounds": asked.rounds,
                "fresh_s": statistics.median(took for took, _ in times["fresh"]),
                "folded_s": statistics.median(took for took, _ in times["folded"]),
                "ratio": ratio(times, 0),
                "processor_time_ratio": ratio(times, 1),
                "unfolded_s": in_its_own_process(there["unfolded"])[0],
            },
            indent=1,
        )
    )


def ratio(times: dict[str, list[tuple[float, float]]], clock: int) -> dict[str, float]:
    """Folded by fresh: median and quartiles."""
    ratios = [folded[clock] / fresh[clock] for fresh, folded in zip(times["fresh"], times["folded"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"low": low, "median": middle, "high": high}


if __name__ == "__main__":
    main()
