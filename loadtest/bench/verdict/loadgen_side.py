"""MLCommons' LoadGen as the client: it says when queries are due, and judges what came of them.

A process of its own: reads a LoadGenJob as JSON from stdin, prints a LoadGenVerdict. LoadGen issues a query by handing
its number over; senders, one thread and one connection each, send the bytes that were prepared for it and tell LoadGen
when the reply is there and holds a score for each pair. Nothing is batched, prepared or kept from one query to the next
on the way. What LoadGen itself and the senders take is part of the latency that it judges.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

HOST = "127.0.0.1"
SUMMARY = "mlperf_log_summary.txt"
# Nothing is in them in a run that only measures.
EMPTY = ("mlperf_log_accuracy.json", "mlperf_log_trace.json")
INFER = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S = 60.0
RATES = {"Server": "Completed samples per second", "Offline": "Samples per second"}


@dataclass(frozen=True, slots=True)
class LoadGenJob:
    """A run. scenario: Server | Offline. protocol: http | grpc | none, which answers at once. folder: of the queries.
    rate: queries a second that are due, or expected. logs: where LoadGen's own logs are written."""

    scenario: str
    protocol: str
    port: int
    folder: str
    rate: float
    seconds: float
    logs: str
    senders: int = 32
    latency_s: float = 0.06
    percentile: float = 0.99


@dataclass(frozen=True, slots=True)
class LoadGenVerdict:
    """What LoadGen said. rate: queries a second that were answered. p50_ms, p99_ms: in a Server run, else 0. cores: of
    this process. failed: queries that had no good reply, each told to nobody but here: a run with any is not VALID."""

    valid: bool
    rate: float
    p50_ms: float
    p99_ms: float
    queries: int
    cores: float
    failed: int
    why: str


@dataclass(frozen=True, slots=True)
class Queries:
    """Prepared queries: messages of each protocol, and pairs of each query."""

    http: Sequence[bytes]
    grpc: Sequence[bytes]
    pairs: Sequence[int]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, messages in (("http", self.http), ("grpc", self.grpc)):
            for number, message in enumerate(messages):
                (folder / f"{number}.{kind}").write_bytes(message)
        (folder / "pairs.json").write_text(json.dumps(list(self.pairs)))

    @classmethod
    def load(cls, folder: Path) -> Queries:
        pairs = json.loads((folder / "pairs.json").read_bytes())

        def read(kind: str) -> list[bytes]:
            return [(folder / f"{number}.{kind}").read_bytes() for number in range(len(pairs))]

        return cls(read("http"), read("grpc"), pairs)


class QuerySender(Protocol):
    """One connection."""

    def send(self, number: int) -> None:
        """Sends a query and waits for its reply; raises where that is not well."""

    def close(self) -> None: ...


class Senders:
    """Threads that send what is queued; complete(id) is called for every query that has been answered, well or not."""

    def __init__(self, connect: Callable[[], QuerySender], count: int, complete: Callable[[int], None]) -> None:
        self.failed: list[str] = []
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._complete = complete
        self._threads = [threading.Thread(target=self._run, args=(connect(),)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def put(self, identity: int, number: int) -> None:
        self._queue.put((identity, number))

    def close(self) -> None:
        """Waits until what is queued has been sent."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, sender: QuerySender) -> None:
        while (item := self._queue.get()) is not None:
            identity, number = item
            try:
                sender.send(number)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            self._complete(identity)
        sender.close()


class HttpSender:
    """Sends over one HTTP/1.1 connection; queries.http holds whole requests."""

    def __init__(self, port: int, queries: Queries) -> None:
        self._queries = queries
        self._connection = socket.create_connection((HOST, port), TIMEOUT_S)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, number: int) -> None:
        self._connection.sendall(self._queries.http[number])
        with http.client.HTTPResponse(self._connection, method="POST") as reply:
            reply.begin()
            check(reply.status, reply.read(), self._queries.pairs[number])

    def close(self) -> None:
        self._connection.close()


class GrpcSender:
    """Sends over one gRPC connection: calls of one connection are all answered by one of the server's workers."""

    def __init__(self, port: int, queries: Queries) -> None:
        import grpc

        self._queries = queries
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(f"{HOST}:{port}", options)
        self._call = self._channel.unary_unary(INFER)

    def send(self, number: int) -> None:
        check(200, self._call(self._queries.grpc[number], timeout=TIMEOUT_S), self._queries.pairs[number])

    def close(self) -> None:
        self._channel.close()


class NoSender:
    """Sends nothing: what LoadGen and this process cost by themselves."""

    def __init__(self, port: int, queries: Queries) -> None: ...

    def send(self, number: int) -> None: ...

    def close(self) -> None: ...


SENDERS: dict[str, Callable[[int, Queries], QuerySender]] = {"http": HttpSender, "grpc": GrpcSender, "none": NoSender}


def check(status: int, body: bytes, pairs: int) -> None:
    """Raises ValueError unless a reply is well and has room for a float32 score a pair, behind what describes it."""
    if status != 200 or len(body) < 4 * pairs:
        raise ValueError(f"status {status}, {len(body)} bytes for {pairs} pairs")


def judge(job: LoadGenJob) -> LoadGenVerdict:
    """Runs LoadGen to its end."""
    import mlperf_loadgen as loadgen

    queries = Queries.load(Path(job.folder))

    def complete(identity: int) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(identity, 0, 0)])

    senders = Senders(lambda: SENDERS[job.protocol](job.port, queries), job.senders, complete)

    issued = 0

    def issue(samples: Sequence[Any]) -> None:
        nonlocal issued
        issued += len(samples)
        for sample in samples:
            senders.put(sample.id, sample.index)

    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, job.scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(job.seconds * 1000)
    settings.min_query_count = 1
    settings.server_target_qps = settings.offline_expected_qps = job.rate
    settings.server_target_latency_ns = round(job.latency_s * 1e9)
    settings.server_target_latency_percentile = job.percentile
    # LoadGen's own default, one in flight for each core, is for a SUT in the same process.
    settings.server_max_async_queries = 0
    logging = loadgen.LogSettings()
    Path(job.logs).mkdir(parents=True, exist_ok=True)
    logging.log_output.outdir = job.logs
    logging.log_output.copy_summary_to_stdout = False
    logging.enable_trace = False
    sut = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(len(queries.pairs), len(queries.pairs), lambda ids: None, lambda ids: None)
    start_s, cpu_s = time.monotonic(), time.process_time()
    try:
        loadgen.StartTestWithLogSettings(sut, library, settings, logging)
    finally:
        cores = (time.process_time() - cpu_s) / (time.monotonic() - start_s)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(sut)
        senders.close()
    for name in EMPTY:
        (Path(job.logs) / name).unlink(missing_ok=True)
    return read_summary((Path(job.logs) / SUMMARY).read_text(), job.scenario, issued, cores, senders.failed)


def read_summary(text: str, scenario: str, queries: int, cores: float, failed: Sequence[str]) -> LoadGenVerdict:
    """The verdict in LoadGen's summary."""

    def figure(name: str) -> float:
        found = re.search(rf"^{re.escape(name)}\s*:\s*([\d.e+]+)", text, re.M)
        return float(found[1]) if found else 0.0

    said = re.search(r"^Result is\s*:\s*(\w+)", text, re.M)
    valid = said is not None and said[1] == "VALID" and not failed
    reasons = [line.strip(" *") for line in text.splitlines() if line.lstrip().startswith("*")]
    why = failed[0] if failed else "" if valid else "; ".join(reasons[:2])
    percentiles = (figure(f"{p} percentile latency (ns)") / 1e6 for p in ("50.00", "99.00"))
    p50_ms, p99_ms = percentiles if scenario == "Server" else (0.0, 0.0)
    return LoadGenVerdict(valid, figure(RATES[scenario]), p50_ms, p99_ms, queries, round(cores, 3), len(failed), why)


def main() -> None:
    found = judge(LoadGenJob(**json.loads(sys.stdin.readline())))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
