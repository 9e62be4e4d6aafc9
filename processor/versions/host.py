"""The models of a repository and their one writer: what is loaded and changed, whoever answers requests.

Changes run in the caller's thread under the model's lock and never block a request; a model that takes its time keeps
nobody but itself waiting (processor.versions.poll_rounds). Once a second, and more often while a delta is watched, a
thread looks at what has been counted, over all processes that answer, takes out canaries that are bad and has deltas
taken back that are (look()); another looks at the files that are served from where they lie, and ends versions whose
files are damaged (examine()).

All threads that changes need stand by from the start (processor.standby_thread): where memory is short none could be
had. A change that has held its model's lock for a minute is a line in the log and a metric, and the host is not ready
until it has ended: what is served is right, but nothing new can come. Nothing here waits for it: not readiness, not
metrics, not close().
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import CHANGES, SIZES, FolderWatch, Repository, VersionReader, listed
from freshet_serving.processor.standby_thread import PeriodicThread, StandbyThread
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.tables.remote.reader import RemoteStats, RemoteTables
from freshet_serving.processor.versions.change_results import ApplyResult, RollbackResult
from freshet_serving.processor.versions.failed_versions import FailureMessage, report
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.poll_rounds import PollRounds
from freshet_serving.processor.versions.readiness import LONG_S, Staleness, find_stale
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.routes import VersionStatus, find
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    DIVERGED,
    ON,
    WAITING,
    AutoRollback,
    CanaryEvidence,
    CanaryJudge,
    DeltaBounds,
    GroupStats,
    LabelSums,
    ShadowComparison,
    Sketch,
    Trend,
)

log = logging.getLogger("freshet.host")

LOOK_INTERVAL_S = 1.0
BEATS = 4
REST_S = 5.0
HELD_UP = f"a change has held up all others for more than {LONG_S:g} s"
CLOSE_S = 5.0
REACHED_WITHIN_S = 5.0
"""A repository that could not be asked for longer is out of reach."""


class ModelHost(ABC):
    """Every model of a repository, loaded and kept up to date. connect() says who answers by a version."""

    def __init__(
        self,
        repository: Repository,
        models: list[str] | None,
        undo_depth: int,
        clock: Clock,
        processes: int = 1,
        remote: RemoteTables | None = None,
        budgets: Budgets | None = None,
        policies: Mapping[str, ModelPolicy] | None = None,
        delta_guard: str = ON,
        max_staleness_s: float = 0.0,
    ) -> None:
        """models: the only ones to serve, or None. processes: how many may read a version. remote: where the rows of
        remote tables are. budgets: memory for the rows of tables. policies: by model, as configured. delta_guard: its
        mode (processor.watching.delta_guard) for models whose policy has no such section. max_staleness_s: beyond it
        nothing is ready; 0 for no bound."""
        self.repository = repository
        self._wanted, self._undo_depth, self._processes, self._clock = models, undo_depth, processes, clock
        self._root = FolderWatch(self.repository.root)
        self._models: dict[str, ServedModel] = {}
        # Folders without a version yet: the first one to come changes such a folder, not the root.
        self._empty: dict[str, FolderWatch] = {}
        self._changing = threading.Lock()
        # Makes a delta's file durable while its rows are staged; takes back deltas that turn out to be bad.
        self._beside, self._undoing = StandbyThread("freshet-keep"), StandbyThread("freshet-undo")
        for thread in (self._beside, self._undoing):
            thread.start()
        self._closed = False
        self._remote = remote
        self._budgets = budgets if budgets and budgets.nbytes else None
        self._policies = policies or {}
        guarded = DeltaBounds(mode=delta_guard)
        self._default = ModelPolicy(delta_guard=guarded, given=frozenset({"delta_guard"} if delta_guard != ON else ()))
        # When a model whose poll() went wrong is looked at again.
        self._resting: dict[str, float] = {}
        # Written by look() only, replaced whole: by model and version.
        self._canary_judges: dict[tuple[str, int], CanaryJudge] = {}
        self._trends: dict[tuple[str, int], Trend] = {}
        self._periodic_threads: list[PeriodicThread] = []
        self._beats = 0
        self._rounds = PollRounds(self._poll_model)
        self._max_staleness_s, self._told_unready = max_staleness_s, ""
        self._told_concerns: tuple[str, ...] = ()
        self._stuck = ""
        self._reached = False
        # Whether the first look at an object store has yet to come through.
        self._unseen = False
        self._expected = frozenset(models or ())
        # Of those, models that were refused and have not answered since: they keep the others from nobody.
        self._excused: frozenset[str] = frozenset()

    @abstractmethod
    def connect(self, version: ServedVersion) -> Replicas:
        """The replicas that are to answer by a version; raises FreshetError when its executables cannot be served."""

    @abstractmethod
    def group_stats(self) -> dict[str, GroupStats]:
        """The stats of every session group: what its sessions have done since the start, and what waits now."""

    @abstractmethod
    def resize(self, sessions: int, group: str | None = None) -> None:
        """So many sessions from now on, in one group or in every one; no request fails for it. Raises NotFound,
        BadInput."""

    @abstractmethod
    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """int64 [T, 2]: embedding lookups by a version, by table, and those of them that got the default row."""

    @abstractmethod
    def sketch(self, version: ServedVersion) -> Sketch:
        """The sketch of a version's batches, over all processes."""

    @abstractmethod
    def canary_evidence(self, canary: ServedVersion, baseline: ServedVersion) -> CanaryEvidence:
        """The evidence for and against a canary, over all processes."""

    @abstractmethod
    def shadow_comparison(self, version: ServedVersion) -> ShadowComparison | None:
        """A version's scores as a shadow, compared, over all processes; None where it is none."""

    @abstractmethod
    def remote_rows(self, version: ServedVersion) -> RemoteStats | None:
        """A version's reads of remote tables; None if it has none."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Everything a person would ask, JSON-able: versions, labels, generation, freshness, sessions, memory."""

    def close(self) -> None:
        """Later calls raise NotReady. A slice of work that is being done is waited for, but not for long: it may itself
        wait for a lock that nobody will let go."""
        self._closed = True
        self.repository.close()
        self._rounds.close()
        for thread in (self._beside, self._undoing):
            thread.close()
        for periodic_thread in self._periodic_threads:
            periodic_thread.close(0.0 if self._stuck else CLOSE_S)

    def refresh(self) -> None:  # noqa: B027
        """Has whoever answers requests report anew, before what they have counted is looked at."""

    def on_routes_changed(self) -> None:  # noqa: B027
        """Called when what answers a model's requests has changed, and in whose words."""

    def on_staleness_changed(self, stale: str) -> None:  # noqa: B027
        """Called when the line of `stale` has changed, or that of `stuck`, or `concerns`."""

    def models(self) -> list[str]:
        return sorted(self._models)

    @property
    def catalogue(self) -> Mapping[str, ServedModel]:
        """Every model that is known, by name, whether it serves or not; replaced whole, never edited."""
        return self._models

    def model(self, name: str) -> ServedModel:
        """The model of that name; raises NotFound, or NotReady once the host has closed."""
        if self._closed:
            raise NotReady("the processor is closed")
        return find(self._models, name)

    def status(self, model: str) -> list[VersionStatus]:
        """The status of each version of a model, newest first; raises NotFound."""
        return self.model(model).status()

    @property
    def ready(self) -> bool:
        """Whether every model that is expected answers, by what is not too old and can be changed."""
        return self.answering and not self.stale

    @property
    def answering(self) -> bool:
        """Whether every model that is expected answers: those that were named, or that were there at the start. One of
        which nothing can be read keeps nobody waiting; but where nothing answers at all, nothing is ready. One that is
        added later does not change it."""
        models, expected = self._models, self._expected
        answered = not expected or any(name in models and models[name].ready for name in expected)
        return not self._closed and answered and not self.pending_models and not self._unseen

    @property
    def stale(self) -> str:
        """Why what is served is too old, or is about to be because a change hangs, in one line; "" where it is not."""
        if self._stuck:
            return self._stuck
        found = find_stale(self._stalenesses(), self._max_staleness_s) if self._max_staleness_s else None
        return found.line(self._max_staleness_s) if found else ""

    @property
    def concerns(self) -> tuple[str, ...]:
        """What keeps something that is there from being served: a line of the repository, where it cannot be listed,
        and one for each version. It makes no server unready: a refused delta is refused by every replica, and what each
        serves is sound. Who would rather have no answer than an old one sets max_staleness_s."""
        repository = (concern,) if (concern := self.repository.concern()) else ()
        return repository + tuple(
            f"model {name!r} version {number}: {status.state}: {status.reason}"
            for name, model in sorted(self._models.items())
            for number in sorted(model.served)
            if (status := model.chain(number)) is not None and status.state in (WAITING, DIVERGED)
        )

    @property
    def stuck(self) -> bool:
        """Whether a change of a model has held its lock for too long, as of the last look."""
        return bool(self._stuck)

    @property
    def reachable(self) -> bool:
        """Whether the repository can be asked: the last look at it came through."""
        return self._reached

    def _stalenesses(self) -> Iterator[Staleness]:
        """Of every version that requests to an expected model come to without naming it."""
        for name in sorted(self._expected):
            if (model := self._models.get(name)) is not None:
                for number in model.routes.shares():
                    yield Staleness(name, number, model.staleness_s(number))

    @property
    def pending_models(self) -> list[str]:
        """The models that readiness waits for: expected, not answering, and not refused either."""
        models = self._models
        return sorted(n for n in self._expected - self._excused if n not in models or not models[n].ready)

    def load_all(self, strict: bool = False) -> None:
        """The first look at the repository. strict: raises why models that are there cannot be served."""
        try:
            events = self.poll()
        except NotReady as error:
            if not self.repository.remote:
                raise
            log.warning("%s; nobody knows yet what there is to serve", error)
            events, self._unseen = [], True
        self.expect(self._wanted or self._models)
        refused = [f"model {name!r} {model.refused}" for name, model in self._models.items() if model.refused]
        if refused and strict:
            raise BadInput(listed(refused, "; "))
        report(log, events)
        for name in sorted(self._policies.keys() - set(self.repository.models())) if not self._unseen else ():
            log.warning("model.%s: configured, but the repository has no such model yet", name)
        self.repository.follow()

    def expect(self, models: Iterable[str]) -> None:
        """Has readiness wait for these models too, until each of them answers or is refused."""
        with self._changing:
            more = frozenset(models)
            self._expected, self._excused = self._expected | more, self._excused - more
            self._excuse()

    def poll(self, patience_s: float | None = None) -> list[str]:
        """Looks at the repository once: loads new versions, applies new deltas; cheap when nothing changed.

        patience_s: how long the other models wait for one that takes its time (processor.versions.poll_rounds): what
        happens there is returned by a later call. None: as long as it takes.
        """
        with self._changing:
            if self._closed:
                return []
            if not self._periodic_threads:
                self._start_keepers()
            try:
                self._find_models()
            except NotReady:
                self._reached = False
                raise
            self._reached = self.repository.seen_s() < REACHED_WITHIN_S
            if self._unseen:
                self._unseen = False
                self._expected |= frozenset(self._wanted or self._models)
            names = list(self._models)
        if patience_s is None:
            events = [line for name in names for line in self._poll_model(name)]
        else:
            events = self._rounds.go(names, patience_s)
        with self._changing:
            self._excuse()
        return events

    def _find_models(self) -> None:
        """Takes note of models that have come or gone."""
        if self._root.changed():
            try:
                wanted, there = self._wanted, self.repository.models()
            except NotReady:
                self._root.again()
                raise
            gone = (self._models.keys() | self._expected) - set(there)
            if late := {name for name in gone if self._rounds.at_work(name)}:
                # What is loading may be served in a moment: it is asked again then.
                self._root.again()
            self._drop(gone - late)
            for name in there:
                if name not in self._models and (wanted is None or name in wanted):
                    self._empty.setdefault(name, FolderWatch(self.repository.root / name))
        for name, folder in list(self._empty.items()):
            if not folder.changed():
                continue
            try:
                if self.repository.versions(name):
                    self._models = self._models | {name: self._new_model(name)}
                    self.on_routes_changed()
                    del self._empty[name]
                elif not self.repository.uncommitted(name):
                    self._expected -= {name}.difference(self._wanted or ())
            except NotReady:
                folder.again()
                raise

    def _poll_model(self, name: str) -> list[str]:
        """One model's poll(). What goes wrong there is that model's alone, which rests a while then."""
        now_s, model = self._clock.now_s(), self._models.get(name)
        if model is None or now_s < self._resting.get(name, now_s):
            return []
        try:
            return model.poll()
        except Exception as error:
            self._resting[name] = now_s + REST_S
            why = " ".join(str(error).split()) or "no message"
            return [FailureMessage(f"{name}: {type(error).__name__}: {why}; next look in {REST_S:g} s")]

    def tell(self, model: str, status: VersionStatus) -> None:
        """Makes the state of a version that is not served known: one that is being made here, or could not be."""
        with self._changing:
            if not self._closed and model not in self._models:
                self._models = self._models | {model: self._new_model(model)}
                self._empty.pop(model, None)
            if model in self._models:
                self._models[model].tell(status)
                self._excuse()

    def apply_delta(self, model: str, data: bytes | bytearray | None = None, path: str | None = None) -> ApplyResult:
        """Serves a delta given as bytes, or as a path inside the repository; raises why it was refused."""
        served = self.model(model)
        if (data is None) == (path is None):
            raise BadInput("delta: either the file itself or a path wanted")
        return served.apply_bytes(data) if data is not None else served.apply_file(self.repository.resolve(str(path)))

    def rollback(self, model: str, generation: Generation, reason: str = "") -> RollbackResult:
        """Serves an earlier generation again, here and on every server of the repository; see ServedModel.rollback."""
        return self.model(model).rollback(generation, reason)

    def release_deltas(self, model: str, version: int | None = None, reason: str = "") -> Generation:
        """Serves what is held of a version (default: the newest), here and on every server of the repository; see
        ServedModel.release."""
        served = self.model(model)
        return served.release(served.pick(version).manifest.version, reason)

    def reject_deltas(self, model: str, version: int | None = None, reason: str = "") -> RollbackResult:
        """Undoes what is held of a version (default: the newest); see ServedModel.reject."""
        served = self.model(model)
        return served.reject(served.pick(version).manifest.version, reason)

    def calibrated(self, model: str, generation: Generation, evidence: LabelSums) -> None:
        """Labels have come of rows that a generation has scored: deltas that are off are taken back by them."""
        self.model(model).calibrated(generation, evidence)

    def load(self, model: str, version: int, by_hand: bool = True) -> None:
        """Loads a version beside those served. by_hand: it stays when a newer one comes."""
        self.model(model).load(version, by_hand)

    def unload(self, model: str, version: int) -> None:
        """Stops serving a version."""
        self.model(model).unload(version)

    def set_label(self, model: str, label: str, version: int) -> None:
        """Points a label at a version."""
        self.model(model).set_label(label, version)

    def set_policy(self, model: str, changes: Any) -> ModelPolicy:
        """See ServedModel.set_policy; returns the policy that counts now."""
        served = self.model(model)
        served.set_policy(changes)
        return served.policy

    def readmit(self, model: str, version: int) -> None:
        """Gives a version that was taken out its share of traffic again."""
        self.model(model).readmit(version)

    def look(self) -> None:
        """Judges every canary by the evidence, follows the scores of every version, and has what turns out to be bad
        of its newest deltas taken back. What goes wrong with one model keeps nobody from looking at the others."""
        now_s = self._clock.now_s()
        judges: dict[tuple[str, int], CanaryJudge] = {}
        trends: dict[tuple[str, int], Trend] = {}
        for name, model in self._models.items():
            try:
                judges |= self._judged(model, now_s)
                trends |= self._followed(model, now_s)
                self._watched(model, now_s)
            except Exception:
                log.exception("what has been counted of model %s could not be looked at", name)
        self._canary_judges, self._trends = judges, trends

    def examine(self, efforts: Sequence[int] = (SIZES, CHANGES)) -> list[str]:
        """Looks at every mapped file, with one effort after another (processor.repository.mapped_file), and serves no
        more what is damaged; returns what has happened. Waits for nobody who changes a model."""
        events: list[str] = []
        for effort in efforts:
            for name, model in self._models.items():
                try:
                    events += model.examine(effort)
                except Exception:
                    log.exception("the files of %s could not be looked at", name)
        return events

    @property
    def corruption_unloads(self) -> int:
        """How often a version was served no more because of a damaged file."""
        return sum(model.damaged.total() for model in self._models.values())

    def _judged(self, model: ServedModel, now_s: float) -> dict[tuple[str, int], CanaryJudge]:
        """Judges the model's canaries; their judges, to be asked again."""
        judges = {}
        for canary, baseline in model.routes.trials():
            key = model.name, canary.manifest.version
            judge = judges[key] = self._canary_judges.get(key) or CanaryJudge()
            verdict = judge.look(model.policy.guard, now_s, *self.canary_evidence(canary, baseline))
            if verdict is not None:
                log.error("%s version %d is taken out of the split: %s", *key, verdict.reason)
                model.eject(canary.manifest.version, f"{verdict.kind}: {verdict.reason}")
        return judges

    def _followed(self, model: ServedModel, now_s: float) -> dict[tuple[str, int], Trend]:
        """Follows the scores of the model's versions; their trends."""
        trends = {}
        for number, version in model.routes.served.items():
            trend = trends[model.name, number] = self.trend(model.name, number)
            trend.look(now_s, version.generation, self.sketch(version))
        return trends

    def _watched(self, model: ServedModel, now_s: float) -> None:
        """Watches what the newest deltas of the model's versions have come to."""
        for number, version in model.routes.served.items():
            verdict = model.watch(now_s, number, self.sketch(version))
            if verdict is not None:
                # A change of the model may be under way, and take its time: canaries do not wait for it.
                self._undoing.try_run_detached(partial(self._auto_rollback, model, verdict))

    def _auto_rollback(self, model: ServedModel, verdict: AutoRollback) -> None:
        try:
            for line in model.auto_rollback(verdict):
                log.error("%s", line)
        except Exception as error:
            log.error("%s %s could not be taken back: %s", model.name, verdict.bad, error)
            # It is asked for again all the time.
            time.sleep(REST_S)

    def trend(self, model: str, version: int) -> Trend:
        """The trend of a version's scores, how they have moved, as of the last look()."""
        return self._trends.get((model, version)) or Trend()

    def _excuse(self) -> None:
        """Settles whom readiness does not wait for. Another try, and another refusal, do not make it wait again."""
        there = [(name, self._models[name]) for name in self._expected if name in self._models]
        answering = {name for name, model in there if model.ready}
        # Without a state nothing of it is there any more.
        excused = (self._excused - answering) | {name for name, model in there if model.refused or not model.status()}
        if excused != self._excused:
            self._excused = excused
            self.on_routes_changed()

    def _drop(self, gone: Set[str]) -> None:
        """Forgets models whose folders have gone, unless they are still served from memory."""
        idle = {name for name in gone if name not in self._models or not self._models[name].ready}
        if idle:
            self._models = {name: model for name, model in self._models.items() if name not in idle}
            self._expected -= idle.difference(self._wanted or ())
            self.on_routes_changed()

    def _new_model(self, name: str) -> ServedModel:
        policy = self._policies.get(name, ModelPolicy()).over(self._default)
        return ServedModel(
            name, self.repository, self._load_version, self.connect, self._clock, self.on_routes_changed, policy
        )

    def _load_version(self, files: VersionReader) -> ServedVersion:
        # Asked before the version's files are: a store that is not ready costs no verification.
        remote = [t.table for t in self._remote.stored(files.manifest)] if self._remote else []
        return ServedVersion(files, self._undo_depth, self._clock, self._processes, remote, self._budgets, self._beside)

    def _start_keepers(self) -> None:
        self._periodic_threads = [
            PeriodicThread(self._look, LOOK_INTERVAL_S / BEATS, LOOK_INTERVAL_S / BEATS, "freshet-guard"),
            PeriodicThread(self._scrub, LOOK_INTERVAL_S, LOOK_INTERVAL_S, "freshet-files"),
        ]
        if self._budgets:
            self._periodic_threads.append(PeriodicThread(self._maintain))
        for periodic_thread in self._periodic_threads:
            periodic_thread.start()
        if self._closed:
            # close() may have come too early to see them.
            for periodic_thread in self._periodic_threads:
                periodic_thread.close()

    def _look(self) -> bool:
        """Looks once a second, and at once where something is served that is not known to be good."""
        self._beats += 1
        self._find_stuck()
        self._tell_stale()
        monitored = any(model.monitored for model in self._models.values())
        if monitored:
            self.refresh()
        if monitored or self._beats % BEATS == 0:
            self.look()
        return False

    def _find_stuck(self) -> None:
        """Looks whether a change of a model has held its lock for too long."""
        now_s = self._clock.now_s()
        held = {name: model.lock_watch.look(now_s) for name, model in self._models.items()}
        stuck = next((name for name, held_s in held.items() if held_s >= LONG_S), None)
        # The same words as long as it lasts: each change of them is a line in the log.
        self._stuck = f"model {stuck!r}: {HELD_UP}" if stuck else ""

    def _tell_stale(self) -> None:
        """Says once that what is served has become too old, or cannot be changed, and that it is not so any more; and
        how old, whoever asks; and what concerns there are."""
        line, told, concerns = self.stale, self._told_unready, self.concerns
        if line == told and concerns == self._told_concerns:
            return
        self._told_unready, self._told_concerns = line, concerns
        if line and not told:
            log.warning("not ready: %s", line)
        elif told and not line:
            held = told.endswith(HELD_UP)
            log.info("no change is held up any more" if held else "what is served is not too old any more")
        self.on_staleness_changed(line)

    def _scrub(self) -> bool:
        report(log, self.examine())
        return False

    def _maintain(self) -> bool:
        """One slice for every table that has a memory budget; the keeper's work."""
        busy = False
        for model in self._models.values():
            for version in model.served.values():
                try:
                    busy |= version.maintain()
                except FreshetError as error:
                    log.warning("tables of %s could not be tended: %s", model.name, error)
                except Exception:
                    log.exception("tables of %s could not be tended", model.name)
        return busy
