"""The server's gate: a new version scores the kept requests of the served one before it takes over.

It runs after a version is loaded and before it is offered, in the writer's thread, under the model's lock. The served
version goes on answering meanwhile; whether the new one may take over is decided by version_judge.

Invariants
- Judged is what takes over by itself: a version that is newer than the one that answers by default and that no person
  has named (by hand, by a label, by its number in the policy) or released. A start with nothing served, and a way back,
  are never held up.
- Not judged is what the policy chose when this server started, nor what it has served before: with "latest:2" or a
  label an older version is loaded first, and a restart would judge anew, without requests, what all others serve.
- But a server that ended before it let the newest version in knows by the scratch folder which one answered: that one
  is loaded first, and the newest is judged by the kept requests. If it cannot be loaded, or there is no such file, the
  newest is served, and said to be unjudged. So a start takes one more load and at most two times SCORE_S.
- A version that is out of line is not offered to a single request. Its hold is a record of the repository, for other
  servers and restarts; where no record can be written, the hold ends with the process.
- What the gate cannot judge it says so, and the model's `unjudged` decides. A failure to score is no evidence; for want
  of memory the version waits, and is judged with the next try.
- The judge learns from good changes only: when the next version comes and the one before is still what is served.

Costs: two copies of at most 256 rows, which the delta guard keeps anyway, scored once by each version, at most SCORE_S
each; buffers of one session while it lasts. In a worker pool one worker does it, beside its requests.

Rejected: scoring new requests by both versions for a while (a canary does; clients would see a bad version's errors).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import shortage
from freshet_serving.processor.extensions.guard.input_drift import input_shifts
from freshet_serving.processor.extensions.guard.kept_file import KeptFiles, ServedBefore
from freshet_serving.processor.extensions.guard.kept_requests import parse_requests, without_user
from freshet_serving.processor.extensions.guard.version_judge import GateVerdict, VersionJudge
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.policy import SERVE, ModelPolicy
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.watching import IN_LINE, LONG_S, UNJUDGED, Histogram
from freshet_serving.processor.watching.input_histogram import NOTE_OF_INPUTS, training_shifts

log = logging.getLogger("freshet.gate")

SCORE_S = 2.0
MOST_VERDICTS = 64
AT_START = GateVerdict(UNJUDGED, "start", "it is not known which version was served before this start")


class ScoredVersion(Protocol):
    @property
    def manifest(self) -> Manifest: ...

    @property
    def replicas(self) -> Replicas: ...


class VersionGate:
    """The gate of one model. Changed under its model's lock; `verdicts` is replaced as a whole and read by anyone.

    `input_drift` says by input how far recent requests are from the rows that the version was trained on, or, where its
    notes do not say, from those that the version before was sent.
    """

    def __init__(
        self, model: str, policy: Callable[[], ModelPolicy], clock: Clock, kept_files: KeptFiles | None = None
    ) -> None:
        """Start without any knowledge of good changes; requests are kept over a restart only with `kept_files`."""
        self._model, self._policy, self._clock, self._kept_files = model, policy, clock, kept_files
        self._judge = VersionJudge()
        self.verdicts: Mapping[int, GateVerdict] = {}
        self.input_drift: Mapping[str, float] = {}
        self._reference = b""
        # Root hashes of versions that are not judged again; None before the start.
        self._known: dict[int, str] | None = None
        # Held while requests are copied, so that what was read before an erasure is not written after it.
        self._copying = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.judge_s = Histogram(LONG_S)
        KEEPERS.add(self)

    @property
    def judges(self) -> bool:
        """True if versions are judged at all: as long as the delta guard is not off."""
        return self._policy().delta_guard.mode != OFF

    def begin(self, chosen: Collection[int], others: Collection[int], root_of: Callable[[int], str]) -> int:
        """Note the versions that are chosen when the server starts; does nothing after that.

        Returns the version to load first, by which the newest is judged, of those that may be served instead of it; 0
        for none.
        """
        if self._known is not None:
            return 0
        self._known = roots = {number: root_of(number) for number in chosen}
        newest = max(roots, default=0)
        if not self.judges or not any(number < newest for number in others):
            return 0
        served = self._kept_files.served(self._model) if self._kept_files is not None else None
        if served is None:
            self.verdicts = {newest: AT_START}
            log.info("%s version %d is unjudged (start): %s", self._model, newest, AT_START.reason)
            return 0
        version = served.version
        if version >= newest or version not in others or root_of(version) != served.roots.get(version):
            return 0
        self._known = {number: root for number, root in roots.items() if served.roots.get(number) == root}
        return 0 if newest in self._known else version

    def let_in(self, number: int, root: str) -> None:
        roots = {**(self._known or {}), number: root}
        self._known = dict(sorted(roots.items())[-MOST_VERDICTS:])

    def knows(self, number: int, root: str) -> bool:
        """Return True for a version that was chosen when the server started, or has been served."""
        return (self._known or {}).get(number) == root

    def check(self, before: ScoredVersion, after: ScoredVersion) -> str:
        """Judge a version that is about to take over; return why it must be held, "" if it may be served.

        Raises NotReady for want of memory.
        """
        verdict = self.judge(before, after)
        if verdict.outcome == UNJUDGED:
            return "" if self._policy().unjudged == SERVE else f"not judged: {verdict.reason}"
        return verdict.reason

    def judge(self, before: ScoredVersion, after: ScoredVersion) -> GateVerdict:
        """Judge a new version, not offered yet, against the one that answers by default; raises as check() does."""
        began_s, number = self._clock.now_s(), after.manifest.version
        self._learn(before.manifest.version)
        try:
            verdict = self._scored(before, after)
        except Exception as error:
            if (short := shortage(error)) is not None:
                raise short from error
            log.warning("cannot judge %s version %d: %s", self._model, number, error)
            verdict = GateVerdict(UNJUDGED, "", "the kept requests could not be scored; see the server's log")
        self.judge_s.observe(self._clock.now_s() - began_s)
        self.outcomes[verdict.outcome] += 1
        newest = sorted({**self.verdicts, number: verdict}.items())[-MOST_VERDICTS:]
        self.verdicts = dict(newest)
        level = {IN_LINE: logging.INFO, UNJUDGED: logging.WARNING}.get(verdict.outcome, logging.ERROR)
        why = f": {verdict.reason}" if verdict.reason else ""
        log.log(level, "%s version %d: %s%s", self._model, number, verdict.outcome, why)
        return verdict

    def took_over(self, before: ScoredVersion | None, after: ScoredVersion) -> None:
        """Give a version that is served now the kept requests of the one before, until it has enough of its own.

        `before` is None at a start, which goes by the scratch folder.
        """
        try:
            with self._copying:
                requests = b"" if before is None else before.replicas.kept()
                if before is None and self._kept_files is not None:
                    requests, learned = self._kept_files.read(self._model, after.manifest.inputs)
                    self._judge.recall(learned)
                if requests:
                    self._reference = requests
                    after.replicas.remember(requests)
        except Exception as error:
            log.warning("cannot give %s the requests that are kept: %s", self._model, error)

    def keep(self, version: ScoredVersion) -> None:
        """Compare the kept requests of a version with those before it, and write them to the scratch folder."""
        try:
            with self._copying:
                self._keep(version)
        except Exception as error:
            log.warning("cannot read the kept requests of %s: %s", self._model, error)

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        """Forget the kept requests of a user, those on disk too (Keeper.erase_user)."""
        if user.model != self._model:
            return {}
        with self._copying:
            self._reference, erased = without_user(self._reference, user)
            if self._kept_files is not None:
                erased += self._kept_files.erase(user)
        return {"kept_requests": erased}

    def _keep(self, version: ScoredVersion) -> None:
        if requests := version.replicas.kept():
            of_training = version.manifest.notes.get(NOTE_OF_INPUTS)
            if of_training or self._reference:
                now = _inputs(requests)
                before = input_shifts(_inputs(self._reference), now) if self._reference else {}
                self.input_drift = {**before, **training_shifts(of_training, now)}
            if self._kept_files is not None:
                served = ServedBefore(version.manifest.version, self._known or {})
                self._kept_files.write(self._model, version.manifest.inputs, requests, self._judge.to_json(), served)

    def _learn(self, served: int) -> None:
        if (verdict := self.verdicts.get(served)) is not None:
            if verdict.outcome != UNJUDGED:
                self._judge.learn(verdict.figures)
            self.verdicts = {number: reason for number, reason in self.verdicts.items() if number != served}

    def _scored(self, before: ScoredVersion, after: ScoredVersion) -> GateVerdict:
        requests = before.replicas.kept()
        if not requests:
            return GateVerdict(UNJUDGED, "", "no requests of the served version are kept yet")
        old = before.replicas.score(requests, SCORE_S)
        new = after.replicas.score(requests, SCORE_S) if old is not None else None
        if old is None or new is None:
            return GateVerdict(UNJUDGED, "", "its rows are in a row store, or no process could score the kept requests")
        return self._judge.judge(old, new)


def _inputs(requests: bytes) -> list[Mapping[str, Column]]:
    return [request.inputs for request in parse_requests(requests)]
