"""Say in the log which values of online features cannot be read.

A damaged value is answered with its default, so nothing but this tells that a writer and the model disagree. One line a
minute for each feature names the feature, the reason and a sample of the value. The key is never in it.
"""

from __future__ import annotations

import logging
import threading

from freshet_serving.processor.clock import Clock

log = logging.getLogger("freshet.features")

INTERVAL_S = 60.0
"""Seconds between two lines about one feature."""
SAMPLE_NBYTES = 32


class DamagedValues:
    """The log of the damaged values of one version's features. Thread-safe."""

    def __init__(self, where: str, clock: Clock) -> None:
        self._where, self._clock = where, clock
        self._lock = threading.Lock()
        self._said_s: dict[str, float] = {}

    def say(self, feature: str, reason: str, sample: bytes = b"") -> None:
        """Log why an input's value cannot be read, and its first bytes, unless it was named within the last minute."""
        now_s = self._clock.now_s()
        with self._lock:
            if now_s < self._said_s.get(feature, -INTERVAL_S) + INTERVAL_S:
                return
            self._said_s[feature] = now_s
        shown = f", got {sample[:SAMPLE_NBYTES]!r}{'...' * (len(sample) > SAMPLE_NBYTES)}" if sample else ""
        log.warning(
            "%s: online feature %r cannot be read and gets its default: %s%s; correct what writes it, or its type in "
            "the model", self._where, feature, reason, shown,
        )  # fmt: skip
