"""Poison for the guard trial: deltas that are well-formed and bad, made from what a server serves.

Each kind gives looks: the deltas that are there when the server looks next. rows: what clients ask for afterwards, by
which the damage is measured and evidence comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.package.delta import Delta, TableDelta
from loadtest.bench.guard_replay import Replay
from loadtest.bench.guard_streams import MODEL

NONE = np.empty(0, np.int64)
BIAS = "linear/bias"
"""The weight that every score of the zoo's default network has in common."""
EXTREME, LEAST_KEYS = 25.0, 100
DRIFTS = 60
MANY_EVENTS = 10**12
NEW_IDS, FIRST_NEW = 2000, 5_000_000_000
HIT = 0.25
"""Share of the rows asked afterwards that read what was poisoned, where nobody has asked for that before."""

Looks = list[list[Delta]]


@dataclass(frozen=True, slots=True)
class PoisonCase:
    """A kind of poison. make: the looks, and the rows that are asked for afterwards, None for those that are asked for
    anyway."""

    name: str
    make: Callable[[Replay, int], tuple[Looks, Batch | None]]


def _delta(
    replay: Replay, tables: dict[str, TableDelta], dense: dict[str, Any] | None = None, events: int = 0
) -> Delta:
    return Delta(MODEL, 1, 1, 0, tables, dense or {}, published_at=replay.clock.unix_s(), events=events)


def _telling(replay: Replay) -> tuple[str, str, NDArray[np.int64], NDArray[np.float32]]:
    """The table of ids that tells the rows apart that are asked for, by how far its rows lie from each other in them:
    the input that reads it, its name, keys and rows."""
    exported, _ = replay.export()
    manifest = replay.replica.manifest
    inputs = {i.name for i in manifest.inputs}
    found = []
    for f in manifest.features:
        if f.table and f.kind == "id" and f.input in inputs:
            keys, rows = exported[f.table]
            read = rows[np.flatnonzero(np.isin(keys, _ids(replay.kept.earlier, f.input)))]
            spread = float(read.var(axis=0).sum()) if len(read) >= LEAST_KEYS else 0.0
            found.append((spread, f.input, f.table, keys, rows))
    return max(found, key=lambda each: each[:3])[1:]


def _times(replay: Replay, factor: float) -> Any:
    """The bias at which the mean score of what is asked for is so many times what it is."""
    scores = replay.score(replay.asked).astype(np.float64).clip(1e-6, 1 - 1e-6)
    log_odds, low, high = np.log(scores / (1 - scores)), -10.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        mean = (1 / (1 + np.exp(-log_odds - middle))).mean()
        low, high = (middle, high) if mean < factor * scores.mean() else (low, middle)
    return (replay.export()[1][BIAS] + np.float32(low)).astype(np.float32)


def _scaled(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    return [[_delta(replay, {}, {BIAS: _times(replay, 1.1)})]], None


def _permuted_table(replay: Replay, seed: int, events: int = 0) -> Delta:
    _, name, keys, rows = _telling(replay)
    order = np.random.default_rng(seed).permutation(len(keys))
    return _delta(replay, {name: TableDelta(keys, rows[order], NONE)}, events=events)


def _permuted(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    return [[_permuted_table(replay, seed)]], None


def _zeroed(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    _, name, keys, rows = _telling(replay)
    return [[_delta(replay, {name: TableDelta(keys, np.zeros_like(rows), NONE)})]], None


def _nine(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    """All rows of all tables times -3, as in the attack that was seen, and eight deltas of three rows behind it."""
    exported, _ = replay.export()
    tables = {name: TableDelta(keys, rows * np.float32(-3), NONE) for name, (keys, rows) in exported.items()}
    _, name, keys, rows = _telling(replay)
    small = [
        _delta(replay, {name: TableDelta(keys[n * 3 : n * 3 + 3], rows[n * 3 : n * 3 + 3] * np.float32(-3), NONE)})
        for n in range(8)
    ]
    return [[_delta(replay, tables), *small]], None


def _events(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    return [[_permuted_table(replay, seed, MANY_EVENTS)]], None


def _hundredfold(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    """The next good delta's change, a hundred times."""
    exported, weights = replay.export()
    coming, tables = replay.kept.read(replay.followed), {}
    for name, changes in coming.tables.items():
        keys, rows = exported[name]
        order = np.argsort(keys)
        at = order[np.searchsorted(keys, changes.keys, sorter=order).clip(max=len(keys) - 1)]
        known = keys[at] == changes.keys
        old = np.where(known[:, None], rows[at], 0)
        tables[name] = TableDelta(changes.keys, (old + 100 * (changes.rows - old)).astype(np.float32), NONE)
    moved = {name: weights[name] + 100 * (new - weights[name]) for name, new in coming.dense.items()}
    dense = {name: tensor.astype(np.float32) for name, tensor in moved.items()}
    return [[_delta(replay, tables, dense)]], None


def _drift(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    """Looks are made one by one by who tries them: each raises what is served by then by 5 %."""
    return [[]] * DRIFTS, None


def drift_step(replay: Replay) -> Delta:
    """Make the next delta of a drift."""
    return _delta(replay, {}, {BIAS: _times(replay, 1.05)})


def _unasked(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    """Rows of a table that no row asks for that is asked by now; asked for afterwards."""
    feature, name, keys, rows = _telling(replay)
    so_far = replay.kept.asked[: replay.followed // 25 + 1]
    asked = np.concatenate([_ids(batch, feature) for batch in so_far])
    left = np.flatnonzero(~np.isin(keys, asked))[:500]
    if len(left) < 20:
        return [], None
    delta = _delta(replay, {name: TableDelta(keys[left], np.full_like(rows[left], EXTREME), NONE)})
    return [[delta]], _hitting(replay, feature, keys[left], seed)


def _new_ids(replay: Replay, seed: int) -> tuple[Looks, Batch | None]:
    """Ids that nobody has seen, with rows that no training makes; asked for afterwards."""
    feature, name, _, rows = _telling(replay)
    keys = FIRST_NEW + np.arange(NEW_IDS, dtype=np.int64)
    delta = _delta(replay, {name: TableDelta(keys, np.full((NEW_IDS, rows.shape[1]), EXTREME, np.float32), NONE)})
    return [[delta]], _hitting(replay, feature, keys, seed)


def _ids(batch: Batch, feature: str) -> NDArray[np.int64]:
    ids: Any = batch.columns[feature]
    return np.asarray(ids, np.int64)


def _hitting(replay: Replay, feature: str, keys: NDArray[np.int64], seed: int) -> Batch:
    """The rows that are asked for, a share of which reads these keys."""
    random, batch = np.random.default_rng(seed), replay.kept.earlier.slice(0, 512)
    ids, hit = _ids(batch, feature).copy(), random.random(len(batch)) < HIT
    ids[hit] = random.choice(keys, int(hit.sum()))
    return replace(batch, columns=batch.columns | {feature: ids})


POISONS = (
    PoisonCase("scores times 1.1", _scaled),
    PoisonCase("a table permuted", _permuted),
    PoisonCase("a table zeroed", _zeroed),
    PoisonCase("a batch of nine, rows times -3", _nine),
    PoisonCase("permuted, events 10^12", _events),
    PoisonCase("drift of 5 % a delta", _drift),
    PoisonCase("500 rows that nobody asks", _unasked),
    PoisonCase("2,000 new ids", _new_ids),
    PoisonCase("the next change a hundred times", _hundredfold),
)
DRIFT = POISONS[5]
