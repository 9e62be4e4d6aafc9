"""Errors of single objects in an object store: logged once per name, without stopping work on the rest. Thread-safe."""

from __future__ import annotations

import logging
from collections.abc import Callable

from freshet_serving.processor.errors import FreshetError, NotReady

log = logging.getLogger("freshet.mirror")

MOST = 10_000


class StoreErrors:
    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._wrong: dict[str, str] = {}

    def alone(self, name: str, act: Callable[[], object], strict: bool = False) -> bool:
        """Run an action for one model, version or file, and log its error; raise NotReady if no request is answered.

        Return False if the action was incomplete, which it says by False, or the store refuses this object alone. With
        `strict`, such a refusal is raised too.
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
            reason = str(error) if isinstance(error, FreshetError) else getattr(error, "strerror", "")
            self.tell(name, reason or type(error).__name__, traceback=not reason)
            return True

    def tell(self, name: str, why: str, traceback: bool = False) -> None:
        """Log an error, unless it was the last one logged for this name."""
        if self._wrong.get(name) != why:
            if len(self._wrong) >= MOST:
                # Names come from the store, so their number is not limited.
                self._wrong.clear()
            self._wrong[name] = why
            log.error("cannot follow %s: %s", name, why, exc_info=traceback)

    def over(self, name: str) -> None:
        self._wrong.pop(name, None)
