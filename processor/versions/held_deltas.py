"""Held (quarantined) deltas: when a hold may be released automatically, and which deltas survive a rejected one.

Deltas behind a rejected one
Every delta names its parent, so the deltas behind a bad one are undone with it. But a delta contains whole rows and
tensors, not differences: one that shares nothing with the bad delta means the same without it. A delta depends on a bad
one if both change (or remove) the same row, or if both change a dense tensor, as its values were learned from the
discarded ones. What depends on a bad delta is bad, and so on. The others are published again on top of what is served,
in their order and under new steps (a step names one content for good), and are checked like any delta.

So nothing is kept of a trainer that publishes its dense weights with every delta: it rolls back itself, and learns the
rows again or skips them. What is kept are deltas of other tables, other shards or other jobs.

Rejected: keeping parts of a delta (rows learned beside poisoned weights, without those weights, are a model that was
never trained); keeping what differs by little (it is unknown how far poison reaches).

Automatic release
A gate may be lifted only by the party that set it. Guards of servers mark their holds by how the reason begins
(held_reason). Any other hold, by a person or a trainer, must be lifted by them, also where a guard has moved the gate
further back since.

Checking a release stages and scores everything behind the gate. It is done once for each pair of served and newest
generation, and the next check waits LOOK_SHARE times as long as the last one took.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.repository import HOLD, MAX_REASON, RELEASE, ROLLBACK, ChainLink, ChangeLog, History


def sound_behind(change_log: ChangeLog, gate: ChainLink) -> list[Delta]:
    """Return the deltas behind a gate that do not depend on the first of them; none if one cannot be read."""
    history = change_log.history
    held = [link for link in history.back(history.head) if link.step > gate.step][::-1]
    try:
        deltas = [change_log.read_delta(link) for link in held]
    except FreshetError:
        return []
    return apart_from(deltas[0], deltas[1:])


def apart_from(bad: Delta, later: Sequence[Delta]) -> list[Delta]:
    """Return the later deltas that do not depend on a bad one, in order."""
    touched = {name: _ids(bad, name) for name in bad.tables}
    dense, apart = bool(bad.dense), list[Delta]()
    for delta in later:
        rows = any(np.isin(_ids(delta, name), touched[name]).any() for name in delta.tables if name in touched)
        if not rows and not (dense and delta.dense):
            apart.append(delta)
            continue
        dense = dense or bool(delta.dense)
        for name in delta.tables:
            earlier = touched.get(name)
            touched[name] = _ids(delta, name) if earlier is None else np.union1d(earlier, _ids(delta, name))
    return apart


def publish_anew(change_log: ChangeLog, deltas: Sequence[Delta]) -> list[int]:
    """Publish deltas on the head in order, under new steps, up to the first that fails; return those steps."""
    steps = list[int]()
    for delta in deltas:
        head = change_log.history.head
        if steps and head.step != steps[-1]:
            break
        again = replace(delta, step=change_log.history.top + 1, parent_step=head.step, compacted=False)
        try:
            change_log.publish(again)
        except FreshetError:
            break
        steps.append(again.step)
    return steps


def _ids(delta: Delta, table: str) -> NDArray[np.int64]:
    changes = delta.tables[table]
    return np.concatenate([changes.keys, changes.removed])


LOOK_SHARE = 20
AUTOMATIC = "automatic: "
"""Prefix of a release's reason that no person requested."""
BY_GUARD = re.compile(r"[0-9]+\.[0-9]+ held: ")


def held_reason(generation: Generation, reason: str) -> str:
    """Return the reason of a guard's hold before a generation."""
    return f"{generation} held: {reason}"[:MAX_REASON]


def set_by_guard(history: History) -> bool:
    """Return True if the current gate was requested by guards of servers alone."""
    if history.gate is None or not BY_GUARD.match(history.held):
        return False
    for record in reversed(history.events):
        if record.kind == RELEASE or (record.kind == ROLLBACK and record.step <= history.gate.step):
            # This record lifted any gate set before it.
            return True
        if record.kind == HOLD and not BY_GUARD.match(record.reason):
            return False
    return True


class ReleaseBackoff:
    """Schedule of one server's release checks for one version."""

    def __init__(self) -> None:
        self._pair = ("", "")
        self._next_s = 0.0

    def due(self, pair: tuple[str, str], now_s: float) -> bool:
        """Return True if a check of the pair (digests of the served and the newest generation) is due."""
        return pair != self._pair and now_s >= self._next_s

    def looked(self, pair: tuple[str, str], began_s: float, now_s: float) -> None:
        """Record that a check of a pair has ended."""
        self._pair, self._next_s = pair, now_s + LOOK_SHARE * (now_s - began_s)
