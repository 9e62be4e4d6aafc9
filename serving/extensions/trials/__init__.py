"""The server's half of the trials of versions (processor.extensions.trials).

shadow_metrics  metric families of shadows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _shadow_families(host: Any, stats: Sequence[Any]) -> Iterable[Any]:
    from freshet_serving.serving.extensions.trials.shadow_metrics import shadow_families

    return shadow_families(host)


REQUIRES = ("trials",)
EXTENSION = ServerExtension(metrics={"shadow": _shadow_families})
