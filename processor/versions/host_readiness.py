"""Readiness of a host: which models it waits for, and why what it serves is no answer.

Expected are the models that were named, or else those that existed at the start. A model that failed to load delays no
other, and another try does not make the host wait again; but if no expected model answers, the host is not ready. A
change that has held its model's lock for a minute makes the host unready until it ends.

Staleness is the time since what is served was last known to be the repository's newest record. It drops to almost zero
with every poll that finds nothing newer, so a version within its bound again stays there for at least the bound:
hysteresis is not needed. A version that is not served yet has no staleness.

Invariants: `expected` and the excused models are replaced as a whole under the host's lock; everything else is read by
any thread and never blocks. check() and tell() have one caller at a time.

max_staleness_s has no default: an outage of the store makes every replica stale at once, and a whole fleet that can
answer would leave its load balancer. A held delta counts as current, since a hold is a decision.

Rejected: replicas that ask each other or elect a leader (the change log says what to serve, and one replica could make
others unready); a limit on how many are unready at once (needs the same).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.generation import DIVERGED, WAITING
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.changes import LONG_S
from freshet_serving.processor.versions.model import ServedModel

log = logging.getLogger("freshet.host")

HELD_UP = f"a change has blocked all others for more than {LONG_S:g} s"


class HostReadiness:
    """The readiness of one host; `unseen` is True until the first listing of an object store succeeds."""

    def __init__(
        self,
        repository: Repository,
        models: Callable[[], Mapping[str, ServedModel]],
        expected: Iterable[str],
        clock: Clock,
        max_staleness_s: float,
        ready_when_empty: bool,
    ) -> None:
        """Wait for the named models; a max_staleness_s of 0 is no bound."""
        self._repository, self._models, self._clock = repository, models, clock
        self.expected, self.unseen = frozenset(expected), False
        self.max_staleness_s, self._ready_when_empty = max_staleness_s, ready_when_empty
        # Expected models that failed to load and have not answered since.
        self._excused: frozenset[str] = frozenset()
        self.stuck = ""
        """The change that has held its model's lock for too long, as of the last check(); "" for none."""
        self._told = "", tuple[str, ...]()

    @property
    def missing(self) -> str:
        """One line on why models do not answer; "" if they do."""
        models = self._models()
        if self.unseen:
            return "the repository has not been reached yet"
        if pending := self.pending:
            return f"waiting for model{'s' if pending[1:] else ''} {', '.join(pending)}"
        names = self.expected or models.keys()
        if any(name in models and models[name].routes.served for name in names) or (
            self._ready_when_empty and not names
        ):
            return ""
        if any(model.routes.refused for model in models.values()):
            return "no model can be served: the server's log has the reasons"
        if reason := self._repository.misplaced():
            return reason
        return "no model is loaded: each was unloaded" if models else "the repository has no model"

    @property
    def pending(self) -> list[str]:
        """The models that are waited for: expected, not answering, and not failed."""
        models = self._models()
        return sorted(n for n in self.expected - self._excused if n not in models or not models[n].routes.served)

    @property
    def stale(self) -> str:
        """One line on why what is served is too stale, or will be because a change hangs; "" if neither."""
        if self.stuck:
            return self.stuck
        beyond = find_stale(self._stalenesses(), self.max_staleness_s) if self.max_staleness_s else None
        return beyond.line(self.max_staleness_s) if beyond else ""

    @property
    def concerns(self) -> tuple[str, ...]:
        """Lines on what keeps existing files from being served: one if the repository cannot be listed, one a version.

        They do not make a server unready: every replica refuses the same delta, and what each serves is sound. To
        prefer no answer to an old one, set max_staleness_s.
        """
        repository = (concern,) if (concern := self._repository.concern()) else ()
        return repository + tuple(
            f"model {name!r} version {number}: {status.state}: {status.reason}"
            for name, model in sorted(self._models().items())
            for number in sorted(model.routes.served)
            if (status := model.chain(number)) is not None and status.state in (WAITING, DIVERGED)
        )

    def expect(self, models: Iterable[str]) -> None:
        """Wait for these models too, until each of them answers or fails to load."""
        more = frozenset(models)
        self.expected, self._excused = self.expected | more, self._excused - more

    def excuse(self) -> bool:
        """Update the models that are not waited for because they failed; return True if they have changed."""
        models = self._models()
        loaded = [(name, models[name]) for name in self.expected if name in models]
        answering = {name for name, model in loaded if model.routes.served}
        # A model without any version state has no files left.
        failed = {n for n, m in loaded if not m.routes.served and (m.routes.refused or not m.routes.states)}
        excused = (self._excused - answering) | failed
        before, self._excused = self._excused, excused
        return excused != before

    def check(self) -> None:
        """Check whether a change has held its model's lock for too long."""
        now_s = self._clock.now_s()
        held = {name: model.lock_watch.look(now_s) for name, model in self._models().items()}
        stuck = next((name for name, held_s in held.items() if held_s >= LONG_S), None)
        # Keep the text constant while it lasts: each change of it is a line in the log.
        self.stuck = f"model {stuck!r}: {HELD_UP}" if stuck else ""

    def tell(self, changed: Callable[[str], None]) -> None:
        """Log once when the host becomes unready by staleness or a hanging change, and once when that ends.

        changed(line) is called if the line, or the concerns, have changed.
        """
        (before, concerns), self._told = self._told, (self.stale, self.concerns)
        line = self._told[0]
        if (before, concerns) == self._told:
            return
        if line and not before:
            log.warning("not ready: %s", line)
        elif before and not line:
            held = before.endswith(HELD_UP)
            log.info("changes are no longer blocked" if held else "the served version is no longer too old")
        changed(line)

    def _stalenesses(self) -> Iterator[Staleness]:
        """Yield the staleness of versions that answer requests without a version, for expected models."""
        models = self._models()
        for name in sorted(self.expected):
            if (model := models.get(name)) is not None:
                for number in model.routes.shares():
                    yield Staleness(name, number, model.staleness_s(number))


class Staleness(NamedTuple):
    """Seconds since one served version was last known to serve the newest record."""

    model: str
    version: int
    seconds: float

    def line(self, bound_s: float) -> str:
        """Return why a server with this bound is not ready."""
        return (
            f"model {self.model!r} version {self.version} is {self.seconds:.0f} s stale (max_staleness_s = {bound_s:g})"
        )


def find_stale(versions: Iterable[Staleness], bound_s: float) -> Staleness | None:
    """Return the version farthest beyond the bound (the first of equals), or None if all are within it."""
    beyond = [each for each in versions if each.seconds > bound_s]
    return max(beyond, key=lambda each: each.seconds, default=None)
