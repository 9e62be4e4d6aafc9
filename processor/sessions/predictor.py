"""Requests in, replies out: what every process that answers has, whether it loads models or is told of them.

A request is validated in the caller's thread and computed by the SessionGroup. Thread-safe.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import first_value
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.features.plan import BoundRequest
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.canary_trial import CanaryTrials, Pair
from freshet_serving.processor.sessions.group import Post, Wake
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.request import Done, PredictReply, PredictRequest, Work
from freshet_serving.processor.sessions.shadow import Shadow
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.traffic import Traffic
from freshet_serving.processor.watching import CanaryEvidence, ShadowComparison

# How often a thread that waits for an inline reply looks whether the owner is still there to compute it.
OWNER_GONE_S = 0.05


Interceptor = Callable[[PredictRequest, Replica, BoundRequest, Done], Done]
"""Sees every request on its way in; what it returns is called in the place of done. It must neither block nor raise."""


class Predictor(ABC):
    """Answers requests by the replicas that replica() picks."""

    def __init__(self, groups: Groups, clock: Clock, limits: RequestLimits = DEFAULTS) -> None:
        """limits: of a request, where its model has none of its own."""
        self.groups, self._clock, self._limits = groups, clock, limits
        self._own_limits: dict[str, RequestLimits] = {}
        # Models whose requests are split by the value of an input; nearly always none.
        self._by_input: dict[str, Callable[[PredictRequest], Replica | None]] = {}
        self._interceptors: tuple[Interceptor, ...] = ()
        self._shadow: Shadow | None = None
        self._trials: CanaryTrials | None = None

    def intercept(self, intercept: Interceptor) -> None:
        """Adds a tap, which requests pass from now on."""
        self._interceptors = (*self._interceptors, intercept)

    def update_traffic(
        self, traffic: Mapping[str, Traffic], shadows: Mapping[str, Replica], trials: Sequence[Pair]
    ) -> None:
        """The traffic of every model, the shadows of those that have one, and who is on trial, whenever they have
        changed: what submit() has to look at beyond route()."""
        self._own_limits = {model: self._limits.over(t.limits) for model, t in traffic.items() if t.limits}
        self._by_input = {
            model: partial(self._route_by_input, t.sticky_input)
            for model, t in traffic.items()
            if t.split is not None and t.sticky_input
        }
        if self._shadow is None and shadows:
            self._shadow = Shadow(self.groups, self._clock)
            self.intercept(self._shadow)
        if self._shadow is not None:
            self._shadow.update_traffic(
                {model: (replica, traffic[model].shadow_share) for model, replica in shadows.items()}
            )
        if self._trials is None and trials:
            self._trials = CanaryTrials(self._clock)
            self.intercept(self._trials)
        if self._trials is not None:
            self._trials.update_traffic(trials)

    def shadow_comparisons(self) -> dict[tuple[str, int], ShadowComparison]:
        """The shadows' snapshots, by model and version."""
        return self._shadow.shadow_comparisons() if self._shadow is not None else {}

    def evidence(self) -> dict[Pair, CanaryEvidence]:
        """What has been gathered of the canaries that are on trial."""
        return self._trials.evidence() if self._trials is not None else {}

    def close(self) -> None:
        """Answers what is queued, then ends shadow, trials and sessions."""
        for aside in (self._shadow, self._trials):
            if aside is not None:
                aside.close()
        self.groups.close()

    def limits(self, model: str) -> RequestLimits:
        """What a request for a model may cost, whether there is such a model or not."""
        return self._own_limits.get(model, self._limits)

    @abstractmethod
    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """The replica that stands for a model where traffic is not split; raises NotFound or NotReady."""

    @abstractmethod
    def route(
        self, model: str, version: int | None = None, label: str | None = None, key: bytes | None = None
    ) -> Replica:
        """The replica that answers a request; raises NotFound or NotReady. key: requests of one are answered by one
        version, as long as the split stays."""

    def select_replica(
        self,
        model: str,
        version: int | None,
        label: str | None,
        timeout_s: float | None,
        key: bytes | None = None,
        waited_s: float = 0.0,
    ) -> Replica:
        """Find the replica that a request is to be read for and submitted with. Costs a fraction of reading it.

        Args:
            model: The model's name.
            version: The version that is asked for; None for any.
            label: The label that is asked for; None for any.
            timeout_s: Seconds that the request may still take; None for any time.
            key: See route().
            waited_s: Seconds that it has waited to be read.

        Returns:
            The replica, for submit().

        Raises:
            NotFound: There is none.
            NotReady: It is loading.
            Overloaded: submit() would refuse a request like those before it.
        """
        replica = self.route(model, version, label, key)
        self.groups.of(model).check_room(timeout_s, waited_s)
        return replica

    def submit(self, request: PredictRequest, done: Done, replica: Replica | None = None) -> None:
        """Validates and queues; done() is called once, on a session's thread or the owner's, and must not block.
        replica: what select_replica() gave for the request, if it was asked."""
        if replica is None:
            replica = self.route(request.model, request.version, request.label, request.key)
        if self._by_input and request.model in self._by_input:
            replica = self._by_input[request.model](request) or replica
        bound = replica.plan.bind_inputs(request.inputs, self._own_limits.get(request.model, self._limits))
        if replica.sample.wanted:
            replica.sample.take(bound, request.inputs)
        for intercept in self._interceptors:
            done = intercept(request, replica, bound, done)
        deadline_s = None if request.timeout_s is None else self._clock.now_s() + request.timeout_s
        self.groups.of(request.model).enqueue(
            Work(bound.rows, bound.ids, deadline_s, replica=replica, bound=bound, done=done, caller=request.caller)
        )

    def _route_by_input(self, name: str, request: PredictRequest) -> Replica | None:
        """The replica that answers a request by the first value of an input; None where another thing says so, or it is
        not there. Versions of a split have the same inputs, so what was read for one can be bound to another."""
        if request.version is not None or request.label is not None or request.key is not None:
            return None
        key = first_value(request.inputs.get(name))
        return None if key is None else self.route(request.model, key=key)

    def set_owner(self, wake: Wake, post: Post) -> bool:
        """Inline compute: makes the calling thread, an event loop's, the one that computes; see SessionGroup.set_owner.
        False where sessions have threads: done() is called on those."""
        inline = self.groups.inline
        return inline is not None and inline.set_owner(wake, post)

    def run_once(self) -> None:
        """Inline compute: the next batch, in this thread."""
        inline = self.groups.inline
        if inline is not None:
            inline.run_once()

    def process(self, request: PredictRequest) -> PredictReply:
        """Scores one request, waiting for it; raises FreshetError."""
        (reply,) = self.batch_process([request])
        if isinstance(reply, FreshetError):
            raise reply
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Scores requests together; each gets its own reply or its own error, in order."""
        inline = self.groups.inline
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
            if inline is not None and inline.driven:
                if not inline.run_once(hurry=True):
                    # What is left is computed by others, who answer it.
                    finished.wait(OWNER_GONE_S)
            else:
                finished.wait(OWNER_GONE_S if inline is not None else None)
        return [r for r in replies if r is not None]

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        """The manifest and the generation that a request would be answered by; raises NotFound or NotReady."""
        replica = self.replica(model, version, label)
        return replica.manifest, replica.generation
