"""Compare the replicas of a repository: the command `freshet fleet`.

fleet_command     fleet
fleet_comparison  compares the replicas of a fleet
fleet_trainers    the newest report of each trainer of a fleet
fleet_polling     polls the replicas of a fleet
"""

from __future__ import annotations

from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _fleet() -> Any:
    from freshet_serving.serving.extensions.fleet.fleet_command import fleet

    return fleet


REQUIRES = ()
EXTENSION = ServerExtension(commands={"fleet": _fleet})
