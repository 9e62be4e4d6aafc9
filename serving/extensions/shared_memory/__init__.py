"""Tensors in system shared memory, as Triton's clients register it.

regions  regions of system shared memory that clients have registered
"""

from __future__ import annotations

from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _open(max_read_nbytes: int) -> Any:
    from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions

    return SystemRegions(max_read_nbytes)


REQUIRES = ()
EXTENSION = ServerExtension(regions=_open)
