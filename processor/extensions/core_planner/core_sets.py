"""Choose the cores themselves for a plan, so that as few as possible change hands. Pure."""

from __future__ import annotations

from collections.abc import Mapping

SHARED = ""
"""Name under which cores_of() has the shared cores."""


def cores_of(
    counts: Mapping[str, int], before: Mapping[str, frozenset[int]], allowed: frozenset[int]
) -> dict[str, frozenset[int]]:
    """Return each group's cores by their counts; what is left of the allowed ones is SHARED.

    A group keeps the cores that it had before, the lowest of them if it has too many; what it lacks it takes from the
    shared ones, the highest first.
    """
    sets = {name: frozenset(sorted(before.get(name, frozenset()) & allowed)[:count]) for name, count in counts.items()}
    free = sorted(allowed.difference(*sets.values()))
    for name, count in counts.items():
        missing = count - len(sets[name])
        if missing > 0:
            sets[name] |= frozenset(free[len(free) - missing :])
            free = free[: len(free) - missing]
    return {**sets, SHARED: frozenset(free)}
