"""Shadow traffic: score a share of the requests on a further version, after the reply, and compare the scores.

Invariants
- A copy is made when the reply has been delivered, and is processed SETTLE_S later, when the reply has been sent.
- Copies run on one thread of their own, with its own session and its own reader slot in every version
  (processor.versions.control); they never stand in a queue or occupy a session of requests.
- Copies are the first load to be shed: at most MAX_QUEUED wait, with at most MAX_QUEUED_NBYTES of inputs (except for a
  single larger one), for at most PATIENCE_S. None runs while a request waits, while no session of the group is idle, or
  while the thread that requests come from has been running, or waiting for a core, for more than BUSY of its time.

Rejected: a lower priority for the thread (it would hold the GIL while the scheduler takes its core away).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, nbytes_of
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.sessions.background_worker import MAX_ROWS, SETTLE_S, BackgroundWorker
from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.request import Done, Outputs, PredictReply, PredictRequest, Work
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.versions.control import SHADOW_READER
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes
from freshet_serving.processor.watching import Sketch, StatsBlock

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost
    from freshet_serving.processor.versions.served_version import ServedVersion

SHADOW = "shadow"
"""Name of the observer."""

MAX_QUEUED = 256
PATIENCE_S, POLL_S = 0.1, 0.002
BUSY = 0.75
BUSY_INTERVAL_S = 0.05


@dataclass(slots=True, eq=False)
class ShadowTarget:
    """A model's shadow replica, which scores copies, and statistics of the differences between scores.

    A copy is made when the accumulated share (`credit`) reaches 1.
    """

    replica: Replica
    share: float
    block: StatsBlock
    credit: float = 0.0
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ShadowRequest:
    """A copy of an answered request, which may be scored from `due_s` on; `nbytes` is the size of its inputs."""

    target: ShadowTarget
    inputs: Mapping[str, Column]
    nbytes: int
    outputs: Outputs
    rows: int
    due_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ShadowComparison:
    """A shadow's scores minus those that were answered, and the requests dropped as its queue was full."""

    differences: Sketch
    dropped: int


class Shadow(Observer):
    """Observer that copies requests to shadows, and the thread that scores the copies."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups, self._clock = groups, clock
        self._targets: dict[str, ShadowTarget] = {}
        self._kept: dict[tuple[str, int], ShadowTarget] = {}
        self._session = Session(SHADOW_READER, clock)
        self._cpu_usage = ThreadCpuUsage(clock)
        self._worker: BackgroundWorker[ShadowRequest] = BackgroundWorker("freshet-shadow", self._look)

    def follow(self, routes: Mapping[str, Routes[Replica]]) -> bool:
        targets_kept = {}
        targets = {}
        for model, route in routes.items():
            if (replica := route.shadow) is None:
                continue
            key = (model, replica.manifest.version)
            old = self._kept.get(key)
            block = old.block if old is not None else StatsBlock(len(replica.outputs))
            dropped = old.dropped if old is not None else 0
            target = ShadowTarget(replica, route.traffic.shadow_share, block, dropped=dropped)
            targets[model] = targets_kept[key] = target
        self._kept, self._targets = targets_kept, targets
        return bool(targets)

    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        """Wrap `done` to copy the request; return it unchanged for requests that name a version or are not sampled."""
        target = self._targets.get(request.model)
        if target is None or request.version is not None or request.label is not None or replica is target.replica:
            return done
        target.credit += target.share
        if target.credit < 1.0:
            return done
        target.credit -= 1.0
        self._cpu_usage.thread = threading.get_native_id()
        inputs, rows = request.inputs, bound.rows

        def copied(result: PredictReply | FreshetError) -> None:
            done(result)
            if isinstance(result, FreshetError):
                return
            due_s = self._clock.now_s() + SETTLE_S
            if not self._worker.offer(
                ShadowRequest(target, inputs, nbytes_of(inputs), result.outputs, rows, due_s), MAX_QUEUED
            ):
                target.dropped += 1

        return copied

    def evidence(self) -> dict[tuple[Replica, ...], Any]:
        """Return the comparisons with the answering versions, for shadow_comparison(), by the current shadows."""
        return {
            (t.replica,): {
                "differences": Sketch.total(len(t.replica.outputs), [t.block]).to_json(),
                "dropped": t.dropped,
            }
            for t in self._kept.values()
        }

    def close(self) -> None:
        self._worker.close()

    def _look(self) -> None:
        copy = self._worker.take()
        self._worker.rest(max(0.0, copy.due_s - self._clock.now_s()))
        if self._may_run(copy):
            self._score([copy, *self._alike(copy)])
        else:
            copy.target.dropped += 1

    def _may_run(self, copy: ShadowRequest) -> bool:
        """Wait briefly for spare capacity; return False if there is none in time."""
        group = self._groups.of(copy.target.replica.manifest.model)
        while not group.spare or self._cpu_usage.share() > BUSY:
            if self._clock.now_s() > copy.due_s + PATIENCE_S or self._worker.rest(POLL_S):
                return False
        return True

    def _alike(self, first: ShadowRequest) -> list[ShadowRequest]:
        copies, rows, now_s = list[ShadowRequest](), first.rows, self._clock.now_s()

        def fits(copy: ShadowRequest) -> bool:
            return copy.target is first.target and copy.due_s <= now_s and rows + copy.rows <= MAX_ROWS

        while (copy := self._worker.take_if(fits)) is not None:
            rows += copy.rows
            copies.append(copy)
        return copies

    def _score(self, copies: list[ShadowRequest]) -> None:
        target = copies[0].target
        works = []
        for copy in copies:
            try:
                bound = target.replica.plan.bind_inputs(copy.inputs)
            except FreshetError:
                target.block.fail(1)
                continue
            done = _comparing(copy)
            works.append(Work(bound.rows, bound.ids, replica=target.replica, bound=bound, done=done))
        if works:
            self._session.run(works)


def shadow_comparison(host: ModelHost, version: ServedVersion) -> ShadowComparison | None:
    """Return the comparison of a version's shadow scores, over all processes; None if it is not a shadow."""
    counted = host.evidence(SHADOW, version)
    if counted is None:
        return None
    return ShadowComparison(Sketch.from_json(len(version.manifest.outputs), counted["differences"]), counted["dropped"])


def _comparing(copy: ShadowRequest) -> Done:
    block, names = copy.target.block, list(copy.target.replica.outputs)

    def compare(result: PredictReply | FreshetError) -> None:
        if isinstance(result, FreshetError):
            block.fail(1)
            return
        for n, name in enumerate(names):
            answered = copy.outputs.get(name)
            if answered is not None and answered.shape == result.outputs[name].shape:
                with np.errstate(invalid="ignore", over="ignore"):
                    block.note(n, result.outputs[name] - answered)
        block.done(1)

    return compare


class ThreadCpuUsage:
    """The share of time that a thread, by its native id, ran on a core or waited for one, as the kernel accounts it.

    If the kernel keeps no such account, every thread counts as idle.
    """

    def __init__(self, clock: Clock, read: Callable[[int], float | None] | None = None) -> None:
        """Create a meter; `read` returns a thread's seconds so far, None if unknown, by default from /proc."""
        self.thread = 0
        self._clock, self._read = clock, read or _scheduled_s
        self._last: tuple[int, float, float] | None = None
        self._share = 0.0

    def share(self) -> float:
        """Return the share, measured over at least BUSY_INTERVAL_S up to about now."""
        now_s = self._clock.now_s()
        last = self._last
        if last is not None and last[0] == self.thread and now_s - last[2] < BUSY_INTERVAL_S:
            return self._share
        seconds = self._read(self.thread)
        self._last = None if seconds is None else (self.thread, seconds, now_s)
        if seconds is None or last is None or last[0] != self.thread:
            self._share = 0.0
        else:
            self._share = (seconds - last[1]) / (now_s - last[2])
        return self._share


def _scheduled_s(thread: int) -> float | None:
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return (int(ran_ns) + int(waited_ns)) / 1e9
