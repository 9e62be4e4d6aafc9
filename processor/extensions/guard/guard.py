"""The guard of one model: judges its deltas and versions before and after they are served, and follows their scores.

Invariants
- look() has one caller at a time. What it keeps by version is replaced as a whole, so readers need no lock.
- Everything else is used as processor.versions.judges says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.extensions.guard.kept_file import KeptFiles
from freshet_serving.processor.extensions.guard.pre_deploy_check import PreDeployCheck
from freshet_serving.processor.extensions.guard.trend import Trend
from freshet_serving.processor.extensions.guard.version_gate import VersionGate
from freshet_serving.processor.extensions.guard.version_monitor import VersionMonitor
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.repository import root_hash
from freshet_serving.processor.versions.judges import Judge, JudgedModel
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import SHORT_S, UNJUDGED, Histogram, Scores, Sketch, VersionRollback

if TYPE_CHECKING:
    from freshet_serving.processor.versions.model import ServedModel

GUARD = "guard"


class Guard(Judge):
    """The guard of one model; `preview_s` are the seconds of each preview of a delta."""

    def __init__(self, model: JudgedModel) -> None:
        self._policy, self._clock = model.policy, model.clock
        kept_files = KeptFiles(model.scratch, model.repository, model.clock) if model.scratch else None
        self.gate = VersionGate(model.name, model.policy, model.clock, kept_files)
        self.preview_s = Histogram(SHORT_S)
        self._monitor = VersionMonitor()
        self._trends: Mapping[int, Trend] = {}
        # The version that answered by default at the last look, with the names of its outputs.
        self._default: tuple[int, list[str]] = (0, [])

    def of_version(self) -> PreDeployCheck:
        return PreDeployCheck(lambda: self._policy().delta_guard, self.preview_s, self._clock)

    def begin(self, chosen: Collection[int], others: Collection[int], root_of: Callable[[int], str]) -> int:
        return self.gate.begin(chosen, others, root_of)

    def check(self, before: ServedVersion, after: ServedVersion) -> str:
        if not self.gate.judges or self.gate.knows(after.manifest.version, root_hash(after.files.root_manifest)):
            return ""
        return self.gate.check(before, after)

    def took_over(self, before: ServedVersion | None, after: ServedVersion) -> None:
        self.gate.let_in(after.manifest.version, root_hash(after.files.root_manifest))
        self.gate.took_over(before, after)

    def keep(self, version: ServedVersion) -> None:
        self.gate.keep(version)

    def look(
        self, now_s: float, served: Mapping[int, tuple[ServedVersion, Sketch]], default: int, chosen: bool
    ) -> VersionRollback | None:
        trends = {}
        for number, (version, sketch) in served.items():
            trend = trends[number] = self._trends.get(number) or self._begun(version, number == default)
            trend.look(now_s, version.generation, sketch)
        self._trends = trends
        if not default:
            return None
        answering, sketch = served[default]
        self._default = default, _outputs(answering)
        bounds = self._policy().delta_guard
        return None if bounds.mode == OFF else self._monitor.look(bounds, now_s, default, sketch, chosen)

    def trend(self, version: int) -> tuple[tuple[Scores, ...], tuple[float, ...] | None]:
        trend = self._trends.get(version)
        return ((), None) if trend is None else (trend.scores, trend.drift)

    def verdicts(self) -> Mapping[str, Any]:
        return {
            str(number): {
                "outcome": verdict.outcome,
                "unjudged": (verdict.kind or verdict.reason) if verdict.outcome == UNJUDGED else "",
                "reason": verdict.reason,
                "rows": verdict.rows,
                "unreadable": verdict.unreadable,
                "figures": [figure._asdict() for figure in verdict.figures],
            }
            for number, verdict in self.gate.verdicts.items()
        }

    def _begun(self, version: ServedVersion, answers: bool) -> Trend:
        number, outputs = self._default
        if answers and outputs == _outputs(version):
            return Trend.following(self._trends.get(number) or Trend())
        return Trend()


def guard_of(model: ServedModel) -> Guard:
    guard: Any = model.judges.by_name[GUARD]
    return guard  # type: ignore[no-any-return]


def _outputs(version: ServedVersion) -> list[str]:
    return [output.name for output in version.manifest.outputs]
