"""The guard in the server: what /metrics says of it.

guard_metrics  metric families of verdicts, scoring and drift
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _families(host: Any, stats: Sequence[Any]) -> Iterable[Any]:
    from freshet_serving.serving.extensions.guard.guard_metrics import guard_families

    return guard_families(host)


REQUIRES = ("guard",)
EXTENSION = ServerExtension(metrics={"guard": _families})
