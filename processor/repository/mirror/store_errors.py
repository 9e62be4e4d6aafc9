"""What is wrong in an object store, told once for each name: it keeps nobody from the rest. Thread-safe."""

from __future__ import annotations

import logging
from collections.abc import Callable

from freshet_serving.processor.errors import FreshetError, NotReady

log = logging.getLogger("freshet.mirror")

MOST = 10_000


class StoreErrors:
    """The troubles of one mirror."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        """answers: whether the store answers at all."""
        self._answers = answers
        self._wrong: dict[str, str] = {}

    def alone(self, name: str, act: Callable[[], object], strict: bool = False) -> bool:
        """Does something with one model, version or file, and tells what is wrong with that.

        Args:
            name: Of that.
            act: What to do.
            strict: Whether what cannot be asked for alone is an outage too.

        Returns:
            Whether all of it could be asked for: not so where act() gives False, or the store refuses this alone.

        Raises:
            NotReady: The store does not answer for anything.
        """
        try:
            complete = act() is not False
            self.over(name)
            return complete
        except NotReady as error:
            if strict or not self._answers():
                raise
            self.tell(name, str(error))
            return False
        except Exception as error:
            known = str(error) if isinstance(error, FreshetError) else getattr(error, "strerror", "")
            self.tell(name, known or type(error).__name__, traceback=not known)
            return True

    def tell(self, name: str, why: str, traceback: bool = False) -> None:
        """Writes a line, unless it was the last one of this name."""
        if self._wrong.get(name) != why:
            if len(self._wrong) >= MOST:
                # Names are the store's: as many as somebody writes.
                self._wrong.clear()
            self._wrong[name] = why
            log.error("%s: cannot be followed: %s", name, why, exc_info=traceback)

    def over(self, name: str) -> None:
        """Nothing is wrong with it any more."""
        self._wrong.pop(name, None)
