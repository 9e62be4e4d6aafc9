"""Rank all items of a table for users: the best ids and scores, of one generation.

A request for the best items leaves the candidates out, or ranks these alone. Its users' vectors are computed as for
candidates, unless it asks for another source (asked_source); then the items' rows are scanned by their codes
(scanned_rows, row_ranking), all of them or those that count (chosen_items). Where the request says which ids count,
these rows are read and nothing is scanned.

Ownership. Each process has one thread for it, started with the first such request, with a session and a reader slot of
its own in every version (processor.versions.control). It holds a pin from before the users' vectors are computed until
the scan has ended. The codes are the version's writer's (row_codes), one copy for all processes.

Invariants
- Users' vectors, items' rows and what filters read are of one state, whose generation the reply names: no reply has an
  item that was removed or rolled back there, or whose record there does not pass the filter. Items' vectors of two
  towers may lag, and then the reply names their generation, too (item_vectors).
- No event loop and no session that answers other requests scans rows; the scan runs without the GIL.
- Every row of the table counts as an id for each user (`max_ids`), and once more for each CLAUSES_AN_ID clauses of a
  filter; so does every item of the reply. A scan ends early once each of its requests is beyond limit or deadline.
- At most MAX_QUEUED requests wait. Those for one version, with the same filter and source, share a scan, for up to
  SHARED_USERS users: reading a row takes longer than a product with it.
- Every request that was accepted is answered once, also when the processor closes.

Costs. The pin is held for the scan, a hundredth of a second for a million items. A delta that arrives meanwhile is
served to all other requests at once, but its call returns, and the next one is accepted, only when the pin is released.

Such requests are neither recorded nor given to shadows, canary trials and previews, which compare scores of rows.

Rejected: chunks in the sessions' queues (a model's batches would have two kinds of cost, and the event loop would scan
where it computes inline).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Strings, nbytes_of
from freshet_serving.processor.cores import on
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded, TooLarge
from freshet_serving.processor.extensions.top_items.asked_source import AskedSource, BoundUsers
from freshet_serving.processor.extensions.top_items.best_items import best_items
from freshet_serving.processor.extensions.top_items.chosen_items import ChosenItems, chosen_items
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.extensions.top_items.scanned_rows import ScannedRows
from freshet_serving.processor.extensions.top_items.section import ItemRanking, why_unranked
from freshet_serving.processor.extensions.top_items.successors import score_successors
from freshet_serving.processor.features.bound_request import NonFiniteInput
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import ITEM_IDS, SCORES, Manifest
from freshet_serving.processor.sessions.answerer import Answerer
from freshet_serving.processor.sessions.background_worker import BackgroundWorker
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.request import (
    MAX_TOP_ITEMS,
    Done,
    PredictReply,
    PredictRequest,
    Timing,
    Work,
    answer,
)
from freshet_serving.processor.sessions.session import Session, client_error
from freshet_serving.processor.versions.control import RANKING_READER
from freshet_serving.processor.versions.replica import Replica, State

MAX_QUEUED = 64
SHARED_USERS = 16
SMOOTHING = 1 / 4

Int64s = NDArray[np.int64]
Generations = tuple[Generation, Generation | None]
"""The one that was pinned, and the one that items' vectors are of where they lag."""


@dataclass(slots=True, eq=False, kw_only=True)
class RankingWork(Work):
    """A bound request for the k best items of each user, whose vector is computed of the items of a history."""

    ranking: ItemRanking
    k: int
    history: Sequence[Int64s]
    chosen: ChosenItems
    asked: AskedSource
    max_ids: int
    nbytes: int

    def problem(self, scanned: int, now_s: float) -> FreshetError | None:
        """Return why the request cannot be answered after so many rows of the scan; None if it can."""
        if scanned * (self.rows + self.chosen.cost) > self.max_ids:
            return _too_many(self.max_ids, "more", self.rows)
        if self.deadline_s is not None and now_s > self.deadline_s:
            return Expired("deadline: passed while items were ranked")
        return None


def _ranking_of(replica: Replica) -> ItemRanking:
    manifest = replica.manifest
    ranking = ItemRanking.of(manifest)
    if ranking is None:
        raise BadInput(
            f"top_items: model {manifest.model!r} version {manifest.version} cannot rank all items of a table: send "
            f"the items as candidates, or publish {_why_not(manifest)}"
        )
    if table := _row_store(replica, ranking.table):
        raise BadInput(f"top_items: expected a table in memory, got {table!r}, whose rows are in a row store")
    return ranking


def _why_not(manifest: Manifest) -> str:
    if why := why_unranked(manifest):
        return f"one whose items have vectors of their own ({why})"
    return (
        "a version of sasrec_next, hstu_next or two_tower, whose items are numbers, or strings that are the key of an "
        "entity with filters"
    )


def _row_store(replica: Replica, table: int) -> str:
    """Return the name of a table that is in a row store; "" if it is in memory."""
    return replica.manifest.tables[table].name if replica.remote is not None and replica.remote.holds(table) else ""


class RankingSession(Session):
    """The session that ranks items, on the ranker's own thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(RANKING_READER, clock)

    def rank(self, works: Sequence[RankingWork]) -> None:
        try:
            ranked, scanned, generations, timing = self._ranked(works)
        except Exception as error:
            if len(works) > 1:
                for work in works:
                    self.rank([work])
                return
            (work,) = works
            refused = work.replica.plan.non_finite_error(work.bound) if isinstance(error, NonFiniteInput) else None
            answer(work.done, refused or client_error(error))
            return
        at, now_s = 0, self._clock.now_s()
        for work in works:
            problem = work.problem(scanned, now_s)
            answer(work.done, problem or _reply(ranked[at : at + work.rows], work, generations, timing))
            at += work.rows

    def _ranked(self, works: Sequence[RankingWork]) -> tuple[list[RankedRows], int, Generations, Timing]:
        """Return the best items of every user, the number of rows scanned, their generations, and the timing.

        Of items whose ids are strings, `keys` are their texts.
        """
        replica = works[0].replica
        ranking, asked, rows, scanned, before = works[0].ranking, works[0].asked, sum([w.rows for w in works]), 0, 0
        results = {name: np.empty((rows, columns), np.float32) for name, columns in replica.outputs.items()}

        def proceed(rows_read: int) -> bool:
            nonlocal scanned
            scanned = before + rows_read
            now_s = self._clock.now_s()
            return any(work.problem(scanned, now_s) is None for work in works)

        state = replica.pin(self.number)
        try:
            if asked.computed:
                timing = self._compute(replica, state, works, rows, results, len(works))
            else:
                began_s = self._clock.now_s()
                timing = Timing(began_s, began_s, 0.0, 0.0, len(works), rows)
            vectors = results[ranking.output] if asked.computed else None
            if vectors is not None and not np.isfinite(vectors).all():
                raise FreshetError(f"{ranking.output}: the model computed numbers that are not finite")
            likes = [work.asked.like for work in works if work.asked.like is not None]
            scan = ScannedRows.of(ranking, asked.name, state, vectors, np.concatenate(likes) if likes else None, rows)
            most, table = max(work.k for work in works), scan.rows.table
            excluded = [items for work in works for items in work.chosen.excluded]
            successors = []
            if vectors is not None and ranking.successors is not None:
                histories = [items[-ranking.length :] for work in works for items in work.history]
                successors = [
                    score_successors(table, state.epoch, ranking.successors, *of_user)
                    for of_user in zip(histories, excluded, vectors, results[ranking.mixture])
                ]
            # A request with allowed items shares nothing.
            chosen = works[0].chosen
            asking = chosen.filter, chosen.allowed
            while True:
                ranked = best_items(scan.rows, scan.vectors, *asking, excluded, successors, most, proceed)
                gone, before = scan.gone(ranked), scanned
                if not any(map(len, gone)) or not proceed(0):
                    break
                # Rare: what ranks items for everybody is published with the items.
                excluded = [np.concatenate(both) for both in zip(excluded, gone)]
                most = max(most, min(2 * most, MAX_TOP_ITEMS))
            ranked = scan.scored(ranked)
            named = [_named(ranking, state, rows) for rows in ranked] if ranking.texts else []
            generation, of = state.generation, scan.generation
        finally:
            replica.unpin(self.number)
        ended_s = self._clock.now_s()
        sparse_s = timing.sparse_s + ended_s - timing.ended_s
        ids = named or [rows.keys for rows in ranked]
        best = [RankedRows(*both) for both in zip(ids, [rows.scores for rows in ranked])]
        return best, scanned, (generation, of), timing._replace(ended_s=ended_s, sparse_s=sparse_s)


class ItemRanker(Answerer):
    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups, self._clock = groups, clock
        self._session = RankingSession(clock)
        self._lock = threading.Lock()
        self._worker: BackgroundWorker[RankingWork] | None = None
        self._closed = False
        self._rankings: weakref.WeakKeyDictionary[Replica, ItemRanking] = weakref.WeakKeyDictionary()
        # Seconds of a scan, and whether one runs.
        self._usual_s: weakref.WeakKeyDictionary[Replica, float] = weakref.WeakKeyDictionary()
        self._busy = False

    def read_as(self, replica: Replica) -> Manifest:
        return self._ranking(replica).manifest

    def check(self, request: PredictRequest, replica: Replica) -> None:
        if not 1 <= request.top_items <= MAX_TOP_ITEMS:
            raise BadInput(f"top_items: expected 1 to {MAX_TOP_ITEMS}, got {request.top_items}")
        self._ranking(replica)

    def submit(
        self, request: PredictRequest, replica: Replica, deadline_s: float | None, limits: RequestLimits, done: Done
    ) -> None:
        ranking, k = self._ranking(replica), request.top_items
        asked = AskedSource.of(ranking, request.inputs)
        number = ranking.sources[asked.name].table if asked.name in ranking.sources else ranking.table
        if table := _row_store(replica, number):
            raise BadInput(f"source: expected a table in memory, got {table!r}, whose rows are in a row store")
        inputs, bound, history = BoundUsers.of(request.inputs, ranking, asked, replica.plan, replica.manifest, limits)
        asked = asked.spread(bound.rows)
        chosen = chosen_items(ranking, request.inputs, history, limits.max_ids, asked.like)
        if chosen.filter is not None and (table := _row_store(replica, chosen.filter.source.table)):
            raise BadInput(f"filter: expected a table in memory, got {table!r}, whose rows are in a row store")
        items = replica.manifest.tables[number].rows if chosen.allowed is None else 0
        if (bound.rows + chosen.cost) * items > limits.max_ids:
            raise _too_many(limits.max_ids, str(items), bound.rows)
        if bound.rows * k > limits.max_ids:
            raise TooLarge(f"max_ids: expected at most {limits.max_ids} items per reply, got {bound.rows} times {k}")
        group = self._groups.of(request.model)
        work = RankingWork(
            bound.rows, bound.ids, deadline_s, replica=replica, bound=bound, done=partial(group.deliver, done),
            ranking=ranking, k=k,
            history=history if asked.like is None else list(asked.like[:, None]),
            chosen=chosen, asked=asked, max_ids=limits.max_ids, nbytes=nbytes_of(inputs),
        )  # fmt: skip
        usual_s = self._usual_s.get(replica, 0.0)
        with self._lock:
            if self._closed:
                raise NotReady("the processor is closed")
            worker = self._worker = self._worker or BackgroundWorker("freshet-items", self._look)
            waits = usual_s if self._busy or worker.full(1) else 0.0
            if deadline_s is not None and self._clock.now_s() + waits + usual_s > deadline_s:
                raise Overloaded(
                    "queue: the request's time limit would pass while items are ranked", waits + usual_s, late=True
                )
            if not worker.offer(work, MAX_QUEUED):
                raise Overloaded(f"queue: {MAX_QUEUED} requests for the best items wait already", usual_s or 1.0)

    def close(self) -> None:
        """Answer queued requests with NotReady and stop the thread."""
        with self._lock:
            self._closed, worker = True, self._worker
        if worker is None:
            return
        worker.close()
        while (work := worker.take_if(lambda _: True)) is not None:
            answer(work.done, NotReady("the processor is closed"))

    def _ranking(self, replica: Replica) -> ItemRanking:
        """Return how a version ranks items, found out once for a replica; raise BadInput if it does not."""
        with self._lock:
            ranking = self._rankings.get(replica)
            if ranking is None:
                ranking = self._rankings[replica] = _ranking_of(replica)
            return ranking

    def _look(self) -> None:
        assert self._worker is not None, "it calls this"
        self._busy = True
        try:
            first = self._worker.take()
            works, users, replica = [first], first.rows, first.replica

            def shares(work: RankingWork) -> bool:
                alike = work.replica is replica and work.chosen.shared_by == first.chosen.shared_by is not None
                alike = alike and work.asked.name == first.asked.name
                return alike and users + work.rows <= SHARED_USERS

            while (work := self._worker.take_if(shares)) is not None:
                works.append(work)
                users += work.rows
            began_s = self._clock.now_s()
            in_time = []
            for work in works:
                problem = work.problem(0, began_s)
                if problem is None:
                    in_time.append(work)
                else:
                    answer(work.done, problem)
            if in_time:
                with on(self._groups.of(replica.manifest.model).options.all_cpus):
                    self._session.rank(in_time)
                took_s, usual_s = self._clock.now_s() - began_s, self._usual_s.get(replica)
                self._usual_s[replica] = took_s if usual_s is None else usual_s + SMOOTHING * (took_s - usual_s)
        finally:
            self._busy = False


def _named(ranking: ItemRanking, state: State, rows: RankedRows) -> NDArray[Any]:
    """Return the texts of items' ids, objects [n]; each has a record (ItemFilter.recorded)."""
    source = ranking.filtered
    assert source is not None, "items whose ids are strings have an entity"
    records, _ = source.read(state.tables[source.table], state.epoch, rows.keys)
    (column,) = source.unpack(records, [ranking.item]).values()
    assert isinstance(column, Strings)
    names = np.empty(len(column), object)
    names[:] = [text.decode(errors="replace") for text in column.tolist()]
    return names


def _too_many(max_ids: int, items: str, users: int) -> TooLarge:
    return TooLarge(
        f"max_ids: expected at most {max_ids} items to rank per request, over all users, got {items} for {users}; ask "
        "for fewer users at once, or raise the model's limit"
    )


def _reply(ranked: Sequence[RankedRows], work: RankingWork, generations: Generations, timing: Timing) -> PredictReply:
    """Return the reply to one request: as many items for each user as the one with the fewest has, at most k."""
    items = min([work.k, *(len(rows.keys) for rows in ranked)])
    kind = object if work.ranking.texts else np.int64
    ids, scores = np.empty((len(ranked), items), kind), np.empty((len(ranked), items), np.float32)
    for user, rows in enumerate(ranked):
        ids[user], scores[user] = rows.keys[:items], rows.scores[:items]
    generation, of = generations
    outputs, model = {ITEM_IDS: ids, SCORES: scores}, work.replica.manifest.model
    return PredictReply(outputs, generation, model, timing, item_generation=of, unfilled=work.k - items)
