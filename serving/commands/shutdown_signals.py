"""How a command that would go on for ever is asked to end."""

from __future__ import annotations

import signal
from collections.abc import Callable


def exit_on_sigterm() -> None:
    """SIGTERM ends the command as SIGINT does: a container's first process is spared by the kernel where it handles
    none."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def stop_on_signal(stop: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM lets the run finish what it is at and end; the next one ends it at once."""

    def handle(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        stop()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handle)
