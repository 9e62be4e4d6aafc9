"""Counters of kept users: every verb and every cause has a place, and each is seen by name."""

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.extensions.user_state.user_counters import BLOCK, CAUSES, VERBS, UserCounters


def test_changes_gone_users_and_conflicts_are_counted_by_name():
    counters = UserCounters()
    for times, verb in enumerate(VERBS, 1):
        for _ in range(times):
            counters.changed(verb)
    for outcome in CAUSES:
        counters.gone(outcome)
    counters.conflicted()
    shown = by_name(counters.snapshot(3, 4096), BLOCK)
    assert shown == {
        **{f"changes.{verb}": times for times, verb in enumerate(VERBS, 1)},
        **{f"gone.{cause}": 1 for cause in CAUSES.values()},
        "conflicts": 1, "users": 3, "nbytes": 4096,
    }  # fmt: skip
