"""What a long chain costs: a start from its snapshot, and watching it, each against a short one.

A start after 5,000 deltas that a snapshot holds, against one of the version as it was published: from opening the
processor in a process of its own until its first answer, imports not counted. Then two servers, idle but for a delta
every turn, one on a folder of 5 deltas and one on 50,000: processor time of a turn.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.bench.harness import Bench, Result
from loadtest.load.launch import RunningServer, serving
from loadtest.load.processes import cpu_s, tree
from loadtest.load.sides import interval, values

DELTAS, CHANGED = 5_000, 1_000
FEW, MANY = 5, 50_000
TURN_S = 5.0
GOAL = 1.2
START, BUSY = "s to the first answer", "ms of processor time a second"


def run(bench: Bench) -> Result:
    """Starts, then watching; a quick run takes a twentieth of the deltas."""
    part = 20 if bench.quick else 1
    result = Result("chain", "A long chain / a short one: starts, and watching")
    bench.say(f"{DELTAS // part} deltas, folded")
    there = prepare(bench.work / "starting", bench.table_rows, DELTAS // part, CHANGED)
    turns = bench.turns({name: partial(_start, there[name]) for name in ("folded", "fresh")})
    folded, fresh = (values(turns, name, START) for name in turns)
    result.row(f"start after {DELTAS // part:,} deltas", interval(folded, fresh), ("<=", GOAL))
    result.fact("start that reads every delta", f"{_start(there['unfolded'])[START]:.1f} s")

    bench.say(f"{MANY // part} deltas to watch")
    with contextlib.ExitStack() as stack:
        watched = {}
        for name, deltas in (("many", MANY // part), ("few", FEW)):
            folder = prepare(bench.work / name, 1_000, deltas, 1)["folded"]
            server = stack.enter_context(serving(folder, bench.work / f"{name}.log", ["--workers", "1"]))
            watched[name] = partial(_watch, server, _publisher(folder))
        turns = bench.turns(watched)
    many, few = (values(turns, name, BUSY) for name in turns)
    result.row(f"watching {MANY // part:,} deltas", interval(many, few), ("<=", GOAL))
    shares = [f"{statistics.median(busy) / 10:.2f} %" for busy in (many, few)]
    result.fact("watching, of a core", " / ".join(shares))
    result.notes.append("From, to: the 95 % interval of the median over rounds, by order statistics.")
    return result


def _start(repository: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "loadtest.bench.scenarios.chain", str(repository)]
    return {START: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)}


def start(repository: Path) -> float:
    """Seconds from opening the processor until its first answer."""
    import numpy as np

    from freshet_serving.models.bench import FLOATS, MODEL, TABLES
    from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig

    inputs: dict[str, Any] = {"ids": np.zeros((4, TABLES), np.int64), "floats": np.zeros((4, FLOATS), np.float32)}
    started_s = time.perf_counter()
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        processor.process(PredictRequest(MODEL, inputs))
        return time.perf_counter() - started_s


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


def _publisher(repository: Path) -> Callable[[], None]:
    """Publishes one more delta at each call."""
    from freshet_serving.models.bench import MODEL, bench_delta
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository

    version = Repository(repository).version(MODEL)
    change_log = ChangeLog.of(version)

    def publish() -> None:
        history = change_log.history
        change_log.publish(bench_delta(version.root_manifest, history.top + 1, 1, history.head.step))

    return publish


def _watch(server: RunningServer, publish: Callable[[], None]) -> dict[str, float]:
    before_s = cpu_s(tree(server.pid))
    publish()
    time.sleep(TURN_S)
    return {BUSY: (cpu_s(tree(server.pid)) - before_s) / TURN_S * 1e3}


if __name__ == "__main__":
    print(start(Path(sys.argv[1])))
