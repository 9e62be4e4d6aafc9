"""Computing without a server, in processes of its own: the bare loop, and the engine called as a library.

`python -m loadtest.bench.compute KIND REPOSITORY CANDIDATES TABLE_ROWS THREADS` loads the model, prints `ready`, and
for every line of seconds on stdin computes that long and prints how many requests it made in how many seconds.
ComputeProcesses starts any number of such processes and measures them together.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import Matrix
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.versions.control import READERS
from loadtest.load.launch import LineProcess
from loadtest.load.payload import bench_count, bench_inputs

ROOT = Path(__file__).parents[2]
IN_FLIGHT = 32


class ComputeProcesses:
    """Processes that compute the benchmark's requests when asked to. kind: bare | engine. threads: of each process,
    loops or sessions."""

    def __init__(
        self, kind: str, repository: Path, candidates: int, table_rows: int, threads: int, processes: int = 1
    ) -> None:
        words = map(str, (kind, repository, candidates, table_rows, threads))
        command = [sys.executable, "-m", "loadtest.bench.compute", *words]
        self._processes = [LineProcess(command, "computing without a server", cwd=ROOT) for _ in range(processes)]

    def measure(self, seconds: float) -> float:
        """Requests a second of all processes together."""
        for process in self._processes:
            process.write(str(seconds))
        found = [json.loads(process.read()) for process in self._processes]
        return sum(float(each["requests"] / each["seconds"]) for each in found)

    def __enter__(self) -> ComputeProcesses:
        """Waits until all have loaded the model; raises CommandFailed."""
        for process in self._processes:
            process.read()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()


class BareLoop:
    """The buffers of one thread, and the batches that it computes again and again."""

    def __init__(self, processor: Processor, requests: list[PredictRequest]) -> None:
        self._version = processor.predictor.replica(requests[0].model)
        self._state = self._version.pin(READERS - 1)
        self._executables = self._state.executables[self._version.graphs.undivided.name]
        self.requests = len(requests)
        bound = [self._version.plan.bind_inputs(r.inputs) for r in requests]
        rows = bound[0].rows
        buckets = sorted(self._executables)
        a_batch = max(1, buckets[-1] // rows)
        self._counts = np.zeros((len(self._version.manifest.tables), 2), np.int64)
        self._plans = []
        for batch in (bound[i : i + a_batch] for i in range(0, len(bound), a_batch)):
            total = len(batch) * rows
            bucket = next((b for b in buckets if b >= total), 0)
            if bucket:
                spans = np.array([[0, rows]] * len(batch), np.int64)
                self._plans.append((batch, spans, *self._bind(bucket)))
                continue
            # A request of more rows than the largest bucket: one piece after another.
            for first in range(0, rows, buckets[-1]):
                piece = min(buckets[-1], rows - first)
                spans = np.array([[first, piece]], np.int64)
                self._plans.append((batch, spans, *self._bind(next(b for b in buckets if b >= piece))))

    def run(self) -> None:
        for batch, spans, x, run in self._plans:
            self._version.plan.fill(BatchView(self._state.tables, self._state.epoch, batch, spans, self._counts), x)
            run()

    def _bind(self, bucket: int) -> tuple[Matrix, Callable[[], None]]:
        x = np.zeros((bucket, self._version.plan.width), np.float32)
        return x, self._executables[bucket].bind_buffers({"x": x}, {"score": np.empty((bucket, 1), np.float32)})


def _bare(processor: Processor, requests: list[PredictRequest], threads: int) -> Callable[[float], int]:
    loops = [BareLoop(processor, requests) for _ in range(threads)]

    def run(end_s: float) -> int:
        made = [0] * threads

        def work(number: int) -> None:
            loop = loops[number]
            while time.perf_counter() < end_s:
                loop.run()
                made[number] += loop.requests

        workers = [threading.Thread(target=work, args=(n,)) for n in range(1, threads)]
        for worker in workers:
            worker.start()
        work(0)
        for worker in workers:
            worker.join()
        return sum(made)

    return run


def _engine(processor: Processor, requests: list[PredictRequest], threads: int) -> Callable[[float], int]:
    """Requests kept in flight by the replies themselves: no thread waits, as none does in the server."""

    def run(end_s: float) -> int:
        made, left, idle = [0], [IN_FLIGHT], threading.Event()
        lock = threading.Lock()
        failed: list[Exception] = []

        def done(number: int, reply: Any) -> None:
            if isinstance(reply, Exception):
                failed.append(reply)
                idle.set()
                return
            with lock:
                made[0] += 1
            if time.perf_counter() < end_s:
                submit(number + IN_FLIGHT)
                return
            with lock:
                left[0] -= 1
                if not left[0]:
                    idle.set()

        def submit(number: int) -> None:
            processor.predictor.submit(requests[number % len(requests)], lambda reply: done(number, reply))

        for number in range(IN_FLIGHT):
            submit(number)
        idle.wait()
        if failed:
            raise failed[0]
        return made[0]

    return run


def main(kind: str, repository: str, candidates: int, table_rows: int, threads: int) -> None:
    requests = [PredictRequest("bench", i) for i in bench_inputs(candidates, bench_count(candidates), table_rows)]
    with Processor.initialize(ProcessorConfig(repository, sessions=threads)) as processor:
        run = {"bare": _bare, "engine": _engine}[kind](processor, requests, threads)
        run(time.perf_counter() + 0.2)
        print("ready", flush=True)
        for line in sys.stdin:
            started_s = time.perf_counter()
            made = run(started_s + float(line))
            print(json.dumps({"requests": made, "seconds": time.perf_counter() - started_s}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
