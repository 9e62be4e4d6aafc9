"""Starts after many deltas that a snapshot holds, against those of a fresh version; for the scenario `chain`.

Model `bench` lies in a folder as it was published, with a chain of deltas folded into a snapshot, and with the chain
alone. A start, `python -m loadtest.bench.startup_time REPOSITORY`, is a process of its own that opens the processor and
answers one request; imports are not counted. It prints its time. What lies in the folder is used again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


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


def in_its_own_process(repository: Path) -> float:
    command = [sys.executable, "-m", "loadtest.bench.startup_time", str(repository)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


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


if __name__ == "__main__":
    print(start(Path(sys.argv[1])))
