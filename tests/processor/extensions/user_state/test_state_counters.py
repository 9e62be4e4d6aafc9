"""Counters of user states: every outcome of a look has a place, and each is seen by name."""

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK, CAUSES, StateCounters


def test_looks_are_counted_by_outcome():
    counters = StateCounters()
    counters.looked(arena.HIT, 0.5, 20.0)
    for outcome in CAUSES:
        counters.looked(outcome, 0.25, 0.0)
    counters.computed(True)
    counters.computed(False)
    counters.left_out()
    shown = by_name(counters.snapshot(4096), BLOCK)
    assert {name: shown[name] for name in ("hits", "hit_age_s", "look_s", "kept", "unkept", "unasked", "nbytes")} == {
        "hits": 1, "hit_age_s": 20.0, "look_s": 2.0, "kept": 1, "unkept": 1, "unasked": 1, "nbytes": 4096,
    }  # fmt: skip
    assert [shown[f"misses.{cause}"] for cause in CAUSES.values()] == [1] * len(CAUSES)
    assert {arena.HIT, *CAUSES} == set(range(7))
