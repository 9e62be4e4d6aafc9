"""Score rows by counting, which a network has to beat: by the row's item, and by the item after the user's last one.

popularity   share of positive labels among the learned rows of the item
last item    the same among those of them whose user's history ended with the same item as the row's

A share is drawn toward what is known without it, as if PRIOR_ROWS rows had shown that: an item's toward the mean of all
rows, that of an item after another toward the item's. Rows count alike whatever their weights.

The item is the feature of ids or strings with side `item`, or else with no side, that has the most values in the first
batch. The last item is known where a sequence shares the item's table.

Costs: 17 bytes for each of the newest MOST_ROWS rows learned, two sorts of them, and a search for each row scored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.data.value_hashes import Hashes, mixed, value_hashes
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.processor.columns import Ragged, take_rows

POPULARITY, LAST_ITEM = "popularity", "last item"
PRIOR_ROWS = {POPULARITY: 20.0, LAST_ITEM: 3.0}
MOST_ROWS = 1 << 21
NEAR = 0.001
"""A network whose AUC is not this much above the counts' has not beaten them."""
LABEL = np.uint64(1)
"""The bit of a key in which its row's label is kept."""
NOTHING = np.uint64(0x0123456789ABCDEF)
"""The last item of a row without a history."""

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of positive labels by key, ascending and unique, with 0 in the bit LABEL."""

    keys: Hashes
    rows: Float64s
    positive: Float64s

    @classmethod
    def of(cls, marked: Hashes) -> Rates:
        """Count rows by keys [n], each with its label in the bit LABEL; sorted in place."""
        marked.sort()
        keys = marked & ~LABEL
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        positive = np.add.reduceat((marked & LABEL).astype(np.int64), firsts)
        return cls(
            keys[firsts], np.diff(np.append(firsts, len(marked))).astype(np.float64), positive.astype(np.float64)
        )

    def shares(self, keys: Hashes, prior: Float64s, prior_rows: float) -> Float64s:
        """Return the share of each key [n], drawn toward `prior` [n] as if so many rows had shown it."""
        keys = keys & ~LABEL
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        seen = self.keys[at] == keys
        shares: Float64s = (self.positive[at] * seen + prior_rows * prior) / (self.rows[at] * seen + prior_rows)
        return shares


class CountingBaselines:
    """The counts of the rows that a run learns, and what they score.

    Attributes:
        scored: The held-out rows as each baseline scores them, by its name; empty for a model without an item.
    """

    def __init__(self, features: Sequence[FeatureConfig]) -> None:
        plain = [f for f in features if f.sequence is None and f.kind in ("id", "string") and f.side != "user"]
        plain = [f for f in plain if not f.cross and f.transform in ("", "none")]
        self._candidates = [f for f in plain if f.side == "item"] or plain
        self._sequences = {f.table: f.name for f in reversed(features) if f.sequence is not None and f.table}
        self._item: FeatureConfig | None = None
        self._learned: deque[tuple[Hashes, Hashes | None]] = deque()
        self._rows = 0
        self._rates: list[Rates] = []
        self.scored: dict[str, ScoredRows] = {}

    @property
    def possible(self) -> bool:
        return bool(self._candidates)

    def learned(self, batch: Batch) -> None:
        """Count the rows of a batch that is learned; does nothing once rows were scored."""
        if not self.possible or self._rates or not len(batch):
            return
        if self._item is None:
            values = {f.name: len(np.unique(value_hashes(batch.columns[f.column]))) for f in self._candidates}
            self._item = max(self._candidates, key=lambda f: values[f.name])
        items, pairs = self._of(batch)
        positive = _labels(batch) > 0.5
        self._learned.append((items & ~LABEL | positive, None if pairs is None else pairs & ~LABEL | positive))
        self._rows += len(batch)
        while self._rows - len(self._learned[0][0]) >= MOST_ROWS:
            self._rows -= len(self._learned.popleft()[0])

    def score(self, batch: Batch) -> None:
        if self._learned:
            self._rates = [Rates.of(np.concatenate(parts)) for parts in zip(*self._learned) if parts[0] is not None]
            self._learned.clear()
        if not self._rates or not len(batch):
            return
        items, pairs = self._of(batch)
        first, labels = self._rates[0], _labels(batch)
        shares = np.full(len(batch), first.positive.sum() / first.rows.sum())
        for name, keys, rates in zip((POPULARITY, LAST_ITEM), (items, pairs), self._rates):
            if keys is not None:
                shares = rates.shares(keys, shares, PRIOR_ROWS[name])
            self.scored.setdefault(name, ScoredRows()).add(labels, shares.astype(np.float32), batch.weight)

    def line(self) -> str:
        """Return what the baselines reach, in one line; "" if nothing was scored."""
        if not self.scored:
            return ""
        figures = ", ".join(f"{name} AUC {scored.auc():.4f}" for name, scored in self.scored.items())
        return f"baseline: {figures} over {len(next(iter(self.scored.values())))} rows"

    def lines(self, label: str) -> Iterator[dict[str, Any]]:
        """Yield flat objects with what = 'baseline'; `label` is the name of the first label."""
        for name, scored in self.scored.items():
            yield {"what": "baseline", "label": label, "name": name, "rows": len(scored), "auc": scored.auc()}

    def advice(self, auc: float) -> str:
        """Return one line if a network with this AUC does not beat the best baseline; else ""."""
        best = max(((scored.auc(), name) for name, scored in self.scored.items()), default=(np.nan, ""))
        if not auc < best[0] + NEAR:
            return ""
        return (
            f"the network does not beat counting ({best[1]}, AUC {best[0]:.4f}): it needs more rows or epochs, or"
            " features that say more (docs/how-to/evaluation.md)"
        )

    def _of(self, batch: Batch) -> tuple[Hashes, Hashes | None]:
        """Return the key of each row's item, and that of its pair with the last item; None without a history."""
        assert self._item is not None
        items = mixed(value_hashes(batch.columns[self._item.column]))
        name = self._sequences.get(self._item.table)
        history = batch.columns.get(name) if name else None
        if not isinstance(history, Ragged):
            return items, None
        ends = history.row_splits
        filled = np.flatnonzero(ends[1:] > ends[:-1])
        last = np.full(len(items), NOTHING)
        last[filled] = value_hashes(take_rows(history.values, ends[1:][filled] - 1))
        # Mixed once more than the last one: an item after another is not the other after it.
        return items, mixed(mixed(items) + mixed(last))


def _labels(batch: Batch) -> NDArray[np.float32]:
    return batch.label if batch.label.ndim == 1 else batch.label[:, 0]
