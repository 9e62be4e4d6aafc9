"""What becomes of deltas that are held: when a hold may end by itself, and what a rejected delta leaves.

What a rejected delta leaves of those behind it: which stand on it, and which are published anew.

In the chain every delta names its parent, so what comes behind a bad one is undone with it. But a delta holds whole
rows and tensors, not differences: one that shares nothing with the bad delta means the same without it. A delta stands
on a bad one where it changes a row that the bad one changed or removed too, or any dense tensor where the bad one
changed some: what it holds of them was learned from what is thrown away. What stands on a bad delta is bad, and what
stands on that too. The others are published on what is served, in their order and under new steps (a step names one
content for good), and judged like any delta.

So of a trainer that publishes its dense weights with every delta nothing is kept: it goes back itself, and learns the
rows again or skips them. Kept are deltas of other tables, other shards or other jobs.

Refused: parts of a delta (rows that were learned beside poisoned weights, without them, are a model that nobody has
trained); what differs by little (how far poison reaches is what nobody knows).

When a hold may end by itself: whose it is, and when it is worth another look. Pure.

A gate is lifted by who set it. Servers' guards sign the reasons of their holds by how they begin (held_reason); what
else holds a chain, a person or a trainer, is theirs to lift, also where a guard has moved the gate further back since.

A look stages and scores everything behind the gate, so it costs what all of that holds. It is made once for each pair
of what is served and what is newest, and takes at most a LOOK_SHAREth of the time however long the hold lasts.
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
    """The deltas behind a gate that do not stand on the first of them; none where one of them cannot be read."""
    history = change_log.history
    held = [link for link in history.back(history.head) if link.step > gate.step][::-1]
    try:
        deltas = [change_log.read_delta(link) for link in held]
    except FreshetError:
        return []
    return apart_from(deltas[0], deltas[1:])


def apart_from(bad: Delta, later: Sequence[Delta]) -> list[Delta]:
    """Those of deltas behind a bad one that do not stand on it, in their order."""
    touched = {name: _ids(bad, name) for name in bad.tables}
    dense, apart = bool(bad.dense), list[Delta]()
    for delta in later:
        rows = any(np.isin(_ids(delta, name), touched[name]).any() for name in delta.tables if name in touched)
        if not rows and not (dense and delta.dense):
            apart.append(delta)
            continue
        dense = dense or bool(delta.dense)
        for name in delta.tables:
            known = touched.get(name)
            touched[name] = _ids(delta, name) if known is None else np.union1d(known, _ids(delta, name))
    return apart


def publish_anew(change_log: ChangeLog, deltas: Sequence[Delta]) -> list[int]:
    """Publishes deltas on the head under new steps, which it returns; up to the first that cannot be, as where somebody
    else has published meanwhile."""
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
