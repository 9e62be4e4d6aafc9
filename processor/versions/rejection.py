"""What a rejected delta leaves of those behind it: which stand on it, and which are published anew.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.history import ChainLink


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
