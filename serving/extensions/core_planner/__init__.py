"""Planned cores in the server: what /metrics says of them.

core_metrics  metric families of the cores of session groups, and of those that are lent
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _families(host: Any, stats: Sequence[Any]) -> Iterable[Any]:
    if host.core_planning is None:
        return ()
    from freshet_serving.serving.extensions.core_planner.core_metrics import core_families

    return core_families(host.core_planning)


REQUIRES = ("core_planner",)
EXTENSION = ServerExtension(metrics={"cores": _families})
