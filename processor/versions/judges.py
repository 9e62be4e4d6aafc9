"""The port of judges: may a delta or a version be served, and must what is served be taken back?

An extension offers judges (processor.ports.Extension.judges), one for each model. A judge gives its opinion; the core
records holds and releases, rolls back and withdraws. What a person, a trainer or another server has recorded is obeyed
without any judge. Judge and DeltaJudge never object; an extension overrides what it has an opinion on.

Invariants
- A delta is examined in the writer's thread, under the model's lock, between staging and flip: what a judge raises
  refuses the delta. A version is checked between being loaded and being offered.
- The first of several judges that objects decides; all of them are told what is served.
- look() has one caller at a time and waits for no change of a model. It is asked again until its answer is done.
- Without a judge nothing is held, and no hold is released automatically.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.versions.changes import StateChange
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    AutoRollback,
    Finding,
    LabelSums,
    Scores,
    Sketch,
    Verdict,
    VersionRollback,
)

if TYPE_CHECKING:
    from pathlib import Path

ONE, RUN, GATED = "one", "run", "gated"
"""Kinds of change: one delta, held if out of line; a run of deltas, checked one by one if it is out of line; held
deltas, released if they are in line.
"""
NOTHING_FOUND = Finding()


class DeltaHeld(Conflict):
    """A delta is not served because a judge objects; `kind`: processor.watching.judgements.Verdict."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class VersionHeld(Conflict):
    """A version is not served because a judge objects."""


class JudgedModel(NamedTuple):
    """A model, as far as its judges know it; `scratch` keeps requests over a restart, "" for none."""

    name: str
    policy: Callable[[], ModelPolicy]
    clock: Clock
    repository: Path
    scratch: str


class JudgementCounts:
    """Counts of the verdicts on one model's deltas and versions.

    Attributes:
        held: Held deltas, by kind of verdict.
        released: Holds that were lifted automatically.
        auto_rollbacks: Automatically rolled back deltas, by kind of verdict.
        taken_back: Versions rolled back automatically after they were served, by kind of verdict.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.released = 0
        self.auto_rollbacks: Counter[str] = Counter()
        self.taken_back: Counter[str] = Counter()


class DeltaJudge:
    """Judges one version's deltas. Used under the model's lock, except monitored(), look() and tell()."""

    @property
    def judges(self) -> bool:
        """True if it can object to a delta at all."""
        return False

    def examine(self, version: ServedVersion, delta: Delta, change: StateChange, asked: str) -> Finding:
        """Examine a change that is ready to be served (asked: ONE, RUN or GATED).

        The version serves the state before the change; `delta` is all that it brings, a run folded into one.
        """
        return NOTHING_FOUND

    def held(self, verdict: Verdict) -> None:
        """Note that the delta examined last is held for a verdict."""

    def served(self, version: ServedVersion, delta: Delta) -> None:
        """Note that the change examined last is served."""

    def monitored(self, generation: Generation) -> bool:
        """Report whether a served generation is not yet known to be good."""
        return False

    def look(self, now_s: float, generation: Generation, sketch: Sketch, released: int) -> AutoRollback | None:
        """Judge what is served by all counts so far; return the rollback to make, or None.

        `released` is the newest step that a person has released.
        """
        return None

    def tell(self, generation: Generation, evidence: LabelSums) -> None:
        """Add label sums of rows that a generation has scored. Any thread may call it."""


class Judge:
    """Judges the deltas and versions of one model. Changed under the model's lock, except look() and keep()."""

    def of_version(self) -> DeltaJudge:
        """Return a judge of the deltas of a version that is being loaded."""
        return DeltaJudge()

    def begin(self, chosen: Collection[int], others: Collection[int], root_of: Callable[[int], str]) -> int:
        """Note the chosen versions when the server starts; called whenever versions are chosen.

        Returns the version to load first, by which the newest is judged, or 0. `others` may be served instead of the
        newest; none if it need not be judged.
        """
        return 0

    def check(self, before: ServedVersion, after: ServedVersion) -> str:
        """Return why a loaded version must not take over by itself from the default one; "" if it may.

        Raises NotReady if there is not enough memory to judge it now.
        """
        return ""

    def took_over(self, before: ServedVersion | None, after: ServedVersion) -> None:
        """Note a version that is served now; `before` answered by default until now, None at a start."""

    def keep(self, version: ServedVersion) -> None:
        """Store what a restart needs of the version that answers by default; called regularly."""

    def look(
        self, now_s: float, served: Mapping[int, tuple[ServedVersion, Sketch]], default: int, chosen: bool
    ) -> VersionRollback | None:
        """Follow the scores of the versions; return the rollback from the default one (0: none) to another, or None.

        `chosen` is True if a person has chosen the default version.
        """
        return None

    def trend(self, version: int) -> tuple[tuple[Scores, ...], tuple[float, ...] | None]:
        """Return the newest scores of each output of a version, and how far they moved; ((), None) if unknown."""
        return (), None

    def verdicts(self) -> Mapping[str, Any]:
        """Return the newest verdicts on versions, JSON-able, by version."""
        return {}


class Judges(Judge):
    """All judges of one model; `by_name`: by the names under which extensions offer them."""

    def __init__(self, model: JudgedModel) -> None:
        self.by_name: Mapping[str, Judge] = {name: create(model) for name, create in ENGINE.offers("judges").items()}

    def of_deltas(self) -> list[DeltaJudge]:
        """Return judges of the deltas of a version that is being loaded."""
        return [judge.of_version() for judge in self.by_name.values()]

    def begin(self, chosen: Collection[int], others: Collection[int], root_of: Callable[[int], str]) -> int:
        return max((judge.begin(chosen, others, root_of) for judge in self.by_name.values()), default=0)

    def check(self, before: ServedVersion, after: ServedVersion) -> str:
        return next((why for judge in self.by_name.values() if (why := judge.check(before, after))), "")

    def took_over(self, before: ServedVersion | None, after: ServedVersion) -> None:
        for judge in self.by_name.values():
            judge.took_over(before, after)

    def keep(self, version: ServedVersion) -> None:
        for judge in self.by_name.values():
            judge.keep(version)

    def look(
        self, now_s: float, served: Mapping[int, tuple[ServedVersion, Sketch]], default: int, chosen: bool
    ) -> VersionRollback | None:
        rollbacks = [judge.look(now_s, served, default, chosen) for judge in self.by_name.values()]
        return next((rollback for rollback in rollbacks if rollback is not None), None)

    def trend(self, version: int) -> tuple[tuple[Scores, ...], tuple[float, ...] | None]:
        trends = (judge.trend(version) for judge in self.by_name.values())
        return next((trend for trend in trends if trend != ((), None)), ((), None))

    def verdicts(self) -> Mapping[str, Any]:
        return {number: verdict for judge in self.by_name.values() for number, verdict in judge.verdicts().items()}
