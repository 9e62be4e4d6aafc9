"""All models of a repository in one process: load versions, apply changes and report readiness. The only writer.

Changes run in the caller's thread under the model's lock and never block a request. A slow model delays no other
(processor.versions.poll_rounds). A thread evaluates the statistics of all processes once a second, more often while a
delta is monitored: it ejects bad canaries and has bad deltas rolled back (processor.versions.score_watch). Another
thread checks the memory-mapped files and unloads versions whose files are damaged (examine()).

All threads that changes need are started in advance (processor.standby_thread): none could be started when memory is
short. A change that has held its model's lock for a minute is reported by a log line and a metric, and the host is
unready until it ends: what is served is correct, but nothing new can arrive. Neither readiness, metrics nor close()
wait for it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.generation import ON, STRICT, Generation
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.repository import CHANGES, SIZES, FolderWatch, Repository, VersionReader, listed
from freshet_serving.processor.standby_thread import StandbyThread
from freshet_serving.processor.versions.changes import ApplyResult, FailureMessage, RollbackResult, report
from freshet_serving.processor.versions.host_readiness import HostReadiness
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.routes import Routes, VersionStatus, find
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.upkeep import CLOSE_S, Trainers, Upkeep
from freshet_serving.processor.watching import DeltaBounds, GroupStats, LabelSums, Sketch

if TYPE_CHECKING:
    from freshet_serving.processor.tables.budgets import Budgets
    from freshet_serving.processor.tables.remote_rows import RemoteTables
    from freshet_serving.processor.versions.erasure import Erased, ErasedUser
    from freshet_serving.processor.versions.poll_rounds import PollRounds
    from freshet_serving.processor.versions.score_watch import ScoreWatch

log = logging.getLogger("freshet.host")

REST_S = 5.0
CLOSED = "the processor is closed"
REACHED_WITHIN_S = 5.0
"""A repository that did not respond for longer than this counts as unreachable."""


class ModelHost(ABC):
    """Every model of a repository, loaded and kept up to date. connect() supplies a version's replicas."""

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
        ready_when_empty: bool = False,
        scratch: str = "",
    ) -> None:
        """Create the host without loading anything; load_all() does that.

        Args:
            models: Names of the only models to serve; None for all.
            undo_depth: Number of deltas of a version that can be undone in memory.
            processes: Number of processes that may read a version.
            budgets: Memory for the rows of tables.
            delta_guard: Mode of the delta guard for models whose policy has no such section.
            max_staleness_s: Staleness in seconds beyond which nothing is ready; 0 for no bound.
            ready_when_empty: Be ready while there is no model.
            scratch: Folder that keeps requests over a restart (processor.extensions.guard.kept_file); "" for none.

        Raises:
            BadInput: The guard's mode or a configured policy asks for an extension that is not there.
        """
        self.repository = repository
        self.trainers = Trainers(repository, clock.now_s)
        self._wanted, self._undo_depth, self._processes, self._clock = models, undo_depth, processes, clock
        self._root = FolderWatch(self.repository.root)
        self._models: dict[str, ServedModel] = {}
        # Folders without a version yet: the first version changes such a folder, not the root.
        self._empty: dict[str, FolderWatch] = {}
        self._changing = threading.Lock()
        # Makes a delta's file durable while its rows are staged.
        self._beside = StandbyThread("freshet-keep")
        self._beside.start()
        self.core_planning: Any = None  # see processor.ports.CorePlanner
        self.score_watch: ScoreWatch | None = None
        if ENGINE.offers("judges") or ENGINE.offers("ejectors"):
            from freshet_serving.processor.versions.score_watch import ScoreWatch

            self.score_watch = ScoreWatch(self, clock)
        # Why nothing is served any more; "" while it is.
        self._closed = ""
        self._remote = remote
        self._budgets = budgets if budgets and budgets.nbytes else None
        self._policies = policies or {}
        if delta_guard == STRICT and "guard" not in ENGINE.all():
            raise missing("delta_guard", "guard")
        for name, policy in self._policies.items():
            policy.check_extensions(f"model.{name}")
        self._scratch = scratch
        guarded = DeltaBounds(mode=delta_guard)
        self._default = ModelPolicy(delta_guard=guarded, given=frozenset({"delta_guard"} if delta_guard != ON else ()))
        # Time at which a model whose poll() failed is polled again.
        self._resting: dict[str, float] = {}
        self.upkeep = Upkeep(self)
        # Loaded by the first poll that does not wait for slow models.
        self._rounds: PollRounds | None = None
        self.readiness = HostReadiness(
            repository, lambda: self._models, models or (), clock, max_staleness_s, ready_when_empty
        )
        # The latter is True if routes may be others than readiness has seen.
        self._reached, self._unseen_routes = False, True

    @abstractmethod
    def connect(self, version: ServedVersion) -> Replicas:
        """Return a version's replicas; raise FreshetError if its executables cannot be served."""

    @abstractmethod
    def group_stats(self) -> dict[str, GroupStats]:
        """Return the statistics of every session group: its work since the start, and the current queue."""

    @abstractmethod
    def resize(self, sessions: int, group: str | None = None) -> None:
        """Set the number of sessions in one group, or in all; no request fails. Raise NotFound, BadInput."""

    @abstractmethod
    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """Return embedding lookups by table, int64 [T, 2]: all, and those that got the default row."""

    @abstractmethod
    def sketch(self, version: ServedVersion) -> Sketch:
        """Return the sketch of a version's batches, over all processes."""

    @abstractmethod
    def evidence(self, observer: str, *versions: ServedVersion) -> Any:
        """Return what an observer (processor.sessions.observers) counted about versions in all processes, or None."""

    @abstractmethod
    def counted(self, version: ServedVersion) -> Snapshot:
        """Return the counters beside the core (Replica.counted), over all processes."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return a JSON-able report for people: versions, labels, generation, freshness, sessions, memory."""

    def close(self) -> None:
        """Make later calls raise NotReady, and stop the threads; wait only briefly for work that may itself hang."""
        self._closed = self._closed or CLOSED
        self.repository.close()
        if self._rounds is not None:
            self._rounds.close()
        self._beside.close()
        if self.score_watch is not None:
            self.score_watch.close()
        self.upkeep.close(0.0 if self.readiness.stuck else CLOSE_S)

    def refresh(self) -> None:  # noqa: B027
        """Make the processes that answer requests report their statistics again, before an evaluation."""

    def on_routes_changed(self) -> None:  # noqa: B027
        """Handle a change of a model's routes, or of the models that readiness waits for."""

    def on_staleness_changed(self, stale: str) -> None:  # noqa: B027
        """Handle a change of `stale`, `stuck` or `concerns`."""

    def models(self) -> list[str]:
        return sorted(self._models)

    @property
    def catalogue(self) -> Mapping[str, ServedModel]:
        """Every known model by name, whether it serves or not; replaced as a whole, never edited."""
        return self._models

    def model(self, name: str) -> ServedModel:
        """Return a model; raise NotFound, or NotReady once the host is closed."""
        if self._closed:
            raise NotReady(self._closed)
        return find(self._models, name)

    def status(self, model: str) -> list[VersionStatus]:
        """Return the status of a model's versions, newest first; raise NotFound."""
        return self.model(model).routes.status()

    @property
    def ready(self) -> bool:
        """True if every expected model answers, no version is too stale and no change hangs."""
        return self.answering and not self.stale

    @property
    def answering(self) -> bool:
        """True if every expected model answers, and at least one does (processor.versions.host_readiness)."""
        return not self._closed and not self.missing

    @property
    def missing(self) -> str:
        """One line on why models do not answer; "" if they do."""
        return self.readiness.missing

    @property
    def stale(self) -> str:
        """One line on why what is served is too stale, or will be because a change hangs; "" if neither."""
        return self.readiness.stale

    @property
    def concerns(self) -> tuple[str, ...]:
        """Lines on what keeps existing files from being served (HostReadiness.concerns)."""
        return self.readiness.concerns

    @property
    def stuck(self) -> bool:
        """True if a change has held its model's lock for too long, as of the last check."""
        return bool(self.readiness.stuck)

    def expect(self, models: Iterable[str]) -> None:
        """Make readiness wait for these models too, until each of them answers or fails to load."""
        with self._changing:
            self.readiness.expect(models)
            self._excuse()

    @property
    def reachable(self) -> bool:
        """True if the last poll could reach the repository."""
        return self._reached

    def load_all(self, strict: bool = False) -> None:
        """Poll the repository for the first time; if strict, raise if an existing model cannot be served."""
        try:
            events = self.poll()
        except NotReady as error:
            if not self.repository.remote:
                raise
            log.warning("%s; starting without knowing the models of the repository", error)
            events, self.readiness.unseen = [], True
        self.expect(self._wanted or self._models)
        refused = [
            f"model {name!r} {model.routes.refused}" for name, model in self._models.items() if model.routes.refused
        ]
        if refused and strict:
            raise BadInput(listed(refused, "; "))
        report(log, events)
        for name in sorted(self._policies.keys() - set(self.repository.models())) if not self.readiness.unseen else ():
            log.warning("model.%s: the repository does not contain this model yet", name)
        self.repository.follow()

    def poll(self, patience_s: float | None = None) -> list[str]:
        """Poll the repository once: load new versions, apply new deltas. Return the events. Cheap if nothing is new.

        Args:
            patience_s: Seconds that the other models wait for a slow one, whose events a later call returns
                (processor.versions.poll_rounds). None: wait as long as it takes.
        """
        with self._changing:
            if patience_s is not None and self._rounds is None:
                from freshet_serving.processor.versions.poll_rounds import PollRounds

                self._rounds = PollRounds(self._poll_model)
            # Asked after that: close() sees the rounds, or this sees that the host is closed.
            if self._closed:
                return []
            if not self.upkeep.threads:
                self.upkeep.start(bool(self._budgets or ENGINE.offers("row_watchers")))
            try:
                self._find_models()
            except NotReady:
                self._reached = False
                raise
            self._reached = self.repository.seen_s() < REACHED_WITHIN_S
            if self.readiness.unseen:
                self.readiness.unseen, self._unseen_routes = False, True
                self.readiness.expected |= frozenset(self._wanted or self._models)
            names = list(self._models)
        rounds = self._rounds
        if patience_s is None or rounds is None:
            events = [line for name in names for line in self._poll_model(name)]
        else:
            events = rounds.go(names, patience_s)
        if self._unseen_routes:
            with self._changing:
                self._excuse()
        if self._clock.now_s() >= self.trainers.due_s:
            events += self.trainers.poll(names)
        return events

    def _find_models(self) -> None:
        if self._root.changed():
            try:
                selected, present = self._wanted, self.repository.models()
            except NotReady:
                self._root.again()
                raise
            removed = (self._models.keys() | self.readiness.expected) - set(present)
            if late := {name for name in removed if self._rounds is not None and self._rounds.at_work(name)}:
                # A version that is loading may be served in a moment: the folder is listed again then.
                self._root.again()
            self._drop(removed - late)
            for name in present:
                if name not in self._models and (selected is None or name in selected):
                    self._empty.setdefault(name, FolderWatch(self.repository.root / name))
        for name, folder in list(self._empty.items()):
            if not folder.changed():
                continue
            try:
                if self.repository.versions(name):
                    self._models = self._models | {name: self._new_model(name)}
                    self._routes_changed()
                    del self._empty[name]
                elif not self.repository.uncommitted(name):
                    self.readiness.expected -= {name}.difference(self._wanted or ())
            except NotReady:
                folder.again()
                raise

    def _poll_model(self, name: str) -> list[str]:
        """Poll one model; after an error that model alone pauses for a while."""
        now_s, model = self._clock.now_s(), self._models.get(name)
        if model is None or now_s < self._resting.get(name, now_s):
            return []
        try:
            return model.poll()
        except Exception as error:
            self._resting[name] = now_s + REST_S
            why = " ".join(str(error).split()) or "no message"
            return [FailureMessage(f"{name}: {type(error).__name__}: {why}; trying again in {REST_S:g} s")]

    def chosen(self, model: str, known: Collection[int]) -> set[int]:
        """Return the servable versions (of `known`) that policy and labels name; the model may be unknown yet."""
        served = self._models.get(model)
        policy = served.policy if served is not None else self._policy(model)
        labelled = served.labelled if served is not None else policy.labels.values()
        barred = served.decisions.barred if served is not None else {}
        return policy.versions.choose(list(known), barred) | set(labelled).intersection(known)

    def tell(self, model: str, status: VersionStatus) -> None:
        """Publish the state of a version that is being built here, or that failed."""
        with self._changing:
            if not self._closed and model not in self._models:
                self._models = self._models | {model: self._new_model(model)}
                self._empty.pop(model, None)
            if model in self._models:
                self._models[model].tell(status)
                self._excuse()

    def apply_delta(self, model: str, data: bytes | bytearray | None = None, path: str | None = None) -> ApplyResult:
        """Serve a delta, given as its bytes or as a path in the repository; raise if it is refused."""
        served = self.model(model)
        if (data is None) == (path is None):
            raise BadInput("delta: expected either the file itself or a path")
        return served.apply_bytes(data) if data is not None else served.apply_file(self.repository.resolve(str(path)))

    def rollback(
        self, model: str, generation: Generation | str = "", reason: str = "", only: str = ""
    ) -> RollbackResult:
        """Serve an earlier generation again, on every server of the repository (processor.versions.version_rollback).

        Args:
            generation: The generation, such as "3.16", or a version, such as "3"; "" for what was served before.
            only: The part to take back alone, "model" or "entities"; "" for both.
        """
        served = self.model(model)
        if only:
            return served.restore(Generation.parse(str(generation)), only)
        # Loaded when a person asks.
        from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back

        return roll_back(served, RollbackTarget.parse(str(generation)) if generation else None, reason)

    def versions(self, model: str) -> list[dict[str, Any]]:
        """Return a model's versions with what was decided about each (version_actions.describe_served)."""
        # Loaded when a person asks, here and below.
        from freshet_serving.processor.versions.version_actions import describe_served

        if model not in self._models and not self._closed and self.repository.candidates(model):
            return describe_served(self.repository, Routes(model))
        served = self.model(model)
        return describe_served(self.repository, served.routes, served.judges.verdicts())

    def release_version(self, model: str, version: int, reason: str = "") -> list[str]:
        """Let servers choose a held, withdrawn or candidate version, perhaps the first; return this server's events."""
        from freshet_serving.processor.versions.version_actions import release_version

        return self._decide(release_version, model, version, reason)

    def reject_version(self, model: str, version: int, reason: str = "") -> list[str]:
        """Withdraw a version, or remove a candidate, perhaps the first; return this server's events."""
        from freshet_serving.processor.versions.version_actions import reject_version

        return self._decide(reject_version, model, version, reason)

    def _decide(self, act: Callable[..., None], model: str, version: int, reason: str) -> list[str]:
        if model not in self._models and not self._closed and self.repository.candidates(model):
            # The gate has refused its first version; once there is one, the next poll finds the model.
            act(self.repository, model, version, reason)
            return []
        served = self.model(model)
        with served.changing():
            act(self.repository, model, version, reason)
            return served.choose()

    def release_deltas(self, model: str, version: int | None = None, reason: str = "") -> Generation:
        """Serve the held deltas of a version (None: the default one) on every server (ServedModel.release)."""
        served = self.model(model)
        return served.release(served.pick(version).manifest.version, reason)

    def reject_deltas(self, model: str, version: int | None = None, reason: str = "") -> RollbackResult:
        """Discard the held deltas of a version (None: the default one; ServedModel.reject)."""
        served = self.model(model)
        return served.reject(served.pick(version).manifest.version, reason)

    def calibrated(self, model: str, generation: Generation, evidence: LabelSums) -> None:
        """Add labels of rows that a generation scored, by which miscalibrated deltas are rolled back."""
        if "guard" not in ENGINE.all():
            raise missing("calibration", "guard")
        self.model(model).loaded(generation.version).add_labels(generation, evidence)

    def erase(self, user: ErasedUser) -> Erased:
        """Make everything that answers requests here forget a user (processor.versions.erasure)."""
        # Loaded when a person asks.
        from freshet_serving.processor.versions.erasure import erase

        return erase(user)

    def load(self, model: str, version: int, by_hand: bool = True) -> None:
        """Load a version beside those served; `by_hand` keeps it when a newer one is served."""
        self.model(model).load(version, by_hand)

    def unload(self, model: str, version: int) -> None:
        self.model(model).unload(version)

    def set_label(self, model: str, label: str, version: int) -> None:
        self.model(model).set_label(label, version)

    def replace_labels(self, model: str, labels: Mapping[str, int]) -> None:
        self.model(model).replace_labels(labels)

    def remove_label(self, model: str, label: str) -> None:
        self.model(model).remove_label(label)

    def set_policy(self, model: str, changes: Any) -> ModelPolicy:
        """Set keys of a model's policy (None unsets a key); return the policy now in force."""
        served = self.model(model)
        served.set_policy(changes)
        return served.policy

    def readmit(self, model: str, version: int) -> None:
        """Give an ejected version its traffic share back."""
        self.model(model).readmit(version)

    def examine(self, efforts: Sequence[int] = (SIZES, CHANGES)) -> list[str]:
        """Check every mapped file by these efforts and unload versions with damaged files, not waiting for changes."""
        events: list[str] = []
        for effort in efforts:
            for name, model in self._models.items():
                try:
                    events += model.examine(effort)
                except Exception:
                    log.exception("cannot check the files of %s", name)
        return events

    @property
    def corruption_unloads(self) -> int:
        """Number of unloads because of a damaged file."""
        return sum(model.damaged.total() for model in self._models.values())

    def _routes_changed(self) -> None:
        self._unseen_routes = True
        self.on_routes_changed()

    def _excuse(self) -> None:
        # First: what changes meanwhile is seen by the next poll.
        self._unseen_routes = False
        if self.readiness.excuse():
            self.on_routes_changed()

    def _drop(self, names: Set[str]) -> None:
        """Forget models whose folders are gone, unless they are still served from memory."""
        idle = {name for name in names if name not in self._models or not self._models[name].routes.served}
        if idle:
            self._models = {name: model for name, model in self._models.items() if name not in idle}
            self.readiness.expected -= idle.difference(self._wanted or ())
            self._routes_changed()

    def _policy(self, name: str) -> ModelPolicy:
        return self._policies.get(name, ModelPolicy()).over(self._default)

    def _new_model(self, name: str) -> ServedModel:
        return ServedModel(
            name, self.repository, self._load_version, self.connect, self._clock, self._routes_changed,
            self._policy(name), self._scratch,
        )  # fmt: skip

    def _load_version(self, files: VersionReader) -> ServedVersion:
        # Check the row store before the files: if it is not ready, no time is spent on verification.
        remote = self._remote.tables(files.manifest) if self._remote else {}
        return ServedVersion(files, self._undo_depth, self._clock, self._processes, remote, self._budgets, self._beside)
