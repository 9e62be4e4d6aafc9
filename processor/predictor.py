"""Requests in, replies out: what every process that answers has, whether it loads models or is told of them.

A request is validated in the caller's thread and computed by the SessionGroup. Thread-safe.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from processor.clock import Clock
from processor.columns import Column
from processor.errors import FreshetError
from processor.generation import Generation
from processor.package.manifest import Manifest
from processor.replica import Replica
from processor.sessions import Answer, SessionGroup, Work


@dataclass(slots=True)
class PredictRequest:
    """inputs: by the manifest's names; rows of 1 are broadcast. version or label: which version, else the newest."""

    model: str
    inputs: Mapping[str, Column]
    version: int | None = None
    label: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class PredictReply:
    """outputs: float32 [rows, columns] by name, all of one generation."""

    outputs: dict[str, NDArray[np.float32]]
    generation: Generation
    model: str


class Predictor(ABC):
    """Answers requests by the replicas that replica() picks."""

    def __init__(self, group: SessionGroup, clock: Clock) -> None:
        self._group, self._clock = group, clock

    @abstractmethod
    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """What answers a request; raises NotFound or NotReady."""

    def submit(self, request: PredictRequest, done: Callable[[PredictReply | FreshetError], None]) -> None:
        """Validates and queues; done() is called once, on a session thread, and must not block."""
        replica = self.replica(request.model, request.version, request.label)
        bound = replica.plan.bind(request.inputs)
        deadline_s = None if request.timeout_s is None else self._clock.now_s() + request.timeout_s
        name = request.model

        def reply(answer: Answer | FreshetError) -> None:
            done(PredictReply(answer.outputs, answer.generation, name) if isinstance(answer, Answer) else answer)

        self._group.submit(Work(replica, bound, reply), deadline_s)

    def process(self, request: PredictRequest) -> PredictReply:
        """Scores one request, waiting for it; raises FreshetError."""
        (reply,) = self.batch_process([request])
        if isinstance(reply, FreshetError):
            raise reply
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Scores requests together; each gets its own reply or its own error, in order."""
        replies: list[PredictReply | FreshetError | None] = [None] * len(requests)
        pending = threading.Semaphore(0)
        queued = 0
        for i, request in enumerate(requests):

            def done(reply: PredictReply | FreshetError, i: int = i) -> None:
                replies[i] = reply
                pending.release()

            try:
                self.submit(request, done)
                queued += 1
            except FreshetError as error:
                replies[i] = error
        for _ in range(queued):
            pending.acquire()
        return [r for r in replies if r is not None]

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        """What a request would be answered by; raises NotFound or NotReady."""
        replica = self.replica(model, version, label)
        return replica.manifest, replica.generation
