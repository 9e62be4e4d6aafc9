"""Decide of which users it pays to look for a state: of all while looks pay, of a sample while they do not.

A miss costs the look and the keeping of what is computed; where few users come again while their state is valid, that
is more than hits save. A gate keeps a balance of both, in measured seconds. Where it has lost as much as BALANCE misses
cost, half of the users are left out; where it has won as much, they come back.

Invariants
- A user is in or out as a whole: by bits of a hash of what the request sends, the same in all processes.
- The gate judges by users that were in before the last half came back, and that stay in if it is left out again: those
  who were left out have no states yet.
- At least one in 2**MOST_HALVINGS users is looked for, so hits that begin to pay are seen. A user who is left out costs
  the hash.

Rejected: a threshold on the hit rate (what a hit is worth differs by a factor of 100 between models); a closed gate
that opens for all at once (most looks of users who were left out are misses, so it would close again).
"""

from __future__ import annotations

import threading

BALANCE, CREDIT = 32, 512
"""Misses whose cost, lost or won, leaves users out or takes them back; and those that can be won in advance."""
MOST_HALVINGS = 5
RATE = 1 / 16
"""Weight of a new measurement of what a miss costs."""


class StateGate:
    """The gate of one user's part. Threads share it."""

    def __init__(self) -> None:
        self._halvings, self._balance_s, self._miss_s = 0, 0.0, 0.0
        self._lock = threading.Lock()

    @property
    def share(self) -> float:
        return float(0.5**self._halvings)

    def admits(self, draw: int) -> bool:
        """Report whether to look for a user whose hash is `draw`, 0 or more, the same for each request."""
        return not draw & ((1 << self._halvings) - 1)

    def judge(self, draw: int, saved_s: float, spent_s: float) -> None:
        """Learn from a look that was made: a hit has saved the time of the user's part, a miss 0.

        `spent_s` is the time of the look, and of keeping what was computed.
        """
        with self._lock:
            if not saved_s:
                self._miss_s += (spent_s - self._miss_s) * (RATE if self._miss_s else 1.0)
            if draw & ((2 << self._halvings) - 1):
                return
            least_s, most_s = -BALANCE * self._miss_s, (BALANCE if self._halvings else CREDIT) * self._miss_s
            self._balance_s = max(least_s, min(most_s, self._balance_s + saved_s - spent_s))
            if self._balance_s == least_s and self._halvings < MOST_HALVINGS:
                self._halvings, self._balance_s = self._halvings + 1, 0.0
            elif self._balance_s == most_s and self._halvings:
                self._halvings, self._balance_s = self._halvings - 1, 0.0
