"""When a hold may end by itself: whose it is, and when it is worth another look. Pure.

A gate is lifted by who set it. Servers' guards sign the reasons of their holds by how they begin (held_reason); what
else holds a chain, a person or a trainer, is theirs to lift, also where a guard has moved the gate further back since.

A look stages and scores everything behind the gate, so it costs what all of that holds. It is made once for each pair
of what is served and what is newest, and takes at most a LOOK_SHAREth of the time however long the hold lasts.
"""

from __future__ import annotations

import re

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.chain_record import HOLD, MAX_REASON, RELEASE, ROLLBACK
from freshet_serving.processor.repository.log.history import History

LOOK_SHARE = 20
AUTOMATIC = "automatic: "
"""Begins the reason of a release that no person has asked for."""
BY_GUARD = re.compile(r"[0-9]+\.[0-9]+ held: ")


def held_reason(generation: Generation, reason: str) -> str:
    """What a guard's hold says of the first generation that is not served."""
    return f"{generation} held: {reason}"[:MAX_REASON]


def set_by_guard(history: History) -> bool:
    """Whether servers' guards alone have asked for the gate that is there."""
    if history.gate is None or not BY_GUARD.match(history.held):
        return False
    for record in reversed(history.events):
        if record.kind == RELEASE or (record.kind == ROLLBACK and record.step <= history.gate.step):
            # It lifted whatever gate was there.
            return True
        if record.kind == HOLD and not BY_GUARD.match(record.reason):
            return False
    return True


class ReleaseBackoff:
    """The looks of one server at what one version holds."""

    def __init__(self) -> None:
        self._pair = ("", "")
        self._next_s = 0.0

    def due(self, pair: tuple[str, str], now_s: float) -> bool:
        """Whether to look. pair: digests of what is served and of what is newest."""
        return pair != self._pair and now_s >= self._next_s

    def looked(self, pair: tuple[str, str], began_s: float, now_s: float) -> None:
        """A look at a pair has ended."""
        self._pair, self._next_s = pair, now_s + LOOK_SHARE * (now_s - began_s)
