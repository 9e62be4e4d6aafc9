"""`freshet` as a process whose GPU is played on the processor, with room for some rows; workers have one each.

PLAYED_ROOM=5400 python -m tests.programs.played_device serve --device-stages 1 --device-rows-mb 1 ...
"""

from __future__ import annotations

import os

import pytest

from freshet_serving.processor.backends import xla
from freshet_serving.processor.extensions.device_rows import placed_rows, row_mirror
from freshet_serving.serving.commands.cli import main
from tests.support.played_gpu import played_xla

VARIABLE = "PLAYED_ROOM"
"""Environment variable with the bytes that rows may take."""


def put_small_pools(patch: pytest.MonkeyPatch, room: int) -> None:
    """Let rows on a device take so many bytes, with few spare places, copied and moved a few at a time."""
    for name, value in (("COPIED", (8, 64)), ("LEAST_SPARE", 32), ("TURN", 64)):
        patch.setattr(row_mirror, name, value)
    open_rows = placed_rows.open_device_rows
    patch.setattr(placed_rows, "open_device_rows", lambda *known: open_rows(*known[:-1], room))


if __name__ == "__main__":
    # Before workers are forked, which make the device itself: its threads would not survive a fork.
    patch = pytest.MonkeyPatch()
    put_small_pools(patch, int(os.environ[VARIABLE]))
    patch.setattr(xla, "cuda", played_xla)
    main()
