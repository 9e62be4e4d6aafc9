"""Rank next items by counting, which a next-item network has to beat.

popularity   how often each item was met
last item    share of the events after the last item that were of it
last two     that, plus the share of the events two after the item before the last one

Ties and seen items are as in models.evaluation.catalogue_ranking, ties in the order of popularity.

Costs: two sorts of the events counted. Ranking a target takes as many steps as items have followed its last two, and at
most MOST_STEPS are made, for targets in their order: the figures say over how many.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.next_item_rows import NextItemRows
from freshet_serving.models.data.value_hashes import value_hashes
from freshet_serving.models.evaluation.catalogue_ranking import places_of
from freshet_serving.models.evaluation.ranking import RankingResult, RankTally
from freshet_serving.processor.columns import Ragged

POPULARITY, LAST_ITEM, LAST_TWO = "popularity", "last item", "last two"
MOST_STEPS = 1 << 22
CASES = 2048

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class Followers:
    """The items that came some events after each item, with their shares."""

    def __init__(self, before: Int64s, after: Int64s, items: int) -> None:
        """Count pairs of numbers of items, int64 [n]: one before, and what came after."""
        keys, counts = np.unique(before * items + after, return_counts=True)
        rows, self._items = keys // items, keys % items
        self._ends: Int64s = np.searchsorted(rows, np.arange(items + 1))
        self._shares = counts / np.bincount(rows, counts, minlength=items)[rows]

    def steps(self, items: Int64s) -> Int64s:
        return np.where(items < 0, 0, self._ends[items + 1] - self._ends[items])

    def of(self, items: Int64s) -> tuple[Int64s, Int64s, Float64s]:
        """Return what has followed items: the place of each in `items`, the follower, and its share."""
        counts = self.steps(items)
        places = np.repeat(np.arange(len(items)), counts)
        firsts = np.cumsum(counts) - counts
        at = np.repeat(np.where(items < 0, 0, self._ends[items]) - firsts, counts) + np.arange(int(counts.sum()))
        return places, self._items[at], self._shares[at]


class NextItemBaselines:
    """Counts of the events of a log before a row, and ranks of the items of later events."""

    def __init__(self, log: NextItemRows, item: str, before: int, top: int) -> None:
        """Count the events of rows before `before`; `item` is the sequence's column of items, `top` places count."""
        self.top, self._left = top, MOST_STEPS
        column, alone = log.events_before(before, item)
        self._keys, numbers = np.unique(value_hashes(column), return_inverse=True)
        numbers = numbers.reshape(-1)
        count = max(1, len(self._keys))
        popularity = np.bincount(numbers, minlength=count)
        # Items that are at least as popular as each: those before the first less popular one.
        self._popularity, self._ahead = popularity, np.searchsorted(np.sort(-popularity), -popularity, side="right")
        second, third = ~alone[1:], ~(alone[1:-1] | alone[2:])
        self._after = Followers(numbers[:-1][second], numbers[1:][second], count)
        self._two_after = Followers(numbers[:-2][third], numbers[2:][third], count)
        self._tallies = {name: RankTally(top) for name in (POPULARITY, LAST_ITEM, LAST_TWO)}

    @property
    def targets(self) -> int:
        return self._tallies[POPULARITY].targets

    def rank(self, log: NextItemRows, item: str, first: int, last_only: bool = False) -> None:
        """Rank the items of events, or of each user's last, from row `first` on, as many as MOST_STEPS allows."""
        for histories, targets in log.cases(CASES, first, item, last_only):
            past = histories[item]
            assert isinstance(past, Ragged)
            seen, ends = places_of(self._keys, value_hashes(past.values)), past.row_splits
            if not self._add(seen, ends, places_of(self._keys, value_hashes(targets))):
                return

    def results(self) -> dict[str, RankingResult]:
        """Return the means of each baseline over the targets; NaN without one."""
        return {name: tally.result() for name, tally in self._tallies.items()}

    def line(self) -> str:
        """Return what the baselines reach, in one line; "" if nothing was ranked."""
        if not self.targets:
            return ""
        figures = (f"{name} HR {r.hit_rate:.4f} NDCG {r.ndcg:.4f}" for name, r in self.results().items())
        return f"baseline: {', '.join(figures)} in the first {self.top} over {self.targets:,} events"

    def lines(self) -> Iterator[dict[str, object]]:
        """Yield flat objects with what = 'baseline'."""
        for name, result in self.results().items() if self.targets else ():
            figures = {"hit_rate": result.hit_rate, "ndcg": result.ndcg, "events": result.groups}
            yield {"what": "baseline", "name": name, "top": self.top} | figures

    def advice(self, ndcg: float) -> str:
        """Return one line if a network with this NDCG does not beat the best baseline; else ""."""
        results = self.results()
        best = max(results, key=lambda name: results[name].ndcg)
        if not ndcg < results[best].ndcg:
            return ""
        return (
            f"the network does not beat counting ({best}, NDCG {results[best].ndcg:.4f}): it needs more events or"
            " epochs (docs/how-to/evaluation.md#baselines)"
        )

    def _add(self, seen: Int64s, ends: Int64s, targets: Int64s) -> bool:
        """Rank targets [n] after histories of items `seen`, with row_splits `ends`; return False after MOST_STEPS."""
        lengths, padded = np.diff(ends), np.append(seen, -1)
        last = np.where(lengths > 0, padded[ends[1:] - 1], -1)
        second = np.where(lengths > 1, padded[np.maximum(ends[1:] - 2, 0)], -1)
        steps = np.cumsum(self._after.steps(last) + self._two_after.steps(second))
        rows = int(np.searchsorted(steps, self._left, side="right"))
        whole, self._left = rows == len(targets), self._left - int(steps[rows - 1] if rows else 0)
        targets, last, second = targets[:rows], last[:rows], second[:rows]
        history = _pairs(np.repeat(np.arange(rows), lengths[:rows]), seen[: ends[rows]], len(self._popularity))
        after, two_after = self._after.of(last), self._two_after.of(second)
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        both = tuple(np.concatenate(parts) for parts in zip(after, two_after))
        for name, candidates in ((POPULARITY, nothing), (LAST_ITEM, after), (LAST_TWO, both)):
            self._tallies[name].add(self._ranks(candidates, history, targets))  # type: ignore[arg-type]
        return whole

    def _ranks(self, candidates: tuple[Int64s, Int64s, Float64s], history: Int64s, targets: Int64s) -> Int64s:
        """Return each target's rank from 1; past all items for one that was not counted.

        Candidates are places in `targets`, items and shares, added up for a pair that is there twice; `history` has the
        pairs of places and items, ascending, that are no candidates.
        """
        items = len(self._popularity)
        keys, at = np.unique(candidates[0] * items + candidates[1], return_inverse=True)
        shares = np.bincount(at.reshape(-1), candidates[2], minlength=len(keys))
        target_pairs = _pairs(np.arange(len(targets)), targets, items)
        # A target is a candidate even if the user had it before.
        history = history[~np.isin(history, target_pairs)]
        eligible = ~np.isin(keys, history)
        keys, shares = keys[eligible], shares[eligible]
        places, numbers = keys // items, keys % items
        target_shares = np.zeros(len(targets))
        is_target = numbers == targets[places]
        target_shares[places[is_target]] = shares[is_target]
        popularity = self._popularity
        tied = (shares == target_shares[places]) & (popularity[numbers] >= popularity[targets[places]])
        before = np.bincount(places[(shares > target_shares[places]) | tied], minlength=len(targets))
        # A target without a share stands behind all candidates, among the rest by popularity.
        popular = popularity[numbers] >= popularity[targets[places]]
        behind = np.bincount(places[popular], minlength=len(targets))
        places, numbers = history // items, history % items
        gone = np.bincount(places[popularity[numbers] >= popularity[targets[places]]], minlength=len(targets))
        count = np.bincount(keys // items, minlength=len(targets))
        rest = count + self._ahead[np.maximum(targets, 0)] - behind - gone
        ranks: Int64s = np.where(target_shares > 0, before, rest)
        return np.where(targets < 0, 1 << 62, ranks)


def _pairs(places: Int64s, items: Int64s, count: int) -> Int64s:
    """Return pairs of places and items as ascending numbers, each once; those of negative items are left out."""
    return np.unique((places * count + items)[items >= 0])
