"""Accept requests and deliver replies: the entry point of every process that answers predictions.

A request is validated in the caller's thread and computed by the SessionGroup. Thread-safe.

Invariants
- A request finds its replica in one mapping, by model (`_table`), which the host of this process or the supervisor (by
  a message) pushes. It is never edited: update_routes() replaces it by one store, one caller at a time, so that older
  routes do not replace newer ones.
- A call reads the mapping once: version, label, key, input and limits are judged by the same routes. A request that was
  read for a replica (select_replica()) and submitted after a change keeps that replica, even if it has been unloaded.
- A replica that a request holds stays whole: nothing of it is freed before the last such request. A version is closed
  only after routes without it have been pushed, and opened before routes name it.
- The turns of requests without a key are a sequence of the process (processor.versions.traffic), not of the routes.
- After refuse(), no request is routed, whatever is pushed later.

Costs: a push makes one entry for each model, with its session group; a request looks up one.

Rejected: asking the host for a model, the model for its routes, and the version for its replica (a request then reads
what four owners change, and a worker needs a second way); a lock (requests would wait for pushes).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, first_value
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.features.input_reader import with_blank_row
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.repository import unknown_model
from freshet_serving.processor.running.run_limit import RunEnds, TimeLimit
from freshet_serving.processor.sessions.group import Post, SessionGroup, Wake
from freshet_serving.processor.sessions.observers import Observers
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.request import (
    Done,
    PredictReply,
    PredictRequest,
    Work,
    without_rows,
    without_unknown,
)
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes, VersionStatus

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import KeptUsers
    from freshet_serving.processor.sessions.answerer import Answerer

# How often a thread that waits for an inline reply checks that the owner can still compute it.
OWNER_GONE_S = 0.05
LONGEST_STAGE_S = 10.0
"""Seconds that the stage of an imported model may take for a request without a deadline."""
MAX_SHOWN_NBYTES = 1 << 20
"""Most bytes of entity records kept for a client that asks for values: more than a reply's header holds."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The routes and limits of requests for one model; `sticky_input` is "" where no input decides the split."""

    routes: Routes[Replica]
    limits: RequestLimits
    sticky_input: str
    group: SessionGroup


class Predictor:
    """Answers requests by the routes that were pushed last, and by answerers those with their attribute.

    `users` are the users whose inputs this process caches; None if it caches none.
    """

    def __init__(
        self, groups: Groups, clock: Clock, limits: RequestLimits = DEFAULTS, users: KeptUsers | None = None
    ) -> None:
        """Create a predictor without a model; `limits` are for models that have none of their own."""
        self.groups, self._clock, self._limits = groups, clock, limits
        self.users = users
        self._table: Mapping[str, ModelRoute] = {}
        self._gone = ModelRoute(Routes(""), limits, "", groups.of(""))
        # What an owner drives, if there is such a group.
        self._inline = groups.inline
        # Why no request is answered any more; "" while they are.
        self._refusal = ""
        self.observers = Observers(groups, clock)
        self.answerers: Mapping[str, Answerer] = {
            attribute: create(groups, clock) for attribute, create in ENGINE.offers("answerers").items()
        }
        self._ends = RunEnds(clock)

    def update_routes(self, routes: Mapping[str, Routes[Replica]]) -> None:
        """Replace the routes of all models; called by one thread at a time."""
        table = {model: self._route_of(model_routes) for model, model_routes in routes.items()}
        self._table = {} if self._refusal else table
        self.observers.follow(routes)

    def refuse(self, reason: str) -> None:
        """Raise NotReady for all further requests, with the first reason; not during update_routes()."""
        self._refusal, self._table = self._refusal or reason, {}

    def close(self) -> None:
        """Answer queued requests, then stop observers and sessions."""
        self.observers.close()
        for answerer in self.answerers.values():
            answerer.close()
        self.groups.close()

    def answerer(self, attribute: str, subject: str = "") -> Answerer:
        """Return what answers requests with an attribute; raise BadInput, which calls it `subject`, if nothing does."""
        answerer = self.answerers.get(attribute)
        if answerer is None:
            raise missing(subject or attribute, attribute)
        return answerer

    def models(self) -> list[str]:
        return sorted(self._table)

    def status(self, model: str) -> list[VersionStatus]:
        """Return the status of a model's versions, newest first; raise NotFound."""
        return self._find(model).routes.status()

    def limits(self, model: str) -> RequestLimits:
        """Return the limits of a request for a model, whether or not the model exists."""
        return self._table.get(model, self._gone).limits

    def replica(self, model: str, version: int | None = None, label: str | None = None) -> Replica:
        """Return the replica that represents a model where traffic is not split; raise NotFound or NotReady."""
        return self._find(model).routes.pick(version, label)

    def route(
        self, model: str, version: int | None = None, label: str | None = None, key: bytes | None = None
    ) -> Replica:
        """Return the replica that answers a request; raise NotFound or NotReady.

        Requests with the same sticky key are answered by one version as long as the split stays.
        """
        return self._find(model).routes.route(version, label, key)

    def select_replica(
        self,
        model: str,
        version: int | None,
        label: str | None,
        timeout_s: float | None,
        key: bytes | None = None,
        waited_s: float = 0.0,
        sender: str = "",
    ) -> Replica:
        """Find the replica to read a request for and submit it with. Costs a fraction of reading the request.

        Args:
            timeout_s: Seconds that the request may still take; None for any time.
            waited_s: Seconds that it has waited to be read.
            sender: Name of the API key that sent it; "" where there are none.

        Raises:
            NotFound: There is none.
            NotReady: It is loading.
            Overloaded: submit() would refuse a request like those before it.
        """
        replica = self.route(model, version, label, key)
        self.check_room(model, timeout_s, waited_s, sender)
        return replica

    def check_room(self, model: str, timeout_s: float | None, waited_s: float = 0.0, sender: str = "") -> None:
        """Raise Overloaded if there is no room for a request like the last ones; arguments as of select_replica()."""
        self._table.get(model, self._gone).group.check_room(timeout_s, waited_s, model, sender)

    def fill_from_memory(self, request: PredictRequest, replica: Replica) -> bool:
        """Complete a request's inputs without waiting; False if a store would have to be asked. Raises BadInput."""
        if request.user_call is not None:
            from freshet_serving.processor.sessions.user_requests import complete

            completed = complete(request, replica, self.users)
            if completed is not None and not completed.computes:
                return True
        if replica.lookup is None or with_blank_row(replica.manifest, request.inputs) is not None:
            return True
        left_out = replica.lookup.find(request.inputs)
        filled = replica.lookup.peek(request.inputs, left_out)
        if filled is None:
            request.left_out = left_out
            return False
        request.inputs, request.filled = filled.inputs, filled
        return True

    def submit(self, request: PredictRequest, done: Done, replica: Replica | None = None) -> None:
        """Validate and queue a request.

        Waits for an online store if the request leaves out inputs that only a store has, unless fill_from_memory() has
        returned True for it.

        Args:
            done: Called once with the reply or error, on a session's thread or the owner's; it must not block.
            replica: The result of select_replica() for the request, if it was called.
        """
        if replica is None:
            route = self._find(request.model)
            replica = route.routes.route(request.version, request.label, request.key)
        else:
            # Its model may have gone since.
            route = self._table.get(request.model, self._gone)
        completed = None
        if request.user_call is not None:
            # Loaded with the first such request.
            from freshet_serving.processor.sessions import user_requests

            completed = user_requests.complete(request, replica, self.users)
            done = user_requests.released_before(request, self.users, done)
            if completed is not None and not completed.computes:
                route.group.deliver(done, user_requests.empty_reply(replica, request.model))
                return
        if route.sticky_input:
            replica = _by_input(route, request) or replica
        deadline_s = None if request.timeout_s is None else self._clock.now_s() + request.timeout_s
        answerer = None
        if request.top_items:
            answerer = self.answerer("top_items")
            answerer.check(request, replica)
        if replica.lookup is not None and request.filled is None:
            if (blank := with_blank_row(replica.manifest, request.inputs)) is not None:
                self._submit_none(request, blank, replica, route, deadline_s, done)
                return
            end_s = math.inf if deadline_s is None else deadline_s
            filled = replica.lookup.fill(request.inputs, end_s, request.left_out)
            request.inputs, request.filled = filled.inputs, filled
        if completed is not None and not completed.scores:
            blank = user_requests.with_blank_candidates(replica, request.inputs)
            self._submit_none(request, blank, replica, route, deadline_s, done)
            return
        if answerer is not None:
            answerer.submit(request, replica, deadline_s, route.limits, done)
            return
        limit = None
        if replica.plan.stage is not None:
            last_s = self._clock.now_s() + LONGEST_STAGE_S
            limit = TimeLimit(self._ends, last_s if deadline_s is None else min(deadline_s, last_s))
        try:
            bound = replica.plan.bind_inputs(request.inputs, route.limits, limit)
        except BadInput:
            # Asked only here: requests with candidates should not pay for it.
            if (blank := with_blank_row(replica.manifest, request.inputs)) is None:
                raise
            self._submit_none(request, blank, replica, route, deadline_s, done)
            return
        if replica.sample.wanted:
            # A preview reads records of a state that is not served: it must not write the flags of this reply.
            replica.sample.take(bound.without_flags(), request.inputs)
        if request.shows_features and bound.used is not None:
            request.used = bound.used
            if bound.used.nbytes <= MAX_SHOWN_NBYTES:
                bound.used.keep()
        work_bound, oldest = bound, route.routes.traffic.users
        if oldest is not None:
            from freshet_serving.processor.features.user_bounds import UserBounds
            from freshet_serving.processor.sessions.user_requests import with_user_step

            bounds = UserBounds(oldest)
            work_bound, done = bound._replace(user_bounds=bounds), with_user_step(bounds, done)
        if bound.unknown:
            # Before the observers, which compare and record whole replies.
            done = without_unknown(bound, done)
        for observe in self.observers.watching:
            done = observe(request, replica, bound, done)
        route.group.enqueue(
            Work(bound.rows, bound.ids, deadline_s, replica=replica, bound=work_bound, done=done,
                 sender=request.sender)
        )  # fmt: skip

    def _submit_none(
        self,
        request: PredictRequest,
        blank: Mapping[str, Column],
        replica: Replica,
        route: ModelRoute,
        deadline_s: float | None,
        done: Done,
    ) -> None:
        """Queue a request for no candidates: it is computed as one blank row, which nobody else sees."""
        bound, done = replica.plan.bind_inputs(blank, route.limits), without_rows(done)
        if (oldest := route.routes.traffic.users) is not None and oldest.rounded:
            from freshet_serving.processor.features.user_bounds import UserBounds

            bound = bound._replace(user_bounds=UserBounds(oldest).exact())
        route.group.enqueue(
            Work(bound.rows, bound.ids, deadline_s, replica=replica, bound=bound, done=done,
                 sender=request.sender)
        )  # fmt: skip

    def set_owner(self, wake: Wake, post: Post) -> bool:
        """Make the calling thread the owner that computes inline (SessionGroup.set_owner); False if no group does."""
        return self._inline is not None and self._inline.set_owner(wake, post)

    def run_once(self) -> None:
        if self._inline is not None:
            self._inline.run_once()

    def process(self, request: PredictRequest) -> PredictReply:
        """Score one request and wait for its reply; raises FreshetError."""
        (reply,) = self.batch_process([request])
        if isinstance(reply, FreshetError):
            raise reply
        return reply

    def batch_process(self, requests: Sequence[PredictRequest]) -> list[PredictReply | FreshetError]:
        """Score requests together and return a reply or an error for each, in order."""
        inline = self._inline
        replies: list[PredictReply | FreshetError | None] = [None] * len(requests)
        # The list's length is the counter: append() is atomic, and done() comes from several threads.
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
                    # The rest is computed by other threads, which answer it.
                    finished.wait(OWNER_GONE_S)
            else:
                finished.wait(OWNER_GONE_S if inline is not None else None)
        return [r for r in replies if r is not None]

    def manifest(self, model: str, version: int | None = None, label: str | None = None) -> tuple[Manifest, Generation]:
        """Return the manifest and the generation that would answer a request; raise NotFound or NotReady."""
        replica = self.replica(model, version, label)
        return replica.manifest, replica.generation

    def _find(self, model: str) -> ModelRoute:
        table = self._table
        route = table.get(model)
        if route is None:
            if self._refusal:
                raise NotReady(self._refusal)
            raise unknown_model(model, table)
        return route

    def _route_of(self, routes: Routes[Replica]) -> ModelRoute:
        traffic = routes.traffic
        limits = self._limits.over(traffic.limits) if traffic.limits else self._limits
        sticky_input = traffic.sticky_input if traffic.split is not None else ""
        return ModelRoute(routes, limits, sticky_input, self.groups.of(routes.model))


def _by_input(route: ModelRoute, request: PredictRequest) -> Replica | None:
    """Return the replica chosen by the first value of the route's sticky input, unless the request names what to use.

    Versions of a split have the same inputs, so a request read for one can be bound to another.
    """
    if request.version is not None or request.label is not None or request.key is not None:
        return None
    key = first_value(request.inputs.get(route.sticky_input))
    return None if key is None else route.routes.route(key=key)
