"""Handle SIGINT and SIGTERM in commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable


def exit_on_sigterm() -> None:
    """Make SIGTERM end the command like SIGINT.

    The kernel does not deliver SIGTERM to a container's first process unless that process handles it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def stop_on_signal(stop: Callable[[], None]) -> None:
    """Call `stop` on the first SIGINT or SIGTERM, to finish current work; let the next signal end the run at once."""

    def handle(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        stop()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handle)
