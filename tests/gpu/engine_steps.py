"""The steps of the GPU check that run the engine: stages, rows on the device, divided requests, deltas under load."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from freshet_serving.processor.backends import xla
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.extensions.device_rows.slot_program import SlotRun
from freshet_serving.processor.running.graph_run import GraphRun
from tests.gpu import tensorrt_steps
from tests.gpu.bundled import Check, Figures, ms
from tests.gpu.package import DIVIDED, HISTORIES, MODEL, made_ahead

CLIENTS = 4
ON_CPU, EXECUTABLE = "onnxruntime on the CPU", "the executable alone"
PLACES_MB = 4096
BY_PLACE, SENT = "rows by place", "rows sent"
"""Ways to have rows on the device: in its memory, or sent with each batch."""
BUSY, KERNELS, SHARE = "device busy over wall", "kernels over wall, by nvidia-smi", "engine over executable"
"""Utilisation: the part of the time in which the device has a batch, with its copies; in which it runs kernels; and the
engine's rows a second over those of the executable alone at its best batch size."""
UTILISATION = (BUSY, KERNELS, SHARE)


def pipeline(check: Check) -> Figures:
    """The engine: CPU stages and device stages against sessions that run the device themselves, and against a CPU."""
    on_device = check.repository("device", "xla", "cuda")
    sides: list[tuple[str, Path, dict[str, int]]] = [("sessions run the device", on_device, {})]
    if any(made_ahead(e) and (e.backend, e.target) == ("xla", check.kind) for e in check.manifest.executables):
        ahead = check.repository("ahead", "xla", check.kind, ahead=True)
        sides.append(("made without a GPU, device stages: 2", ahead, {"device_stages": 2}))
    sides += [(f"device stages: {n}", on_device, {"device_stages": n}) for n in (1, 2, 4)]
    if check.target == "cuda" and check.target in OnnxRuntime().targets():
        as_onnx = check.repository("onnxruntime", "onnxruntime", "cuda")
        sides += [(f"onnxruntime, device stages: {n}", as_onnx, {"device_stages": n}) for n in (1, 2)]
    sides.append((ON_CPU, check.repository("cpu", "onnxruntime"), {}))
    for name, repository, options in sides:
        started_s = time.perf_counter()
        with _engine(repository, **options) as processor:
            yield f"{name}, load", ms(time.perf_counter() - started_s)
            yield f"{name}, error", _error(check, processor)
            for candidates in (64, 500):
                rate = _load(check, processor, PredictRequest(MODEL, _inputs(check, candidates)), candidates)
                yield f"{name}, {candidates} candidates a request", f"{rate:,.0f} rows/s"


def device_rows(check: Check) -> Figures:
    """Rows in the device's memory beside rows sent: right, rows a second, and how busy the device is."""
    best = max(bucket / run_s for bucket, run_s in check.alone_s.items())
    yield f"{EXECUTABLE}, at its best batch size", f"{best:,.0f} rows/s"
    for way, mb in ((BY_PLACE, PLACES_MB), (SENT, 0)):
        with _busy() as busy, _engine(check.repository("device", "xla", "cuda"), mb, device_stages=2) as processor:
            yield f"{way}, error", _error(check, processor)
            for candidates in (64, 500, 2000):
                request = PredictRequest(MODEL, _inputs(check, candidates))
                with ThreadPoolExecutor(1) as meanwhile:
                    kernels = meanwhile.submit(_kernels, check)
                    before, started_s = busy.seconds, time.perf_counter()
                    rate = _load(check, processor, request, candidates)
                    share = (busy.seconds - before) / (time.perf_counter() - started_s)
                yield f"{way}, {candidates} candidates a request", f"{rate:,.0f} rows/s"
                yield f"{way}, {candidates} candidates, {BUSY}", f"{share:.0%}"
                if kernels.result():
                    yield f"{way}, {candidates} candidates, {KERNELS}", kernels.result()
                yield f"{way}, {candidates} candidates, {SHARE}", f"{rate / best:.2f}"
            if mb:
                counted, rows = _places(processor), sum(stats.rows for stats in _stages(processor).stats)
                yield f"{way}, bytes of rows there", f"{counted['nbytes']:,.0f}"
                yield f"{way}, bytes a row that are sent", f"{counted['sent_nbytes'] / rows:,.0f}"
                yield f"{way}, rows that came from the host", f"{counted['host_rows']:,.0f}"


def division(check: Check) -> Figures:
    """Device stages with requests divided into the user's part and the candidates': right, and against undivided."""
    yield from _ways(check, DIVIDED, {f"{n} candidates": clicks(n) for n in (2, 64, 500)})


def histories(check: Check) -> Figures:
    """A network over histories through device stages: right for short and full ones, divided and undivided."""
    shapes = ((2, 0), (64, 20), (500, 20), (64, 64), (500, 64))
    yield from _ways(check, HISTORIES, {f"{n} candidates, {events} events": visits(n, events) for n, events in shapes})


def _ways(check: Check, model: str, requests: Mapping[str, dict[str, Any]]) -> Figures:
    """The errors of every request, against ONNX Runtime on the CPU, and rows a second of all but the first."""
    asked, expected = {name: PredictRequest(model, inputs) for name, inputs in requests.items()}, {}
    _, *loads = asked.items()
    with _engine(check.repository("cpu", "onnxruntime", model=model)) as processor:
        for name, request in asked.items():
            expected[name] = processor.process(request).outputs["score"]
        for name, request in loads:
            rate = _load(check, processor, request, len(expected[name]))
            yield f"{ON_CPU}, {name} a request", f"{rate:,.0f} rows/s"
    with _engine(check.repository("device", "xla", "cuda", model=model), device_stages=2) as processor:
        for way, divides in (("divided", True), ("undivided", False)):
            with patch.object(GraphRun, "pays", lambda run, parts, rows, divides=divides: divides and rows > 1):
                for name, request in asked.items():
                    got = processor.process(request).outputs["score"]
                    yield f"{way}, {name}, error", check.close(float(np.abs(got - expected[name]).max()))
                for name, request in loads:
                    rate = _load(check, processor, request, len(expected[name]))
                    yield f"{way}, {name} a request", f"{rate:,.0f} rows/s"


def clicks(candidates: int) -> dict[str, Any]:
    """A request of the divided model: one user and some candidates."""
    tags = [["new", "sale", "gone"][: n % 4] for n in range(candidates)]
    return {
        "user": np.array([7], np.int64),
        "item": np.arange(candidates, dtype=np.int64) % 45,
        "city": Strings.of(["city-1"]),
        "history": Ragged.of([[1, 2, 3, 39]]),
        "tags": Ragged(Strings.of([tag for row in tags for tag in row]), np.cumsum([0] + [len(row) for row in tags])),
        "price": np.linspace(0, 2, candidates, dtype=np.float32),
        "age": np.array([0.4], np.float32),
    }


def visits(candidates: int, events: int) -> dict[str, Any]:
    """A request of the network over histories: one user, their events and some candidates."""
    return {
        "user": np.array([7], np.int64),
        "item": np.arange(candidates, dtype=np.int64) % 45,
        "price": np.linspace(-1, 1, candidates, dtype=np.float32),
        "history.item": Ragged.of([[n * n % 37 for n in range(events)]]),
        "history.action": Ragged.of([[n % 3 for n in range(events)]]),
        "history.watched": Ragged(np.linspace(0, 1, events, dtype=np.float32), np.array([0, events])),
    }


def deltas(check: Check) -> Figures:
    """A delta of rows and dense weights under load, through device stages: every reply is of one generation."""
    for way, mb in ((BY_PLACE, PLACES_MB), (SENT, 0)):
        yield from _deltas(check, way, check.repository(f"deltas, {way}", "xla", "cuda"), mb)


def tensorrt_deltas(check: Check) -> Figures:
    """The same served by TensorRT's engines, to which new dense weights are inputs."""
    yield from _deltas(check, SENT, tensorrt_steps.with_engines(check, check.folder / "engines"))


def _deltas(check: Check, way: str, repository: Path, mb: int = 0) -> Figures:
    data = (check.bundle / "delta.safetensors").read_bytes()
    wrong: list[float] = []
    answered = [0, 0]
    stop = threading.Event()
    with _engine(repository, mb, sessions=2, device_stages=2) as processor:

        def ask(seed: int) -> None:
            random = np.random.default_rng(seed)
            while not stop.is_set():
                rows = int(random.integers(1, 400))
                reply = processor.process(PredictRequest(MODEL, _inputs(check, rows)))
                step = reply.generation.step
                wrong.append(_difference(check, reply.outputs["score"], step))
                answered[step] += 1

        with _threads(ask, stop):
            took = []
            for turn in range(5):
                time.sleep(check.sizes.seconds / 10)
                took.append(processor.apply_delta(MODEL, data=data).apply_ms)
                time.sleep(check.sizes.seconds / 10)
                if turn < 4:
                    processor.rollback(MODEL, replace(processor.predictor.manifest(MODEL)[1], step=0))
    if not all(answered):
        raise Conflict(f"expected replies of both generations, got {answered}")
    yield f"{way}, replies", f"{answered[0]} before and {answered[1]} after the delta"
    yield f"{way}, largest error", check.close(max(wrong))
    yield f"{way}, to serve a delta with all dense weights", f"{statistics.median(took):.1f} ms"


@contextmanager
def _engine(repository: Path, mb: int = 0, sessions: int = 0, device_stages: int = 0) -> Iterator[Processor]:
    """The engine over a repository; with mb MiB for rows on the device, which must then lie there."""
    sessions = sessions or max(2, (os.cpu_count() or 2) - 1)
    config = ProcessorConfig(str(repository), sessions=sessions, device_stages=device_stages, device_rows_mb=mb)
    with Processor.initialize(config) as processor:
        if mb and not _places(processor).get("nbytes"):
            raise Conflict("expected rows on the device, got none: the log says why")
        yield processor


def _places(processor: Processor) -> dict[str, float]:
    """What is counted of rows on the device."""
    return dict(by_name(processor.predictor.replica(MODEL).counted(), "device_rows"))


def _stages(processor: Processor) -> Any:
    return processor.predictor.groups.of(MODEL)._stages


class Busy:
    """Seconds in which at least one thread runs something on the device."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock, self._inside, self._since_s = threading.Lock(), 0, 0.0

    def around(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """The run, counted."""

        def counted(of: Any) -> None:
            with self._lock:
                self._since_s = self._since_s if self._inside else time.perf_counter()
                self._inside += 1
            try:
                run(of)
            finally:
                with self._lock:
                    self._inside -= 1
                    self.seconds += 0.0 if self._inside else time.perf_counter() - self._since_s

        return counted


@contextmanager
def _busy() -> Iterator[Busy]:
    """Count runs of XLA's executables, with and without rows on the device."""
    busy = Busy()
    with (
        patch.object(xla._Run, "__call__", busy.around(xla._Run.__call__)),
        patch.object(SlotRun, "__call__", busy.around(SlotRun.__call__)),
    ):
        yield busy


def _kernels(check: Check) -> str:
    """The part of the time in which the GPU runs kernels, as its driver says in a load; "" if it does not."""
    if check.target != "cuda":
        return ""
    time.sleep(check.sizes.seconds / 2)
    command = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _inputs(check: Check, rows: int) -> dict[str, np.ndarray]:
    """A request of so many reference rows, from the first on, again and again."""
    return {n: np.resize(check.reference[n], (rows, check.reference[n].shape[1])) for n in ("ids", "floats")}


def _difference(check: Check, scores: np.ndarray, step: int) -> float:
    """How far the scores of such a request are off."""
    return float(np.abs(scores - np.resize(check.reference[f"score{step}"], scores.shape)).max())


def _error(check: Check, processor: Processor) -> str:
    """The largest error of requests of several sizes, before the delta."""
    asked = [PredictRequest(MODEL, _inputs(check, rows)) for rows in (1, 7, 64, 300, 1000)]
    return check.close(max(_difference(check, processor.process(request).outputs["score"], 0) for request in asked))


@contextmanager
def _threads(ask: Callable[[int], None], stop: threading.Event) -> Iterator[None]:
    """Have clients ask meanwhile, each on a thread of its own; raise what one of them has raised."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(ask, client) for client in range(CLIENTS)]
        try:
            yield
        finally:
            stop.set()
        for one in asking:
            one.result()


def _load(check: Check, processor: Processor, request: PredictRequest, candidates: int) -> float:
    """Rows a second of several clients, so that a device has batches to run while others are filled."""
    requests = [request] * max(2, check.sizes.rows // CLIENTS // candidates)
    processor.batch_process(requests)
    rows, stop = [0] * CLIENTS, threading.Event()

    def ask(client: int) -> None:
        while not stop.is_set():
            for reply in processor.batch_process(requests):
                if isinstance(reply, Exception):
                    raise reply
            rows[client] += candidates * len(requests)

    started_s = time.perf_counter()
    with _threads(ask, stop):
        time.sleep(check.sizes.seconds)
    return sum(rows) / (time.perf_counter() - started_s)
