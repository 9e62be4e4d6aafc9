"""The guard: judge deltas and versions before they are served and afterwards, by what they change and how they score.

guard            judges one model's deltas and versions
pre_deploy_check  judges the deltas of one version before they are served, and monitors them
delta_figures    figures of a delta, relative to the state before it
delta_guard      judges whether a delta may be served
drift            limits how far scores may move within an hour and a day
post_deploy_monitor  judges whether a served delta must be rolled back
sample_scoring   scores recently requested rows under a state that is not served yet
request_scoring  scores kept requests under one version
kept_requests    kept requests as bytes: columns that another version, and a file, can hold
kept_file        kept requests over a restart, in the scratch folder
version_gate     judges a new version by kept requests before it takes over
version_judge    judges by scores whether a new version may take over
version_monitor  judges whether a version that has taken over must be taken back
trend            how far a version's scores have moved
input_drift      how far the inputs of requests have moved
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__ = ["guard"]


def _guard(model: Any) -> Any:
    from freshet_serving.processor.extensions.guard.guard import Guard

    return Guard(model)


def _scorer(run: Any, plan: Any, sample: Any, buffers: Any, clock: Any) -> Any:
    from freshet_serving.processor.extensions.guard.sample_scoring import SampleScorer

    return SampleScorer(run, plan, sample, buffers, clock)


REQUIRES = ()
EXTENSION = Extension(judges={"guard": _guard}, scorer=_scorer)
