"""`make -C loadtest device-story`: rows on a device through deltas, rollbacks, versions; results/device-story.md.

Two engines serve the same repositories: one has a device that is played on the processor, with room for some of the
rows or for all, the other reads rows from memory. Deltas bring and remove rows, some with dense weights; rollbacks go
back up to ten of them, and new versions come with the rows as they are. Threads ask the first one all the time; their
replies are kept and computed again by the other one, under the generation that they name. After each change both answer
requests of one and of many users, and must agree. In the last story the first one is a server of two workers, of which
one is killed at random times; requests that it loses are sent again.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.device_rows import placed_rows
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import stream_delta
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from loadtest.reports.report import machine, opening, origin, store, table
from tests.processor.extensions.device_rows.played import MODEL, delta, repositories, request
from tests.programs.device_server import DeviceServer
from tests.programs.played_device import put_small_pools
from tests.support.played_gpu import put_xla

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
ROOM, CLOSE, THREADS, UNDO = 5_400, 1e-6, 2, 10
VERSION_EVERY, ROLLBACK_EVERY, DENSE_EVERY = 400, 7, 9
SHAPES = ((1, 1), (8, 8), (20, 1))
"""Candidates and users of the requests after each change."""


class Story:
    """Two engines that follow the same changes."""

    def __init__(
        self, device: Processor | DeviceServer, host: Processor, repositories: tuple[Path, Path], seed: int
    ) -> None:
        self.device, self.host, self.repositories = device, host, repositories
        self.random = np.random.default_rng(seed)
        self.counts: Counter[str] = Counter()
        self.worst, self._steps = 0.0, 0
        self._line = [host.predictor.manifest(MODEL)[1].step]
        self._asked = [PredictRequest(MODEL, request(self.random, rows)) for rows in (2, 8)]
        self._replies: list[tuple[int, Generation, np.ndarray]] = []
        self._expected: dict[tuple[int, Generation], np.ndarray] = {}
        self._failed: list[Exception] = []
        self._stop = threading.Event()

    def run(self, deltas: int) -> None:
        """Live through so many deltas."""
        threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(THREADS)]
        self._note()
        for thread in threads:
            thread.start()
        try:
            while self.counts["deltas"] < deltas:
                self._delta()
                if self.counts["deltas"] % ROLLBACK_EVERY == 0:
                    self._rollback()
                if self.counts["deltas"] % VERSION_EVERY == 0:
                    self._version()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._failed:
            raise self._failed[0]
        for number, generation, scores in self._replies:
            if (expected := self._expected.get((number, generation))) is None:
                self.counts["other generations"] += 1
            else:
                self._compare(scores, expected)
        self.counts["replies meanwhile"] += len(self._replies)

    def _delta(self) -> None:
        manifest, generation = self.host.predictor.manifest(MODEL)
        self.counts["deltas"] += 1
        weights = {}
        if self.counts["deltas"] % DENSE_EVERY == 0:
            served = self.host.host.catalogue[MODEL].pick(None).dense
            weights = {name: value * np.float32(self.random.uniform(0.98, 1.02)) for name, value in served.items()}
            self.counts["of these with dense weights"] += 1
        file = io.BytesIO()
        self._steps += 1
        stream_delta(file, delta(self.random, manifest, self._steps, weights, generation.step))
        for side in (self.host, self.device):
            side.apply_delta(MODEL, data=file.getvalue())
            self._note()
        self._line.append(self._steps)
        self._agree()

    def _rollback(self) -> None:
        _, generation = self.host.predictor.manifest(MODEL)
        back = int(self.random.integers(1, UNDO))
        if len(self._line) <= back:
            return
        del self._line[-back:]
        for side in (self.host, self.device):
            side.rollback(MODEL, replace(generation, step=self._line[-1]))
            self._note()
        self.counts["rollbacks"] += 1
        self._agree()

    def _version(self) -> None:
        """Publish the first version's files as the next one."""
        number = self.counts["versions"] + 2
        for repository in self.repositories:
            hidden = repository / MODEL / f".{number}"
            shutil.copytree(repository / MODEL / "1", hidden, ignore=shutil.ignore_patterns("chain", "deltas"))
            manifest = replace(VersionReader(repository / MODEL / "1").manifest, version=number)
            (hidden / MANIFEST).write_bytes(manifest.to_json())
            hidden.rename(repository / MODEL / str(number))
        self.host.poll()
        self._note()
        if isinstance(self.device, Processor):
            self.device.poll()
        else:
            self.device.wait_for(self.host.predictor.manifest(MODEL)[1])
        self.counts["versions"] += 1
        self._steps, self._line = 0, [0]
        self._agree()

    def _note(self) -> None:
        """Compute what the requests that threads repeat get under the host's generation."""
        for number, asked in enumerate(self._asked):
            reply = self.host.process(asked)
            self._expected[number, reply.generation] = reply.outputs["score"].copy()

    def _ask(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                reply = self.device.process(self._asked[number])
                self._replies.append((number, reply.generation, reply.outputs["score"].copy()))
                time.sleep(0.002)
        except Exception as error:
            self._failed.append(error)

    def _agree(self) -> None:
        for rows, users in SHAPES:
            asked = PredictRequest(MODEL, request(self.random, rows, users))
            got, expected = self.device.process(asked), self.host.process(asked)
            if got.generation != expected.generation:
                self.counts["other generations"] += 1
            self._compare(got.outputs["score"], expected.outputs["score"])
            self.counts["replies after changes"] += 1

    def _compare(self, scores: np.ndarray, expected: np.ndarray) -> None:
        error = float(np.abs(scores - expected).max())
        self.worst = max(self.worst, error)
        self.counts["wrong"] += error > CLOSE


def lived(deltas: int, seed: int, room: int, kills: bool = False) -> dict[str, Any]:
    """Return the figures of one story; room: bytes for rows on the device; kills: of workers of the device's server."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-device-")))
        on_device, on_host = both = repositories(folder)
        device: Processor | DeviceServer
        if kills:
            device = stack.enter_context(DeviceServer(on_device, folder / "serve.log", room, seed))
        else:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            put_small_pools(patch, room)
            put_xla(patch)
            config = ProcessorConfig(str(on_device), sessions=2, device_stages=1, device_rows_mb=1, delta_guard="off")
            device = stack.enter_context(Processor.initialize(config))
        host = stack.enter_context(Processor.initialize(ProcessorConfig(str(on_host), sessions=1, delta_guard="off")))
        story = Story(device, host, both, seed)
        story.run(deltas)
        if isinstance(device, DeviceServer):
            counted = device.counted()
            story.counts += device.counts
        else:
            counted = by_name(device.predictor.replica(MODEL).counted(), placed_rows.BLOCK)
    return {"room": room, "seed": seed, "kills": kills, "worst": story.worst, **story.counts, "counted": counted}


def page(results: dict[str, Any]) -> str:
    names = ["deltas", "of these with dense weights", "rollbacks", "versions", "replies after changes"]
    names += ["replies meanwhile", "killed workers", "requests sent again", "other generations", "wrong"]
    rows = [[name, *(f"{figures.get(name, 0):,}" for figures in results["stories"])] for name in names]
    rows.append(["largest difference", *(f"{figures['worst']:.1e}" for figures in results["stories"])])
    for name in ("changed_rows", "host_rows", "moved_rows"):
        rows.append(
            [f"{name}, last version", *(f"{figures['counted'].get(name, 0):,}" for figures in results["stories"])]
        )
    heads = [""]
    for figures in results["stories"]:
        heads.append(
            ("all rows" if figures["room"] > ROOM else "some rows") + (", workers killed" if figures["kills"] else "")
        )
    return "\n".join([*opening("Rows on a device", __doc__ or "", results), table(heads, rows), ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest device-story", description=__doc__)
    parser.add_argument("--deltas", type=int, default=1000, help="of each of the three stories [1000]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "stories": []}
    results["origin"] = origin("-C loadtest device-story", "ARGS", sys.argv[1:])
    for room, kills in ((ROOM, False), (1 << 30, False), (ROOM, True)):
        results["stories"].append(lived(options.deltas, options.seed, room, kills))
        print({name: value for name, value in results["stories"][-1].items() if name != "counted"}, flush=True)
        store(options.out, "device-story", results, page(results))
    return int(any(figures.get("wrong") or figures.get("other generations") for figures in results["stories"]))


if __name__ == "__main__":
    sys.exit(main())
