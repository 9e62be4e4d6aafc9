"""Counters of user states: every outcome of a look has a place, and each is seen by name."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_counters import (
    BEYOND,
    BLOCK,
    CAUSES,
    KEPT,
    ROUNDED,
    UNASKED,
    UNKEPT,
    StateCounters,
    flops_of,
)


def test_looks_are_counted_by_outcome():
    counters = StateCounters()
    counters.looked(arena.HIT, 0.5, 20.0, 300)
    for outcome in CAUSES:
        counters.looked(outcome, 0.25, 0.0, 300)
    for place in (KEPT, UNKEPT, UNASKED, ROUNDED, BEYOND):
        counters.add(place)
    shown = by_name(counters.snapshot(4096), BLOCK)
    expected = {
        "hits": 1, "hit_age_s": 20.0, "look_s": 2.0, "kept": 1, "unkept": 1, "unasked": 1, "saved_flops": 300,
        "rounded": 1, "beyond": 1,
        "nbytes": 4096,
    }  # fmt: skip
    assert {name: shown[name] for name in expected} == expected
    assert [shown[f"misses.{cause}"] for cause in CAUSES.values()] == [1] * len(CAUSES)
    assert {arena.HIT, *CAUSES} == set(range(7))


@pytest.mark.parametrize(
    "notes", [{}, {"flops": None}, {"flops": [7]}, {"flops": {"user": "7"}}, {"flops": {"score": 7}}]
)
def test_work_that_nobody_counted_is_none(notes):
    assert flops_of(SimpleNamespace(notes=notes), "user") == 0
    assert flops_of(SimpleNamespace(notes={"flops": {"user": 7, "user_32": 3}}), "user_32") == 3
