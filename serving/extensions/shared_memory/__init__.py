"""Tensors in system shared memory, as Triton's clients register it.

regions  regions of system shared memory that clients have registered
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.serving.ports import ServerExtension

if TYPE_CHECKING:
    from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions

__all__: list[str] = []


def _open(max_read_nbytes: int) -> SystemRegions:
    from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions

    return SystemRegions(max_read_nbytes)


REQUIRES = ()
EXTENSION = ServerExtension(regions=_open)
