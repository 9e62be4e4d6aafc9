"""Processor time of the engine's requests, in whichever checkout is imported: run by its path, never as a module.

`python engine_time.py REPOSITORY MODEL CANDIDATES TABLE_ROWS SECONDS`: for every line on stdin computes a model's
requests for so long, inline in this thread, and prints the microseconds of processor time that each took. The model is
the benchmark's, `bench`, or one of loadtest.bench.bench_useronce, whose requests have one user. It uses nothing but
what processor.engine promises to users, so that it runs in checkouts of other days.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from freshet_serving import PredictRequest, Processor, ProcessorConfig

REQUESTS, IDS, FLOATS = 32, 26, 13
OWN = {"ids": IDS, "floats": FLOATS}
OF_USER = {"user_ids": 13, "user_floats": 6}
OF_ITEM = {"item_ids": 13, "item_floats": 7}


def main(repository: str, model: str, candidates: int, table_rows: int, seconds: float) -> None:
    random = np.random.default_rng(candidates)
    columns = OWN if model == "bench" else OF_USER | OF_ITEM

    def column(name: str, count: int) -> np.ndarray:
        shape = (1 if name in OF_USER else candidates, count)
        return random.integers(0, table_rows, shape) if name.endswith("ids") else random.random(shape, np.float32)

    requests = [
        PredictRequest(model, {name: column(name, count) for name, count in columns.items()}) for _ in range(REQUESTS)
    ]
    with Processor.initialize(ProcessorConfig(repository, sessions=1, compute="inline")) as processor:
        for _ in sys.stdin:
            computed, started_s, end_s = 0, time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end_s:
                processor.batch_process(requests)
                computed += REQUESTS
            print((time.process_time() - started_s) / computed * 1e6, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
