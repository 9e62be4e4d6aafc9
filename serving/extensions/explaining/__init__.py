"""Explain scores: a route of the admin port, and the command `freshet explain`.

explain_route    explanations of scores, over the admin port
explain_command  explain
"""

from __future__ import annotations

from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__ = ["explain_route"]


def _explain() -> Any:
    from freshet_serving.serving.extensions.explaining.explain_command import explain

    return explain


def _explain_route(parts: Any) -> Any:
    from freshet_serving.serving.extensions.explaining.explain_route import ExplainRoute, ExplainSettings

    return ExplainRoute(parts.lifecycle, ExplainSettings.of(parts.config, parts.workers), parts.bulk)


REQUIRES = ("admin", "explaining")
EXTENSION = ServerExtension(commands={"explain": _explain}, admin_routes={"explain": _explain_route})
