"""Online features in the server: what /metrics says of them.

feature_metrics  metric families of lookups
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _families(host: Any, stats: Sequence[Any]) -> Iterable[Any]:
    from freshet_serving.serving.extensions.online_features.feature_metrics import feature_families

    return feature_families(stats)


REQUIRES = ("online_features",)
EXTENSION = ServerExtension(metrics={"online_features": _families})
