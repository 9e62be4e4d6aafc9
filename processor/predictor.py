"""Requests in, replies out: what every process that answers has, whether it loads models or is told of them.

A request is validated in the caller's thread and computed by the SessionGroup. Thread-safe.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from processor.clock import Clock
from processor.columns import Column
from processor.errors import FreshetError
from processor.generation import Generation
from processor.package.manifest import Manifest
from processor.replica import Replica
from processor.sessions import SessionGroup, Wake
from processor.work import Done, PredictReply, Work

# How often a thread that waits for an inline reply looks whether the owner is still there to compute it.
OWNER_GONE_S = 0.05


@dataclass(slots=True)
class PredictRequest:
    """inputs: by the manifest's names; rows of 1 are broadcast. version or label: which version, else the newest.
    timeout_s: an answer later than that is worth nothing. caller: who asks, for the policy "mod"."""

    model: str
    inputs: Mapping[str, Column]
    version: int | None = None
    label: str | None = None
    timeout_s: float | None = None
    caller: int | None = None


class Predictor(ABC):
    """Answers requests by the replicas that replica() picks."""

    def __init__(self, group: SessionGroup, clock: Clock) -> None:
        self._group, self._clock = group, clock

    @abstractmethod
    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """What answers a request; raises NotFound or NotReady."""

    def admit(self, model: str, timeout_s: float | None) -> None:
        """Raises Overloaded for a request that submit() would refuse whatever it holds; costs a fraction of reading
        it. timeout_s: as in the request."""
        self._group.admit(timeout_s)

    def submit(self, request: PredictRequest, done: Done) -> None:
        """Validates and queues; done() is called once, on a session's thread or the owner's, and must not block."""
        replica = self.replica(request.model, request.version, request.label)
        bound = replica.plan.bind(request.inputs)
        deadline_s = None if request.timeout_s is None else self._clock.now_s() + request.timeout_s
        self._group.submit(
            Work(
                replica,
                bound.rows,
                bound.ids,
                deadline_s,
                version=replica,
                bound=bound,
                done=done,
                caller=request.caller,
            )
        )

    def attach(self, wake: Wake) -> bool:
        """Inline compute: makes the calling thread, an event loop's, the one that computes; see SessionGroup.attach.
        False where sessions have threads: done() is called on those."""
        return self._group.attach(wake)

    def run_once(self) -> None:
        """Inline compute: the next batch, in this thread."""
        self._group.run_once()

    def process(self, request: PredictRequest) -> PredictReply:
        """Scores one request, waiting for it; raises FreshetError."""
        (reply,) = self.batch_process([request])
        if isinstance(reply, FreshetError):
            raise reply
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Scores requests together; each gets its own reply or its own error, in order."""
        group = self._group
        replies: list[PredictReply | FreshetError | None] = [None] * len(requests)
        # Counts by its length: append() is atomic, and done() comes from several threads.
        answered: list[None] = []
        finished = threading.Event()

        def done(i: int, reply: PredictReply | FreshetError) -> None:
            replies[i] = reply
            answered.append(None)
            if len(answered) == len(requests):
                finished.set()

        for i, request in enumerate(requests):
            try:
                self.submit(request, partial(done, i))
            except FreshetError as error:
                done(i, error)
        while requests and not finished.is_set():
            if group.driven:
                group.run_once(hurry=True)
            else:
                finished.wait(OWNER_GONE_S if group.inline else None)
        return [r for r in replies if r is not None]

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        """What a request would be answered by; raises NotFound or NotReady."""
        replica = self.replica(model, version, label)
        return replica.manifest, replica.generation
