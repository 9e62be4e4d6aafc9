"""A server with a played device and workers that are killed, called as an engine is (device_story)."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.extensions.device_rows import placed_rows
from freshet_serving.processor.generation import Generation
from tests.e2e.servers import LiveServer
from tests.processor.extensions.device_rows.played import MODEL
from tests.programs.played_device import VARIABLE
from tests.support.waiting import until

OPTIONS = ("--workers", "2", "--device-stages", "1", "--device-rows-mb", "1", "--delta-guard", "off")
OPTIONS += ("--poll-interval-s", "0.2")
SERVED, NOT_READY = 200, 503
ATTEMPTS, KILL_S = 200, (0.2, 3.0)
"""Sendings of a request that workers do not answer; least and most seconds between kills."""
COUNTED = (placed_rows.CHANGED_ROWS, placed_rows.HOST_ROWS, placed_rows.MOVED_ROWS)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, as the engine gives it."""

    generation: Generation
    outputs: dict[str, np.ndarray]


class DeviceServer:
    """A server of two workers, one of which is killed now and then."""

    def __init__(self, repository: Path, log: Path, room: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._random, self._stop, self._killed = np.random.default_rng((seed, 1)), threading.Event(), 0
        env = os.environ | {VARIABLE: str(room)}
        self._live = LiveServer(repository, *OPTIONS, log=log, env=env, module="tests.programs.played_device")
        self._killer = threading.Thread(target=self._kill)

    def __enter__(self) -> DeviceServer:
        self._live.__enter__()
        self._killer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._killer.join()
        self._live.__exit__()

    def process(self, asked: PredictRequest) -> Answer:
        """Send a request, again while the worker that has it dies."""
        body = json.dumps({"inputs": {name: _plain(values) for name, values in asked.inputs.items()}}).encode()
        for attempt in range(ATTEMPTS):
            try:
                status, headers, data = self._live.request("POST", f"/v1/models/{MODEL}:predict", body)
            except (OSError, http.client.HTTPException):
                status = NOT_READY
            if status == SERVED:
                scores = np.array(json.loads(data)["outputs"], np.float32).reshape(-1, 1)
                generation = {name.lower(): value for name, value in headers.items()}["x-model-generation"]
                return Answer(Generation.parse(generation), {"score": scores})
            if status != NOT_READY:
                raise RuntimeError(f"a request was answered by {status}: {data!r}")
            self.counts["requests sent again"] += 1
            time.sleep(min(0.2, 0.01 * attempt))
        raise RuntimeError(f"{ATTEMPTS} times without an answer")

    def apply_delta(self, model: str, data: bytes) -> None:
        self._changed(*self._live.upload(model, data))

    def rollback(self, model: str, generation: Generation) -> None:
        asked = {"generation": str(generation), "reason": "worse"}
        self._changed(*self._live.post_json(f"/admin/models/{model}/rollback", asked))

    def wait_for(self, generation: Generation) -> None:
        until(lambda: self._live.generation(MODEL) == str(generation))

    def counted(self) -> dict[str, int]:
        """Return the counters of the workers that live, summed."""
        text = self._live.get("/metrics")[2].decode()
        samples = {slot.name: re.findall(rf"^freshet_{slot.metric}_total{{.*}} (\S+)$", text, re.M) for slot in COUNTED}
        return {name: sum(int(float(value)) for value in values) for name, values in samples.items()}

    def _changed(self, status: int, reply: Any) -> None:
        if status != 200:
            raise RuntimeError(f"a change was answered by {status}: {reply}")

    def _kill(self) -> None:
        """Kill one of two workers that answer, at random times."""
        while not self._stop.wait(self._random.uniform(*KILL_S)):
            workers = json.loads(self._live.get("/admin/models", admin=True)[2]).get("workers", [])
            # The server may not have noticed yet that the last one is dead. One that answers has to be left.
            up = [worker["pid"] for worker in workers if worker["up"] and worker["pid"] != self._killed]
            if len(up) > 1:
                self._killed = up[self._random.integers(0, len(up))]
                os.kill(self._killed, signal.SIGKILL)
                self.counts["killed workers"] += 1


def _plain(values: Any) -> list[Any]:
    """Return a column as JSON has it."""
    if isinstance(values, Ragged):
        every, ends = _plain(values.values), values.row_splits.tolist()
        return [every[first:end] for first, end in zip(ends, ends[1:])]
    return [text.decode() for text in values.tolist()] if isinstance(values, Strings) else values.tolist()
