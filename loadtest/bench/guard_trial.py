"""The trial of a server's guard: good streams are followed, and each poison is tried on each of them.

A poison is *held* where nothing of it is served; *rolled back* where it was served and then taken back by itself, after
so many seconds of 64 requests a second with their labels; *served* where neither happened within WATCHED_S. Of what was
served it says how far the mean score of the rows that are asked for has moved, and their rank correlation with before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.extensions.guard.delta_figures import rank_correlation
from loadtest.bench.guard_poison import DRIFT, POISONS, PoisonCase, drift_step
from loadtest.bench.guard_replay import GoodOutcome, Replay
from loadtest.bench.guard_streams import KeptStream

WARM_DELTAS = 60
WATCHED_S = 180
HELD, ROLLED_BACK, SERVED, NOT_TRIED = "held", "rolled back", "served", "not tried"


@dataclass(frozen=True, slots=True)
class PoisonOutcome:
    """What became of a poison.

    Attributes:
        outcome: HELD, ROLLED_BACK, SERVED or NOT_TRIED.
        reason: of the hold or the rollback.
        seconds: until the rollback.
        deltas: of a drift, how many were served.
        moved: mean score over the one before, less 1, of the rows asked afterwards.
        correlation: rank correlation of their scores with those before.
    """

    outcome: str
    reason: str = ""
    seconds: int = 0
    deltas: int = 0
    moved: float = 0.0
    correlation: float = 1.0


def try_good(kept: KeptStream, folder: Path) -> GoodOutcome:
    """Follow all deltas of a good stream."""
    try:
        return Replay(kept, folder).follow(0, len(kept.deltas))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_poison(poison: PoisonCase, kept: KeptStream, folder: Path, seed: int = 0) -> PoisonOutcome:
    """Try one poison behind WARM_DELTAS good deltas of a stream."""
    try:
        replay = Replay(kept, folder)
        replay.follow(0, min(WARM_DELTAS, len(kept.deltas)))
        if replay.held():
            # A good delta is held: what comes behind it would be held for it.
            replay.model.release(1, "by hand")
            replay.follow(min(WARM_DELTAS, len(kept.deltas)), min(WARM_DELTAS + 10, len(kept.deltas)))
        return _tried(poison, replay, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tried(poison: PoisonCase, replay: Replay, seed: int) -> PoisonOutcome:
    if replay.held():
        return PoisonOutcome(NOT_TRIED, f"held before: {replay.held()}")
    looks, asked = poison.make(replay, seed)
    if not looks:
        return PoisonOutcome(NOT_TRIED, "no such rows")
    asked = asked or replay.asked
    before, served_step, drifted = replay.score(asked), replay.version.generation.step, 0
    for look in looks:
        replay.publish(*([drift_step(replay)] if poison is DRIFT else look))
        if replay.held():
            break
        drifted += 1
        if lines := replay.ask(replay.asked) if poison is DRIFT else []:
            return PoisonOutcome(ROLLED_BACK, lines[0], 1, drifted, *_damage(before, replay.score(asked)))
    after = replay.score(asked)
    if reason := replay.held():
        served = replay.version.generation.step - served_step
        return PoisonOutcome(HELD, reason, 0, served, *_damage(before, after))
    for second in range(1, WATCHED_S + 1):
        if lines := replay.ask(asked, seconds=1):
            return PoisonOutcome(ROLLED_BACK, lines[0], second, drifted, *_damage(before, after))
    return PoisonOutcome(SERVED, "", WATCHED_S, drifted, *_damage(before, after))


def _damage(before: Any, after: Any) -> tuple[float, float]:
    """(mean after over mean before, less 1; rank correlation)."""
    old, new = before.astype(np.float64), after.astype(np.float64)
    return float(new.mean() / old.mean() - 1), rank_correlation(old, new)


def try_stream(kept: KeptStream, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Try a kept stream and every poison on it; JSON-able."""
    good = try_good(kept, work / "good")
    back = len(good.taken_back)
    say(f"  {good.deltas} good deltas: {len(good.held)} held, released after {good.waited}, {back} rolled back")
    poisons = {}
    for n, poison in enumerate(POISONS):
        found = try_poison(poison, kept, work / "poison", seed=n)
        poisons[poison.name] = asdict(found)
        say(f"  {poison.name}: {found.outcome} {found.seconds or ''} {found.reason[:150]}")
    return {"good": asdict(good), "trainer_held": list(kept.held), "poisons": poisons}
