"""Device stages: sessions fill staging buffers, and threads run what several have filled in large batches.

device        the stages, and the sessions that fill for them
staging_pool  staging buffers between the sessions that fill them and the stage that runs them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from freshet_serving.processor.ports import Extension

if TYPE_CHECKING:
    from freshet_serving.processor.clock import Clock
    from freshet_serving.processor.extensions.device_stages.device import DeviceStages

__all__: list[str] = []


def _stages(stages: int, readers: Sequence[int], clock: Clock, cpus: frozenset[int]) -> DeviceStages:
    from freshet_serving.processor.extensions.device_stages.device import DeviceStages

    return DeviceStages(stages, readers, clock, cpus)


REQUIRES = ()
EXTENSION = Extension(stages={"device_stages": _stages})
