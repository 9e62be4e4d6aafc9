"""Choose for each size of request whether it is divided into user and candidates: by timing at load, then by requests.

At load the executables of both ways are timed in turn, and each row count takes the cheaper one. Requests take
something else: inputs are filled, caches hold other things, a neighbour may have disturbed a timing. So where the two
are close, a few batches take the other way, and what they took is compared with the newest requests of its size that
took the usual one. Both are ratios to what load predicts for the same rows, in the batch that really ran: only what
runs cost counts, not how full batches are.

Invariants
- Both ways compute the same scores but for rounding. A request is computed one way. Chunks of a split request may be
  computed batches apart: they and device stages take the way chosen at load.
- A size changes over only after EVIDENCE comparisons whose median says that the two ways differ by more than MARGIN;
  then it needs as many anew. So one slow run changes nothing, and two ways that cost the same do not take turns.
- Where load says that one way costs CLOSE times the other, the dearer one is never tried. So what is tried, less than
  one batch in 100 (runner.EXPLORE_SPLIT_EVERY), costs less than CLOSE times its usual time: a p99 does not see it.
- Several sessions may record at once: a lost value only slows learning. `reversed` is replaced whole.

Rejected: comparing both ways by the cost tables that batches are planned by (only the way that is taken would be
measured, and a bucket's cost lacks what fills it); scoring a batch both ways (the same evidence for twice the work).
With cached user parts (processor.running.user_states) the choice of the load stays: they make the user's part free or
not, request by request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from freshet_serving.processor.running.cost import CostTable

log = logging.getLogger("freshet.replica")

CLOSE = 2.0
"""Ways are compared where the dearer one is predicted to cost less than this many times the other."""
MARGIN = 0.05
EVIDENCE, RECENT = 15, 9


class SplitCost(NamedTuple):
    """Costs of requests of one size, each way, in microseconds (whole: in a well-filled batch).

    `length` is the most events of a history that the parts are for, 0 without histories; `reviews` counts how often
    requests have confirmed or changed the choice since the load.
    """

    length: int
    rows: int
    divided: bool
    whole_us: float
    divided_us: float
    reviews: int


@dataclass(slots=True, eq=False)
class SizeClass:
    """Measured times of requests of [2^k, 2^(k+1)) candidates, as ratios to what load predicts, and their quotients."""

    whole: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    divided: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    evidence: list[float] = field(default_factory=list)
    reviews: int = 0


@dataclass(slots=True, eq=False)
class LengthChoice:
    """The choice for requests whose histories fit one length; lists are by row count.

    Attributes:
        whole_s: Predicted seconds whole, in a well-filled batch.
        pays: True where dividing pays, by the predictions.
        close: True where requests are compared.
        reversed: True where requests have changed the choice.
        sizes: By bit length of the row count, what requests took.
    """

    whole_s: Sequence[float]
    divided_s: Sequence[float]
    pays: list[bool]
    close: list[bool]
    reversed: list[bool]
    sizes: dict[int, SizeClass] = field(default_factory=dict)


class SplitChoice:
    """The choice which requests of one version are divided, in one process.

    In its methods, `length` is the most events of a history that a request's parts are for, `rows` its candidates.
    """

    def __init__(self, name: str, worth: float) -> None:
        """Divide nothing yet; `worth` is the most that dividing may cost, as a part of the whole's cost."""
        self._name, self._worth = name, worth
        self._whole = CostTable({1: 1.0})
        self._lengths: dict[int, LengthChoice] = {}
        self.reviewed = False
        """True if some size is close, so that requests are worth recording."""

    def decide(self, whole: CostTable, divided_s: Mapping[int, Sequence[float]]) -> None:
        """Choose by costs that were measured in turn, and forget what requests took.

        Args:
            whole: Costs of the undivided subgraph; nothing may record to it.
            divided_s: By length of histories, the seconds of a divided request for each row count from 0 on.
        """
        lengths = {}
        for length, ours in divided_s.items():
            whole_s = [whole.amortised_dense_s(rows) for rows in range(len(ours))]
            pays = [divided < self._worth * undivided for divided, undivided in zip(ours, whole_s)]
            close = [undivided < CLOSE * divided < CLOSE**2 * undivided for divided, undivided in zip(ours, whole_s)]
            lengths[length] = LengthChoice(whole_s, ours, pays, close, [False] * len(pays))
        self._whole, self._lengths = whole, lengths
        self.reviewed = any(any(each.close) for each in lengths.values())

    def take_over(self, other: SplitChoice, lengths: Mapping[int, int]) -> None:
        """Begin with another version's choice as it is then; `lengths` are its lengths by the ones here."""
        self._whole, self.reviewed = other._whole, other.reviewed
        for length, other_length in lengths.items():
            each = other._lengths[other_length]
            self._lengths[length] = LengthChoice(each.whole_s, each.divided_s, each.pays, each.close, each.reversed)

    def pays(self, length: int, rows: int) -> bool:
        """Return True if, by what was timed at load, a request is cheaper divided."""
        each = self._lengths.get(length)
        return each is not None and each.pays[min(rows, len(each.pays) - 1)]

    def reverses(self, length: int, rows: int, explore: bool) -> bool:
        """Return True if a request takes the other way than at load; `explore` tries the other than the usual one."""
        each = self._lengths.get(length)
        if each is None or rows >= len(each.close) or not each.close[rows]:
            return False
        return each.reversed[rows] != explore

    def record_divided(self, length: int, rows: int, seconds: float) -> None:
        """Record what a divided request took."""
        each = self._lengths.get(length)
        if each is not None and 0 < rows < len(each.divided_s):
            self.record(length, rows, True, seconds / each.divided_s[rows])

    def record_whole(self, length: int, rows: int, together: int, seconds: float) -> None:
        """Record what an undivided batch of `together` rows took, as one of its requests."""
        self.record(length, rows, False, seconds / self._whole.dense_s(together))

    def record(self, length: int, rows: int, divided: bool, ratio: float) -> None:
        """Learn what a request took, relative to what load predicts; by enough evidence, keep or change the choice."""
        each = self._lengths.get(length)
        if each is None or ratio <= 0 or rows >= len(each.close) or not each.close[rows]:
            return
        size = each.sizes.setdefault(rows.bit_length(), SizeClass())
        (size.divided if divided else size.whole).append(ratio)
        usual = size.whole if divided else size.divided
        if divided == (each.pays[rows] != each.reversed[rows]) or len(usual) < RECENT:
            return
        other = ratio / median(usual)
        size.evidence.append(other if divided else 1 / other)
        if len(size.evidence) >= EVIDENCE:
            quotient, size.evidence = median(size.evidence), []
            size.reviews += 1
            self._review(each, rows.bit_length(), quotient)

    def _review(self, each: LengthChoice, size: int, quotient: float) -> None:
        """Change the way of row counts of a size (bit length) that cost less the other way, by divided to whole."""
        changed = each.reversed.copy()
        first = 1 << (size - 1)
        for rows in range(first, min(2 * first, len(changed))):
            share = quotient * each.divided_s[rows] / each.whole_s[rows]
            divided = each.pays[rows] != changed[rows]
            dearer = share > 1 + MARGIN if divided else share < 1 - MARGIN
            changed[rows] ^= each.close[rows] and dearer
        if changed != each.reversed:
            log.info(
                "%s: requests of %d to %d candidates change over: divided they take %.2f of what load predicts, "
                "relative to whole ones", self._name, first, 2 * first - 1, quotient,
            )  # fmt: skip
            each.reversed = changed

    def divided_now(self, length: int) -> list[bool]:
        """Return for each row count whether a request of so many candidates is divided now; [] before the load."""
        each = self._lengths.get(length)
        return [] if each is None else [pays != other for pays, other in zip(each.pays, each.reversed)]

    def thresholds(self, length: int) -> list[int]:
        """Return row counts, ascending, at which requests begin to be divided, stop, begin again, and so on."""
        now = self.divided_now(length)
        return [rows for rows, (before, divided) in enumerate(zip([False, *now], now)) if divided != before]

    def costs(self) -> list[SplitCost]:
        """Return what both ways cost, for row counts that are powers of two, by length."""
        return [
            _cost(length, each, 1 << power)
            for length, each in sorted(self._lengths.items())
            for power in range((len(each.pays) - 1).bit_length())
            if 1 << power < len(each.pays)
        ]


def _cost(length: int, each: LengthChoice, rows: int) -> SplitCost:
    size = each.sizes.get(rows.bit_length(), SizeClass())
    whole_us = each.whole_s[rows] * (median(size.whole) if size.whole else 1.0) * 1e6
    divided_us = each.divided_s[rows] * (median(size.divided) if size.divided else 1.0) * 1e6
    divided = each.pays[rows] != each.reversed[rows]
    return SplitCost(length, rows, divided, round(whole_us, 1), round(divided_us, 1), size.reviews)
