"""Gather evidence for and against canaries; canary_judge draws the conclusions.

Canary and baseline are compared on the same rows, of requests that the split routed to the canary. So a client cannot
choose what only one side has to score: not by a label or a version, not by a sticky key on the canary's side, and not
by numbers that overflow every network, or that lie just beyond what one network can handle.

Invariants
- A request counts only if the split chose the version that answers it: it names neither version nor label and is not a
  shadow's copy.
- A fault of the canary (an error that is not the client's, or a score that is not finite) counts only if the baseline
  has handled the same rows. Scores are compared over a sample that both have scored.
- The baseline scores after the reply has been delivered, on one thread per process with its own session and reader slot
  (processor.versions.control), for at most SHARE of the time, whether the process is busy or not: an overload must not
  protect a bad canary. Samples that find the queue full are dropped.
- A request with a number more than FAR times the usual is no evidence: a patient client could find a number that one
  network just handles and the other does not. The usual size is the median over recent samples; nothing is counted
  until there are USUAL of them.
- A trial belongs to two replicas: if one of them is replaced, counting starts again.

Costs: nothing if no traffic is split, and nothing for the baseline's requests; for the canary's a closure and a scan of
the scores.

Rejected: counting the baseline's own requests (a client with a key on the canary's side could choose the difference);
scoring every request on the baseline (twice the work of a canary at 50 %).
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, nbytes_of
from freshet_serving.processor.errors import Expired, FreshetError
from freshet_serving.processor.extensions.trials.canary_judge import CanaryEvidence
from freshet_serving.processor.features.bound_request import BoundRequest, address
from freshet_serving.processor.sessions.background_worker import MAX_ROWS, SETTLE_S, BackgroundWorker
from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.request import Done, Outputs, PredictReply, PredictRequest, Work
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.versions.control import TRIAL_READER
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes
from freshet_serving.processor.watching import Sketch, StatsBlock, first_lost

CANARY = "canary"
"""Name of the observer, and of what ejects canaries."""
MAX_SAMPLES, MAX_FAULTS = 8, 64
FAR, USUAL, MAX_USUAL = 1e6, 8, 256
SHARE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class PairedScores:
    """Scores of both sides for the same rows of a request, None for one that failed; `fault`: it is no sample."""

    largest: float
    fault: bool
    mine: Outputs | None
    theirs: Outputs | None


class CanaryTrial:
    """One canary's trial: statistics of the canary and of its baseline, both with the canary's outputs."""

    def __init__(self, canary: Replica, baseline: Replica) -> None:
        self.canary, self.baseline = canary, baseline
        self.names = list(canary.outputs)
        self.mine, self.theirs = StatsBlock(len(self.names)), StatsBlock(len(self.names))
        self._usual: deque[float] = deque(maxlen=MAX_USUAL)
        self._found: list[PairedScores] = []

    @property
    def evidence(self) -> CanaryEvidence:
        count = len(self.names)
        return CanaryEvidence(Sketch.total(count, [self.theirs]), Sketch.total(count, [self.mine]))

    def add_pair(self, pair: PairedScores) -> None:
        """Count a pair and those kept before it, once the usual size is known and except those far from it."""
        self._usual.append(pair.largest)
        self._found.append(pair)
        if len(self._usual) >= USUAL:
            far = FAR * max(1.0, statistics.median(self._usual))
            for pair_found in self._found:
                if pair_found.largest <= far:
                    self._count(pair_found)
            self._found.clear()

    def _count(self, pair: PairedScores) -> None:
        if pair.theirs is None:
            self.theirs.fail(not pair.fault)
        elif pair.mine is None:
            self.mine.fail(1)
        else:
            for n, name in enumerate(self.names):
                canary, baseline = pair.mine[name], pair.theirs.get(name)
                if baseline is None or baseline.shape != canary.shape:
                    continue
                if pair.fault:
                    self.mine.lose(n, int((~np.isfinite(canary) & np.isfinite(baseline)).sum()))
                else:
                    self.mine.note(n, canary)
                    self.theirs.note(n, baseline)
            self.theirs.done(not pair.fault)


@dataclass(frozen=True, slots=True, eq=False)
class CanarySample:
    """A request that a canary has answered, queued for scoring on the baseline from row `first` on.

    It is a sample, or a fault; outputs are None if the canary failed.
    """

    trial: CanaryTrial
    inputs: Mapping[str, Column]
    nbytes: int
    outputs: Outputs | None
    first: int
    fault: bool


class CanaryTrials(Observer):
    """Observer that samples the requests of canaries, and the thread that scores them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trials: dict[Replica, CanaryTrial] = {}
        # Guards the trials' counts: sessions' threads record answers while the trials' thread records pairs.
        self._lock = threading.Lock()
        self._session = Session(TRIAL_READER, clock)
        self._pause_s = SETTLE_S
        self._worker: BackgroundWorker[CanarySample] = BackgroundWorker("freshet-trials", self._look)

    def follow(self, routes: Mapping[str, Routes[Replica]]) -> bool:
        trials = {}
        for canary, baseline in [pair for route in routes.values() for pair in route.trials()]:
            trial = self._trials.get(canary)
            trials[canary] = (
                trial if trial is not None and trial.baseline is baseline else CanaryTrial(canary, baseline)
            )
        self._trials = trials
        return bool(trials)

    def evidence(self) -> dict[tuple[Replica, ...], Any]:
        with self._lock:
            gathered = {(trial.canary, trial.baseline): trial.evidence for trial in self._trials.values()}
        return {pair: [side.to_json() for side in evidence] for pair, evidence in gathered.items()}

    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        """Wrap `done` to sample the canary's answer; return it unchanged for requests that are no evidence."""
        trial = self._trials.get(replica)
        if trial is None or request.version is not None or request.label is not None:
            return done
        inputs, rows = request.inputs, bound.rows

        def tried(result: PredictReply | FreshetError) -> None:
            done(result)
            if not isinstance(result, FreshetError):
                self._answered(trial, inputs, result.outputs, rows)
            elif result.http_status >= 500 and not isinstance(result, Expired):
                self._offer(trial, inputs, None, 0, fault=True)

        return tried

    def close(self) -> None:
        self._worker.close()

    def _answered(self, trial: CanaryTrial, inputs: Mapping[str, Column], outputs: Outputs, rows: int) -> None:
        with self._lock:
            trial.mine.done(1, rows)
        for scores in outputs.values():
            lost = first_lost(address(scores), scores.size)
            if lost >= 0:
                self._offer(trial, inputs, outputs, lost // scores.shape[1], fault=True)
                return
        self._offer(trial, inputs, outputs, 0, fault=False)

    def _offer(
        self, trial: CanaryTrial, inputs: Mapping[str, Column], outputs: Outputs | None, first: int, fault: bool
    ) -> None:
        most = MAX_FAULTS if fault else MAX_SAMPLES
        if not self._worker.full(most):
            self._worker.offer(CanarySample(trial, inputs, nbytes_of(inputs), outputs, first, fault), most)

    def _look(self) -> None:
        if self._worker.rest(self._pause_s):
            return
        began_s = self._clock.now_s()
        try:
            self._score_on_baseline(self._worker.take())
        finally:
            self._pause_s = max(SETTLE_S, (self._clock.now_s() - began_s) * (1 / SHARE - 1))

    def _score_on_baseline(self, sample: CanarySample) -> None:
        trial, first = sample.trial, sample.first
        try:
            bound = trial.baseline.plan.bind_inputs(sample.inputs)
        except FreshetError:
            return
        rows, opinions = min(MAX_ROWS, bound.rows - first), list[PredictReply | FreshetError]()
        self._session.run(
            [Work(rows, bound.ids, replica=trial.baseline, bound=bound, done=opinions.append, first=first)]
        )
        (opinion,) = opinions
        if isinstance(opinion, FreshetError) and opinion.http_status < 500:
            return
        baseline = None if isinstance(opinion, FreshetError) else opinion.outputs
        canary = None
        if sample.outputs is not None:
            # Copy: these are slices of the scores of a whole batch.
            canary = {name: scores[first : first + rows].copy() for name, scores in sample.outputs.items()}
        with self._lock:
            trial.add_pair(PairedScores(trial.baseline.plan.largest(bound), sample.fault, canary, baseline))
