"""Answer requests in place of the batcher: the seam of what does not score candidates.

Extensions offer answerers by the attribute of a request that asks for one (processor.ports.Extension.answerers). Such
requests are neither observed nor previewed, which compare scores of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.request import Done, PredictRequest
from freshet_serving.processor.versions.replica import Replica


class Answerer(ABC):
    """Answers the requests of a process that ask for it."""

    @abstractmethod
    def read_as(self, replica: Replica) -> Manifest:
        """Return how such a request to a version is read and answered; raise BadInput if the version answers none."""

    @abstractmethod
    def check(self, request: PredictRequest, replica: Replica) -> None:
        """Raise BadInput for what no version, or not this one, answers; called before a store is asked."""

    @abstractmethod
    def submit(
        self, request: PredictRequest, replica: Replica, deadline_s: float | None, limits: RequestLimits, done: Done
    ) -> None:
        """Validate and queue a request with its deadline on the clock, or None.

        done() is called once with the reply or error, on a thread of the answerer or the owner's. Raises BadInput,
        NotReady, Overloaded or TooLarge.
        """

    @abstractmethod
    def close(self) -> None:
        """Answer queued requests with NotReady and stop."""
