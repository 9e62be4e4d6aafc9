"""Count in the items' rows how popular they are and what follows them (processor.package.item_rows).

Invariants
- Counts are float32 numbers of the items' rows and nothing else: they are published, restored and undone with the rows.
- Only this module changes them; optimizers do not.
- A pass over the full version counts all its events before it learns any. An event is left out of its own counts when
  it is learned, so that counts say of it what they will say of a new one. Later events are counted once learned.
- A successor's count is exact from its last entry into the row on; the least frequent ones leave.
- Popularity halves every `half_life` rows of the log: the one of HALF_LIVES that predicts the log best. It is a
  logarithm to which later events add more, so a new event touches no other item's row.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import EmbeddingVariable, RowInitializer
from freshet_serving.models.training import item_count_kernels as kernels
from freshet_serving.processor.package.item_rows import (
    KEY_PARTS,
    LOG_FLOOR,
    SCALE,
    SMOOTHING,
    ItemRows,
    joined_keys,
    split_keys,
)

HALF_LIVES, USUAL = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0), 1.0
"""Half-lives of popularity as shares of the full version's rows, and that of a log that was not counted."""
FEWEST_ROWS = 1000
"""The shortest half-life: fewer events are chance."""
BLOCKS, SPREADS = 32, (0.3, 1.0, 3.0, 10.0)
"""A half-life predicts a block of rows from those before; each item has a spread added, the best for the half-life."""
SAMPLE, ROUNDS = 20_000, 60
LEARNED_ALONE = ItemRows(1, False, 0)

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ItemRowInitializer(RowInitializer):
    """First values of items' rows: as any table's, then the item's key, and no counts."""

    layout: ItemRows = LEARNED_ALONE

    def rows(self, ids: Int64s, seed: int, dim: int) -> Float32s:
        rows = np.zeros((len(ids), dim), np.float32)
        rows[:, : self.layout.dim] = RowInitializer(self.kind, self.scale).rows(ids, seed, self.layout.dim)
        if self.layout.successors:
            rows[:, self.layout.own] = split_keys(ids)
        return rows


@dataclass(frozen=True, slots=True)
class PopularityClock:
    """Weights of events for popularity: 1 / total at `row`, half as much every half_life rows before.

    `total` is what all events until `row` count together.
    """

    row: int
    half_life: float
    total: float

    @classmethod
    def at(cls, row: int, share: float = USUAL) -> PopularityClock:
        """Return the clock of a full version that ends before `row`, with a half-life of a share of its rows."""
        half_life = max(FEWEST_ROWS, row * share)
        return cls(row, half_life, max(1.0, half_life / math.log(2) * (1 - 0.5 ** (row / half_life))))

    def logs(self, rows: Int64s) -> NDArray[np.float64]:
        """Return the logarithms of what events of these rows count."""
        return np.asarray((rows - self.row) * (math.log(2) / self.half_life) - math.log(self.total), np.float64)

    def saved(self) -> dict[str, Any]:
        return asdict(self)


class Followed(NamedTuple):
    """The successors of the events before some targets.

    Attributes:
        refs: int64 [n, 2 * successors], their row numbers; -1 for none.
        shares: float32 [n, 2 * successors, 2], s1 and s2 of each.
        own: float32 [n, 2], those of the target.
    """

    refs: Int64s
    shares: Float32s
    own: Float32s


class ItemCounts:
    """The counted numbers of a table of items; `clock` is None before a pass."""

    def __init__(self, table: EmbeddingVariable, layout: ItemRows) -> None:
        self._table, self.layout = table, layout
        self.clock: PopularityClock | None = None

    def count_log(self, keys: Int64s, firsts: Bools, rows: Int64s, until: int) -> Float32s:
        """Count the events of a pass from zero; return the mixture that fits them, a1 and a2.

        Keys and rows in the log, int64 [n], come user by user; `firsts` are each user's first.
        """
        items, numbers, times = np.unique(keys, return_inverse=True, return_counts=True)
        numbers, count = numbers.reshape(-1), len(items)
        self.clock = clock = PopularityClock.at(until, fitting_half_life(numbers, rows, count, until))
        refs = self._table.insert(items, times)
        present = refs >= 0
        counted = np.bincount(numbers, np.exp(clock.logs(rows)), minlength=count)
        popularity = np.maximum(0.0, (np.log(np.maximum(counted, 1e-30)) + LOG_FLOOR) / SCALE)
        self._table.rows[refs[present], self.layout.dim] = popularity[present]
        self._table.touch(refs[present])
        if not self.layout.successors or not count:
            return np.zeros(2, np.float32)
        seconds, thirds = ~firsts[1:], ~(firsts[1:-1] | firsts[2:])
        pairs = [
            numbers[:-1][seconds] * count + numbers[1:][seconds],
            numbers[:-2][thirds] * count + numbers[2:][thirds],
        ]
        distinct_pairs, pair_of = np.unique(np.concatenate(pairs), return_inverse=True)
        pair_of = pair_of.reshape(-1)
        split = len(pairs[0])
        counts_of = [
            np.bincount(at, minlength=len(distinct_pairs)).astype(np.float64)
            for at in (pair_of[:split], pair_of[split:])
        ]
        before, after = distinct_pairs // count, distinct_pairs % count
        totals = [np.bincount(before, counts_at, minlength=count) for counts_at in counts_of]
        often = sum(counts_at / (total[before] + SMOOTHING) for counts_at, total in zip(counts_of, totals))
        order = np.lexsort((after, -often, before))
        place = np.arange(len(distinct_pairs)) - np.searchsorted(before, before[order])
        stored = order[(place < self.layout.successors) & present[before[order]]]
        place = place[(place < self.layout.successors) & present[before[order]]]
        new_rows = np.zeros((count, self.layout.width), np.float32)
        new_rows[:, self.layout.totals] = np.stack(totals, axis=1)
        new_keys = np.zeros((count, self.layout.successors, KEY_PARTS), np.float32)
        new_keys[before[stored], place] = split_keys(items[after[stored]])
        new_rows[:, self.layout.keys] = new_keys.transpose(0, 2, 1).reshape(count, -1)
        for number, counts_at in enumerate(counts_of):
            new_rows[before[stored], self.layout.times(number).start + place] = counts_at[stored]
        counts = slice(self.layout.totals.start, self.layout.width)
        self._table.rows[refs[present], counts] = new_rows[present, counts]
        return self._fitting(items, numbers, firsts, refs)

    def go_on(self, row: int) -> PopularityClock:
        """Begin to count events from `row` on beside what the rows have; return the clock."""
        learned = self._table.export().rows[:, self.layout.dim] * SCALE
        shares = float(np.exp(learned[learned > 0] - LOG_FLOOR).sum())
        self.clock = clock = PopularityClock.at(row)
        if shares:
            # Earlier events count as if this clock had counted them.
            self.clock = clock = replace(clock, total=clock.total / shares)
        return clock

    def count_events(self, refs: Int64s, splits: Int64s, counts: Int64s, first_row: int) -> None:
        """Count the newest `counts` events of histories [splits[i], splits[i + 1]) as events of row `first_row`.

        `refs` are row numbers of all events' items, negative for those without a row.
        """
        clock = self.clock or self.go_on(first_row)
        gained = float(clock.logs(np.array([first_row]))[0]) + LOG_FLOOR
        layout = self.layout
        kernels.count_events(self._table.rows, refs, splits, counts, layout.dense, layout.successors, gained)

    def followed(self, last: Int64s, before: Int64s, targets: Int64s, counted: bool) -> Followed:
        """Return what has followed the events before some targets, all int64 [n] row numbers, negative for none.

        `before` are those before the `last` ones; `counted` targets are left out of what has followed.
        """
        layout, rows = self.layout, self._table.rows
        target_keys = joined_keys(rows[np.maximum(targets, 0)][:, layout.own])
        after_last, after_before = (
            np.where((r >= 0)[:, None], rows[np.maximum(r, 0)], np.float32(0)) for r in (last, before)
        )
        keys, shares = layout.followed(after_last, after_before, target_keys if counted else None)
        found_refs = np.maximum(self._table.find(keys.reshape(-1)), -1).reshape(keys.shape)
        refs = np.where(shares.any(-1), found_refs, -1)
        is_own = (keys == target_keys[:, None]) & (targets >= 0)[:, None]
        return Followed(refs, shares, (shares * is_own[:, :, None]).sum(1))

    def _fitting(self, items: Int64s, numbers: Int64s, firsts: Bools, refs: Int64s) -> Float32s:
        """Return a1 and a2 that fit a sample of the counted events."""
        at = np.flatnonzero(~firsts)
        at = at[:: max(1, len(at) // SAMPLE)]
        event_refs = refs[numbers]
        before = np.where(firsts[at - 1], -1, event_refs[at - 2])
        targets = event_refs[at]
        at, before, targets = at[targets >= 0], before[targets >= 0], targets[targets >= 0]
        if not len(at):
            return np.zeros(2, np.float32)
        followed = self.followed(event_refs[at - 1], before, targets, True)
        share = np.bincount(numbers, minlength=len(items))[numbers[at]] / len(numbers)
        share = np.maximum(share - 1 / len(numbers), 0.3 / len(numbers))
        sums, mixed = followed.shares.sum(1).astype(np.float64), np.ones(2)
        # At the fixed point the derivative of the likelihood is 0.
        for _ in range(ROUNDS):
            right = (followed.own / (share + followed.own @ mixed)[:, None]).sum(0)
            mixed *= right / np.maximum((sums / (1 + sums @ mixed)[:, None]).sum(0), 1e-9)
            mixed = np.clip(mixed, 1e-4, 1e4)
        fitting: Float32s = np.log(mixed).astype(np.float32)
        return fitting


def fitting_half_life(numbers: Int64s, rows: Int64s, count: int, until: int) -> float:
    """Return the HALF_LIVES share that predicts events of items `numbers` [n] in `rows` [n] best.

    Each block is predicted from those before. Of shares within a standard error the longest, with most events, wins.
    """
    order = np.argsort(rows, kind="stable")
    edges = np.linspace(0, until, BLOCKS + 1).astype(np.int64)
    cuts = np.searchsorted(rows[order], edges)
    likelihoods = np.zeros((len(HALF_LIVES), len(SPREADS), BLOCKS))
    for likelihood, share in zip(likelihoods, HALF_LIVES):
        half_life, counted = max(FEWEST_ROWS, until * share), np.zeros(count)
        for block in range(BLOCKS):
            in_block = order[cuts[block] : cuts[block + 1]]
            items, end = numbers[in_block], edges[block + 1]
            total, of_items = counted.sum(), counted[items]
            for at, spread in enumerate(SPREADS if len(items) else ()):
                likelihood[at, block] = np.log(of_items + spread).sum() - len(items) * np.log(total + spread * count)
            counted *= 0.5 ** ((end - edges[block]) / half_life)
            counted += np.bincount(items, 0.5 ** ((end - rows[in_block]) / half_life), minlength=count)
    # The first blocks are predicted from almost nothing.
    likelihoods = likelihoods[:, :, BLOCKS // 4 :]
    by_block = likelihoods[np.arange(len(HALF_LIVES)), likelihoods.sum(2).argmax(1)]
    behind = by_block[by_block.sum(1).argmax()] - by_block
    near = behind.sum(1) <= behind.std(1, ddof=1) * math.sqrt(behind.shape[1])
    return max(share for share, is_near in zip(HALF_LIVES, near) if is_near)
