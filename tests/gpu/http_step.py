"""The step of the GPU check that starts servers: requests over HTTP, in one process and with two workers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from freshet_serving import Client
from freshet_serving.processor.errors import Conflict
from tests.e2e.servers import LiveServer
from tests.gpu.bundled import Check, Figures, ms
from tests.gpu.package import MODEL, made_ahead

REQUEST_ROWS = (1, 64, 500, 1000)


def http(check: Check) -> Figures:
    """`freshet serve` asked over HTTP, one request after another, before and after a delta with all dense weights."""
    # Servers are processes of their own, in which a processor takes no GPU's place.
    ahead = any(made_ahead(e) and (e.backend, e.target) == ("xla", check.kind) for e in check.manifest.executables)
    key = (check.kind if ahead else "cuda") if check.target == "cuda" else ""
    sides = {
        "one process": ("xla", key, ahead, ["--workers", "1", "--device-stages", "2"]),
        "two workers": ("xla", key, ahead, ["--workers", "2", "--device-stages", "2"]),
        "onnxruntime on the CPU": ("onnxruntime", "", False, ["--workers", "1"]),
    }
    for name, (backend, served, code, options) in sides.items():
        repository = check.repository(name, backend, served, code)
        log = check.folder / f"{name.replace(' ', '-')}.log"
        with (
            LiveServer(repository, *options, log=log) as server,
            Client(f"http://127.0.0.1:{server.http_port}", timeout_s=30) as client,
        ):
            yield from _asked(check, client, name, 0)
            started_s = time.perf_counter()
            status, reply = server.upload(MODEL, (check.bundle / "delta.safetensors").read_bytes())
            if status != 200:
                raise Conflict(f"delta: expected status 200, got {status}: {reply}")
            yield f"{name}, a delta with all dense weights", ms(time.perf_counter() - started_s)
            yield from _asked(check, client, f"{name}, after the delta", 1)


def _asked(check: Check, client: Client, name: str, step: int) -> Iterator[tuple[str, str]]:
    """Yield the error of scores, and the median time of a request by its rows."""
    worst, given = 0.0, check.reference
    for rows in (n for n in REQUEST_ROWS if n <= len(given["ids"])):
        inputs = {key: np.ascontiguousarray(given[key][:rows]) for key in ("ids", "floats")}
        took = []
        for _ in range(check.sizes.asked):
            started_s = time.perf_counter()
            scores = client.predict(MODEL, inputs).outputs["score"]
            took.append(time.perf_counter() - started_s)
        worst = max(worst, float(np.abs(scores - given[f"score{step}"][:rows]).max()))
        yield f"{name}, {rows} rows a request", ms(statistics.median(took))
    yield f"{name}, error", check.close(worst)
