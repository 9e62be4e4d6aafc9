"""A server's model that follows a kept stream delta by delta, in process: no HTTP, a clock that is moved by hand.

A delta every GuardStream.delta_s seconds of that clock, and rows that are asked for in between, scored by the state
that is served, counted and labelled as a server's are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.generation import HELD
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import LabelSums
from freshet_serving.processor.watching.sketch import Sketch, StatsBlock
from loadtest.bench.guard_streams import MODEL, KeptStream

REQUEST_ROWS = 8
REQUESTS_A_SECOND = 64
BY_HAND = 20
"""Deltas after which a person releases what the server has not released by itself."""

Float32s = NDArray[np.float32]


@dataclass
class GoodOutcome:
    """What became of good deltas.

    Attributes:
        deltas: how many there were.
        held: (number of the delta, reason) of each that was held while nothing was.
        waited: deltas until each of them was released automatically; None where a person had to.
        taken_back: reasons of rollbacks.
    """

    deltas: int = 0
    held: list[tuple[int, str]] = field(default_factory=list)
    waited: list[int | None] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)


class Replay:
    """One server's model on a copy of a kept stream's version, without its deltas."""

    def __init__(self, kept: KeptStream, folder: Path) -> None:
        self.kept = kept
        self.clock = FakeClock()
        version = Path(MODEL) / "1"
        shutil.copytree(kept.folder / version, folder / version, ignore=shutil.ignore_patterns("deltas", "chain"))

        def connect(version: ServedVersion) -> Replica:
            return Replica(version.files, version.control, 0, 1, self.clock)

        def load(files: Any) -> ServedVersion:
            return ServedVersion(files, 16, self.clock)

        repository = Repository(folder)
        self.model = ServedModel(MODEL, repository, load, connect, self.clock)
        self.model.poll()
        self.change_log = ChangeLog.of(repository.version(MODEL, 1))
        self._block, self._buffers = StatsBlock(1), self.replica.borrow_buffers()
        self.asked, self.followed = kept.asked[0], 0

    @property
    def version(self) -> ServedVersion:
        return self.model.pick()

    @property
    def replica(self) -> Replica:
        replicas = self.version.replicas
        assert isinstance(replicas, Replica)
        return replicas

    def held(self) -> str:
        """Return why the newest generation is not served; "" where it is."""
        status = self.model.chain(1)
        assert status is not None
        return (status.reason or "held") if status.state == HELD else ""

    def publish(self, *deltas: Delta) -> None:
        """Publish deltas, each behind the newest generation whatever it was made for, and have the server look once."""
        for delta in deltas:
            self.change_log.look()
            history = self.change_log.history
            self.change_log.publish(replace(delta, step=history.top + 1, parent_step=history.head.step))
        self.clock.advance(self.kept.stream.delta_s)
        self.model.poll()

    def bind_inputs(self, columns: Any) -> Any:
        """Bind the columns that the model reads."""
        return self.replica.plan.bind_inputs({i.name: columns[i.name] for i in self.replica.manifest.inputs})

    def score(self, batch: Batch) -> Float32s:
        """Score rows by the state that is served, float32 [n]."""
        bound, replica = self.bind_inputs(batch.columns), self.replica
        scores = np.empty(len(batch), np.float32)
        with replica.pinned(0) as state:
            graph = replica.graphs.undivided
            executables = state.executables[graph.name]
            step = max(executables)
            inputs, outputs, run = self._buffers.get(executables[step], graph.name)
            for first in range(0, len(batch), step):
                count = min(step, len(batch) - first)
                spans = np.array([[first, count]], np.int64)
                graph.fill(BatchView(state.tables, state.epoch, [bound], spans, self._buffers.counts), inputs)
                run()
                scores[first : first + count] = outputs["score"][:count].reshape(-1)
        return scores

    def ask(self, batch: Batch, seconds: int = 0) -> list[str]:
        """Ask for rows and tell their labels.

        Args:
            batch: the rows that clients ask for, in requests of REQUEST_ROWS.
            seconds: of the clock; the server looks at what has become of its deltas once each of them.

        Returns:
            What was rolled back: one line, or nothing.
        """
        for first in range(0, len(batch), REQUEST_ROWS):
            if not self.replica.sample.wanted:
                break
            self.replica.sample.take(self.bind_inputs(batch.slice(first, first + REQUEST_ROWS).columns))
        for _ in range(max(1, seconds)):
            scores, label = self.score(batch), batch.label
            requests = -(-len(batch) // REQUEST_ROWS)
            times = max(1, REQUESTS_A_SECOND // requests)
            self._block.note(0, np.tile(scores, times))
            self._block.done(times * requests, times * len(batch))
            sums = LabelSums(times * float(scores.sum()), times * float(label.sum()), times * len(batch))
            self.model.loaded(1).add_labels(self.version.generation, sums)
            self.clock.advance(float(seconds > 0))
            verdict = self.model.loaded(1).watch(self.clock.now_s(), Sketch.total(1, [self._block]))
            if verdict is not None:
                return self.model.auto_rollback(verdict)
        return []

    def follow(self, first: int, last: int) -> GoodOutcome:
        """Publish deltas [first, last) of the stream, one a look."""
        found, kept, since = GoodOutcome(), self.kept, None
        for number in range(first, last):
            self.asked = kept.asked[min(number // 25, len(kept.asked) - 1)]
            found.taken_back += [f"at delta {number}: {line}" for line in self.ask(self.asked)]
            self.publish(kept.read(number))
            self.followed = number + 1
            found.deltas += 1
            reason = self.held()
            if reason and since is None:
                since = number
                found.held.append((number, reason))
            elif not reason and since is not None:
                found.waited.append(number - since)
                since = None
            elif since is not None and number - since >= BY_HAND:
                self.model.release(1, "by hand")
                found.waited.append(None)
                since = None
        return found

    def export(self) -> tuple[Any, Any]:
        """Return tables and weights as they are served: ({name: (keys, rows)}, {name: tensor})."""
        return self.version.export()
