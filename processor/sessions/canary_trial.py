"""Trials of canaries: what is evidence for or against one, and how it is gathered. processor.watching.canary_judge
concludes.

Evidence is what canary and baseline make of the same rows, of requests that the split sent to the canary. So nobody who
asks chooses what one side is asked and not the other: not by a label or a version (such requests are no evidence), not
by a sticky key on the canary's side, not by numbers that no network bears, or that one bears just not.

Invariants
- A request counts when the split chose who answers it: it names neither version nor label, and is no shadow's copy.
- What the canary has not borne, an error that is not the client's or a score that is no number, counts once the
  baseline has borne the same rows. Scores are compared over a sample that both have scored.
- The baseline's opinion is asked after the reply has gone, on one thread a process with a session and a reader's word
  of its own (processor.versions.control), so no request waits for it. It takes at most SHARE of the time, busy or not:
  an overload must not keep a bad canary. What finds the queue full is no evidence.
- A request with a number FAR from the usual ones is no evidence: with patience somebody finds one that the one network
  just bears and the other does not. What is usual the requests say that were looked at; until there are USUAL of them
  nothing is concluded.
- A trial is of two replicas. When one of them is another, as after a version was built anew, counting begins anew.

Costs: nothing where no traffic is split, and nothing for the baseline's requests; for the canary's a closure and a look
at each score.

Refused: the counts of the baseline's own requests (who holds a key of the canary's side would choose the difference);
the baseline's opinion on every request (twice the work of a canary at 50 %).
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, nbytes_of
from freshet_serving.processor.errors import Expired, FreshetError
from freshet_serving.processor.features.plan import BoundRequest, address
from freshet_serving.processor.sessions.background_worker import MAX_ROWS, SETTLE_S, BackgroundWorker
from freshet_serving.processor.sessions.request import Done, Outputs, PredictReply, PredictRequest, Work
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.versions.control import TRIAL_READER
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.watching import CanaryEvidence, Sketch, StatsBlock, first_lost

Pair = tuple[Replica, Replica]
"""A canary and its baseline."""

MAX_SAMPLES, MAX_FAULTS = 8, 64
FAR, USUAL, MAX_USUAL = 1e6, 8, 256
SHARE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class PairedScores:
    """What both sides made of the same rows of a request: scores by output, or None for a failure. largest: number in
    it. fault: whether the canary has not borne it; else it is a sample."""

    largest: float
    fault: bool
    mine: Outputs | None
    theirs: Outputs | None


class CanaryTrial:
    """One canary's trial. mine: the canary's block; theirs: its baseline's; both by the canary's outputs."""

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
        """Counts a finding, and those before it, unless it is far from the usual ones."""
        self._usual.append(pair.largest)
        self._found.append(pair)
        if len(self._usual) >= USUAL:
            far = FAR * max(1.0, statistics.median(self._usual))
            for one in self._found:
                if one.largest <= far:
                    self._count(one)
            self._found.clear()

    def _count(self, pair: PairedScores) -> None:
        if pair.theirs is None:
            self.theirs.fail(not pair.fault)
        elif pair.mine is None:
            self.mine.fail(1)
        else:
            for n, name in enumerate(self.names):
                mine, theirs = pair.mine[name], pair.theirs.get(name)
                if theirs is None or theirs.shape != mine.shape:
                    continue
                if pair.fault:
                    self.mine.lose(n, int((~np.isfinite(mine) & np.isfinite(theirs)).sum()))
                else:
                    self.mine.note(n, mine)
                    self.theirs.note(n, theirs)
            self.theirs.done(not pair.fault)


@dataclass(frozen=True, slots=True, eq=False)
class CanarySample:
    """A request that a canary has answered, for the baseline to look at. outputs: the canary's, None where it failed.
    first: the row to look at from. fault: whether the canary has not borne it; else it is a sample."""

    trial: CanaryTrial
    inputs: Mapping[str, Column]
    nbytes: int
    outputs: Outputs | None
    first: int
    fault: bool


class CanaryTrials:
    """A tap of Predictor, and the thread behind it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trials: dict[Replica, CanaryTrial] = {}
        # Of what trials have counted: sessions' threads answer, and the thread of trials weighs.
        self._lock = threading.Lock()
        self._session = Session(TRIAL_READER, clock)
        self._pause_s = SETTLE_S
        self._worker: BackgroundWorker[CanarySample] = BackgroundWorker("freshet-trials", self._look)

    def update_traffic(self, pairs: Iterable[Pair]) -> None:
        """Who is on trial against whom; whenever that has changed."""
        trials = {}
        for canary, baseline in pairs:
            trial = self._trials.get(canary)
            trials[canary] = (
                trial if trial is not None and trial.baseline is baseline else CanaryTrial(canary, baseline)
            )
        self._trials = trials

    def evidence(self) -> dict[Pair, CanaryEvidence]:
        """All that has been gathered of who is on trial now."""
        with self._lock:
            return {(trial.canary, trial.baseline): trial.evidence for trial in self._trials.values()}

    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        """See Predictor.intercept."""
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
        """What waits is weighed no more."""
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
        """The baseline's opinion on a request."""
        trial, first = sample.trial, sample.first
        try:
            bound = trial.baseline.plan.bind_inputs(sample.inputs)
        except FreshetError:
            return
        rows, opinions = min(MAX_ROWS, bound.rows - first), list[PredictReply | FreshetError]()
        self._session.run(
            [Work(rows, bound.ids, replica=trial.baseline, bound=bound, done=opinions.append, first=first)],
        )
        (opinion,) = opinions
        if isinstance(opinion, FreshetError) and opinion.http_status < 500:
            return
        theirs = None if isinstance(opinion, FreshetError) else opinion.outputs
        mine = None
        if sample.outputs is not None:
            # Copies: they are slices of what a whole batch has scored.
            mine = {name: scores[first : first + rows].copy() for name, scores in sample.outputs.items()}
        with self._lock:
            trial.add_pair(PairedScores(trial.baseline.plan.largest(bound), sample.fault, mine, theirs))
