"""Starts after many deltas that a snapshot holds, against those of a fresh version; for the scenario `chain`.

Model `bench` lies in a folder as it was published, with a chain of deltas folded into a snapshot, and with the chain
alone. A start, `python -m loadtest.bench.startup_time REPOSITORY`, is a process of its own that opens the processor and
answers one request; imports are not counted. It prints its time and that of the processor, which neighbours on the
machine change less. What lies in the folder is used again.
"""

from __future__ import annotations

import json
import shutil
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
    command = [sys.executable, "-m", "loadtest.bench.startup_time", str(repository)]
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
    print(json.dumps(start(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
