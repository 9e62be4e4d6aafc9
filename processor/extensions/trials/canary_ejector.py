"""Take bad canaries out of the split, and report about the trials.

Evidence is that of all processes that answer requests; canary_judge draws the conclusions. look() has one caller at a
time.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.extensions.trials.canary_judge import CanaryEvidence, CanaryJudge
from freshet_serving.processor.extensions.trials.canary_trial import CANARY
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.routes import find
from freshet_serving.processor.versions.score_watch import Ejector, VersionEvidence
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import Sketch

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

log = logging.getLogger("freshet.host")


class CanaryEjector(Ejector):
    def __init__(self, evidence: VersionEvidence) -> None:
        self._evidence = evidence
        # By version; the judges of a model that is gone go with it.
        self._judges: weakref.WeakKeyDictionary[ServedModel, dict[int, CanaryJudge]] = weakref.WeakKeyDictionary()

    def look(self, model: ServedModel, now_s: float) -> None:
        """Judge the model's canaries, and eject those that must go; the time is monotonic."""
        former = self._judges.get(model, {})
        judges = self._judges[model] = {}
        for canary, baseline in model.routes.trials():
            number = canary.manifest.version
            judge = judges[number] = former.get(number) or CanaryJudge()
            verdict = judge.look(model.policy.guard, now_s, *_evidence(self._evidence, canary, baseline))
            if verdict is not None:
                log.error("%s version %d is removed from the split: %s", model.name, number, verdict.reason)
                model.eject(number, f"{verdict.kind}: {verdict.reason}")


def describe_trials(host: ModelHost, model: str) -> dict[str, Any]:
    """Return a model's canary trials, JSON-able: results of both sides on the same requests, and the bounds."""
    served = find(host.catalogue, model)
    trials = []
    for canary, baseline in served.routes.trials():
        evidence = _evidence(host, canary, baseline)
        shifts = [mine.shift(other) for mine, other in zip(evidence.canary.every(), evidence.baseline.every())]
        trials.append(
            {
                "canary": _side(canary, evidence.canary),
                "baseline": _side(baseline, evidence.baseline),
                "shift": {output.name: shift for output, shift in zip(canary.manifest.outputs, shifts)},
            }
        )
    return {"model": model, "bounds": asdict(served.policy.guard), "trials": trials}


def _side(version: ServedVersion, sketch: Sketch) -> dict[str, Any]:
    scores = list(sketch.every())
    return {
        "version": version.manifest.version,
        "generation": str(version.generation),
        "requests": sketch.requests,
        "failed": sketch.failed,
        "scores": sum(output.count for output in scores),
        "nonfinite": sum(output.lost for output in scores),
        "mean": {spec.name: output.mean for spec, output in zip(version.manifest.outputs, scores) if output.count},
    }


def _evidence(source: VersionEvidence, canary: ServedVersion, baseline: ServedVersion) -> CanaryEvidence:
    return CanaryEvidence.from_json(len(canary.manifest.outputs), source.evidence(CANARY, canary, baseline))
