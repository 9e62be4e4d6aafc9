"""Computing without a server, in processes of its own: the bare loop, and the engine called as a library.

`python -m loadtest.bench.compute KIND --repository R ...` loads the model, prints `ready`, and for every line of
seconds on stdin computes that long and prints how many requests it made in how many seconds. Computing starts any
number of such processes and measures them together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from loadtest.bench.bare import BareLoop
from loadtest.load.launch import CommandFailed
from loadtest.load.payload import bench_count, bench_inputs

ROOT = Path(__file__).parents[2]
KINDS = ("bare", "engine")
IN_FLIGHT = 32


class ComputeProcesses:
    """Processes that compute the benchmark's requests when asked to. kind: bare | engine. threads: of each process,
    loops or sessions."""

    def __init__(
        self, kind: str, repository: Path, candidates: int, table_rows: int, threads: int, processes: int = 1
    ) -> None:
        command = [sys.executable, "-m", "loadtest.bench.compute", kind, "--repository", str(repository)]
        command += ["--candidates", str(candidates), "--table-rows", str(table_rows), "--threads", str(threads)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for _ in range(processes)
        ]

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._processes]

    def wait(self) -> None:
        """Waits until all have loaded the model; raises CommandFailed."""
        for process in self._processes:
            self._line(process)

    def measure(self, seconds: float) -> float:
        """Requests a second of all processes together."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return sum(found["requests"] / found["seconds"] for found in map(self._line, self._processes))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CommandFailed("computing without a server: the process ended")
        found: dict[str, float] = json.loads(line)
        return found


@contextlib.contextmanager
def computing(*arguments: Any, **options: Any) -> Iterator[ComputeProcesses]:
    """A Computing that is ready; ended with the block."""
    processes = ComputeProcesses(*arguments, **options)
    try:
        processes.wait()
        yield processes
    finally:
        processes.close()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--candidates", type=int, required=True)
    parser.add_argument("--table-rows", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    inputs = bench_inputs(arguments.candidates, bench_count(arguments.candidates), arguments.table_rows)
    requests = [PredictRequest("bench", i) for i in inputs]
    config = ProcessorConfig(arguments.repository, sessions=arguments.threads)
    with Processor.initialize(config) as processor:
        run = {"bare": _bare, "engine": _engine}[arguments.kind](processor, requests, arguments.threads)
        run(time.perf_counter() + 0.2)
        print("{}", flush=True)
        for line in sys.stdin:
            started_s = time.perf_counter()
            made = run(started_s + float(line))
            print(json.dumps({"requests": made, "seconds": time.perf_counter() - started_s}), flush=True)


if __name__ == "__main__":
    main()
