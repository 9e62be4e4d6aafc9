"""Processor time of the engine's requests, in whichever checkout is imported: run by its path, never as a module.

`python engine_time.py REPOSITORY CANDIDATES TABLE_ROWS SECONDS`: for every line on stdin computes the benchmark's
requests for so long, inline in this thread, and prints the microseconds of processor time that each took. It uses
nothing but what processor.engine promises to users, so that it runs in checkouts of other days.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from freshet_serving import PredictRequest, Processor, ProcessorConfig

REQUESTS, IDS, FLOATS = 32, 26, 13


def main(repository: str, candidates: int, table_rows: int, seconds: float) -> None:
    random = np.random.default_rng(candidates)
    requests = [
        PredictRequest(
            "bench",
            {
                "ids": random.integers(0, table_rows, (candidates, IDS)),
                "floats": random.random((candidates, FLOATS), np.float32),
            },
        )
        for _ in range(REQUESTS)
    ]
    with Processor.initialize(ProcessorConfig(repository, sessions=1, compute="inline")) as processor:
        for _ in sys.stdin:
            computed, started_s, end_s = 0, time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end_s:
                processor.batch_process(requests)
                computed += REQUESTS
            print((time.process_time() - started_s) / computed * 1e6, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
