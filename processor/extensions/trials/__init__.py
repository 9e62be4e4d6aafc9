"""Try versions on real traffic: a canary is judged against its baseline, a shadow scores copies of requests.

canary_trial   evidence about canaries: the baseline scores the canary's requests, too
canary_judge   judges whether a canary may stay
canary_ejector  takes bad canaries out of the split, and reports about trials
shadow         shadow scoring: scores of a further version, computed after the reply
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__ = ["shadow"]


def _canary_trials(groups: Any, clock: Any) -> Any:
    from freshet_serving.processor.extensions.trials.canary_trial import CanaryTrials

    return CanaryTrials(clock)


def _shadow(groups: Any, clock: Any) -> Any:
    from freshet_serving.processor.extensions.trials.shadow import Shadow

    return Shadow(groups, clock)


def _canary_ejector(evidence: Any) -> Any:
    from freshet_serving.processor.extensions.trials.canary_ejector import CanaryEjector

    return CanaryEjector(evidence)


def _canaries(host: Any, model: str) -> dict[str, Any]:
    from freshet_serving.processor.extensions.trials.canary_ejector import describe_trials

    return describe_trials(host, model)


REQUIRES = ()
EXTENSION = Extension(
    observers={"shadow": _shadow, "canary": _canary_trials},
    ejectors={"canary": _canary_ejector},
    reports={"canaries": _canaries},
)
