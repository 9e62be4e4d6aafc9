"""Count what became of the looks for one version's user states. Several threads count, under one lock."""

from __future__ import annotations

import threading

from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.package import FLOPS, Manifest

BLOCK = "user_state"
CAUSES = {
    arena.ABSENT: "absent",
    arena.EVICTED: "evicted",
    arena.TORN: "torn",
    arena.EXPIRED: "expired",
    arena.OTHER_WEIGHTS: "dense",
    arena.OTHER_ROWS: "rows",
}
NBYTES = Slot(BLOCK, "nbytes", "model_user_state_bytes", "Memory of user states.", gauge=True)
COUNTERS = (
    Slot(BLOCK, "hits", "model_user_state_hits", "Requests whose user part was computed before."),
    Slot(
        BLOCK, "hit_age_s", "model_user_state_hit_age_seconds",
        "Seconds since the user part was computed, summed over hits.", zero=0.0,
    ),
    Slot(
        BLOCK, "older", "model_user_state_older_hits",
        "Of the hits, those whose user part was of an older generation than the reply.",
    ),
    Slot(
        BLOCK, "older_steps", "model_user_state_older_steps",
        "Steps by which the user part was older, summed over such hits.",
    ),
    Slot(
        BLOCK, "rounded", "model_user_state_rounded_hits",
        "Of the hits, those whose user part was kept as float16.",
    ),
    Slot(
        BLOCK, "look_s", "model_user_state_look_seconds",
        "Seconds spent naming requests and looking for their user part.", zero=0.0,
    ),
    Slot(BLOCK, "kept", "model_user_state_kept", "User parts that were kept."),
    Slot(BLOCK, "unkept", "model_user_state_not_kept", "User parts that were computed and not admitted."),
    Slot(
        BLOCK, "beyond", "model_user_state_beyond_range",
        "User parts that were computed and not kept, as float16 does not hold one of their numbers.",
    ),
    Slot(
        BLOCK, "unasked", "model_user_state_unasked",
        "Requests whose user part was not looked for, as looks for more users did not pay.",
    ),
    *Slot(
        BLOCK, "misses", "model_user_state_misses",
        "Requests whose user part had to be computed, by cause.", "cause",
    ).each(CAUSES.values()),
    Slot(
        BLOCK, "saved_flops", "model_user_state_saved_flops",
        "Floating-point operations of user parts that hits did not compute again.",
    ),
    NBYTES,
)  # fmt: skip
HITS, HIT_AGE_S, OLDER, OLDER_STEPS, ROUNDED, LOOK_S, KEPT, UNKEPT, BEYOND, UNASKED, MISSES = range(11)
SAVED = MISSES + len(CAUSES)


def flops_of(manifest: Manifest, name: str) -> int:
    """Return the FLOPs of a user's subgraph, or 0 if they were not counted."""
    # Tools may write anything into notes.
    counted = manifest.notes.get(FLOPS)
    flops = counted.get(name) if isinstance(counted, dict) else None
    return flops if isinstance(flops, int) else 0


class StateCounters:
    def __init__(self) -> None:
        self._block, self._lock = CounterBlock(COUNTERS), threading.Lock()
        self._misses = {cause: MISSES + n for n, cause in enumerate(CAUSES)}

    def looked(self, outcome: int, seconds: float, age_s: float, flops: int) -> None:
        """Count a look: a HIT of some age, or the cause of a miss (state_arena); FLOPs are 0 if unknown."""
        with self._lock:
            cells = self._block.cells
            cells[LOOK_S] += seconds
            if outcome == arena.HIT:
                cells[HITS] += 1
                cells[HIT_AGE_S] += age_s
                cells[SAVED] += flops
            else:
                cells[self._misses[outcome]] += 1

    def used_older(self, steps: int) -> None:
        with self._lock:
            self._block.cells[OLDER] += 1
            self._block.cells[OLDER_STEPS] += steps

    def add(self, place: int) -> None:
        """Count one more at ROUNDED, KEPT, UNKEPT, BEYOND or UNASKED."""
        with self._lock:
            self._block.cells[place] += 1

    def snapshot(self, nbytes: int) -> Snapshot:
        with self._lock:
            return {**self._block.snapshot(), NBYTES: nbytes}
