"""The row of an item in a next-item network: numbers that are learned, and what is counted beside them.

    learned     `dim` numbers, the item as an event and as a candidate
    popularity  (log(share of the recent events) + LOG_FLOOR) / SCALE; 0 for an item without an event
    own         the item's key in three numbers, which float32 holds exactly
    totals      how many events came after the item, and two events after it
    successors  `successors` items that did: their keys, and how many of the totals each was

The last three are there only if `successors` is not 0. A score is a product of rows and a sparse rest:

    score = <user's vector, row> + lift,  lift = log(1 + (e^a1 s1 + e^a2 s2) / share^w)

s1 is the candidate's share of what followed the newest event's item, s2 of what came two after the one before. So
share^w + e^a1 s1 + e^a2 s2 mixes popularity and counts as probabilities, which the product of learned numbers corrects.
The user's vector holds w where the row has the popularity, and 0 where it has keys and counts. a1, a2 and w are
learned; a user without events gets popularity alone. An item without popularity has no lift: without a row its key is
that of id 0, and by a share near 0 any count would put it above all others.

A sum of logarithms in place of the mixture, and factors in place of counts, were tried: on a log of habits NDCG@10 is
0.263 and 0.342, by the mixture 0.365.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOG_FLOOR = 20.0
"""An item without an event counts as if it had e^-20 of all events."""
SCALE = 32.0
"""Popularity is stored divided by it: a row of int8 has one scale, and learned numbers are small."""
SMOOTHING = 20.0
"""Added to a total, so that an item which was followed once does not say who follows it."""
SUCCESSORS, MOST_SUCCESSORS = 16, 64
"""Successors of an item, unless the file says otherwise, and the most that it may say."""
KEY_PARTS, LOW_BITS = 3, 21
"""A key is two numbers of LOW_BITS bits and one of the other 22."""

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class ItemRows:
    """Places of the parts of an item's row of `width` numbers; `successors` is 0 for none."""

    width: int
    popularity: bool
    successors: int

    @classmethod
    def of(cls, width: int, options: Mapping[str, Any]) -> ItemRows:
        """Return the layout of rows of `width` numbers, from the network's options."""
        popularity = bool(options.get("popularity", True))
        return cls(width, popularity, int(options.get("successors", SUCCESSORS)) if popularity else 0)

    @classmethod
    def around(cls, dim: int, options: Mapping[str, Any]) -> ItemRows:
        """Return the layout of rows with `dim` learned numbers, from the network's options."""
        unlearned = cls.of(0, options)
        return cls(dim - unlearned.dim, unlearned.popularity, unlearned.successors)

    @cached_property
    def dim(self) -> int:
        """Number of learned numbers."""
        if not self.popularity:
            return self.width
        return self.width - 1 - (KEY_PARTS + 2 + (KEY_PARTS + 2) * self.successors if self.successors else 0)

    @cached_property
    def dense(self) -> int:
        """Numbers that a product with a user's vector reads."""
        return self.dim + self.popularity

    @cached_property
    def own(self) -> slice:
        """The item's key."""
        return slice(self.dense, self.dense + KEY_PARTS)

    @cached_property
    def totals(self) -> slice:
        """The numbers of events after the item, and two after."""
        return slice(self.own.stop, self.own.stop + 2)

    @cached_property
    def keys(self) -> slice:
        """The successors' keys: the first part of each, then the second, then the third."""
        return slice(self.totals.stop, self.totals.stop + KEY_PARTS * self.successors)

    def times(self, after: int) -> slice:
        """Return where it says how often each successor came one event after (0), or two (1)."""
        first = self.keys.stop + after * self.successors
        return slice(first, first + self.successors)

    def followed(self, last: Float32s, before: Float32s, left_out: Int64s | None = None) -> tuple[Int64s, Float32s]:
        """Return what has followed the newest two events of histories.

        Args:
            last: float32 [n, width], rows of the newest events' items; 0 for none.
            before: float32 [n, width], rows of the items before them; 0 for none.
            left_out: int64 [n], keys of items that followed once less than the rows say.

        Returns:
            Keys of items, int64 [n, 2 * successors], and their shares s1 and s2, float32 [n, 2 * successors, 2], both 0
                for a place without an item. No item has two places with shares.
        """
        keys, shares, count = [], [], self.successors
        for number, rows in enumerate((last, before)):
            parts = rows[:, self.keys].reshape(len(rows), KEY_PARTS, count).transpose(0, 2, 1)
            keys.append(joined_keys(parts))
            times, totals = rows[:, self.times(number)], rows[:, self.totals.start + number, None]
            if left_out is not None:
                times = np.maximum(times - (keys[number] == left_out[:, None]), 0)
                totals = np.maximum(totals - 1, 0)
            shares.append(times / (totals + np.float32(SMOOTHING)))
        # An item that follows both has one place, that of the first list.
        same = (keys[0][:, :, None] == keys[1][:, None, :]) & (
            (shares[0] > 0)[:, :, None] & (shares[1] > 0)[:, None, :]
        )
        both = (same * shares[1][:, None, :]).sum(2)
        alone = np.where(same.any(1), 0.0, shares[1])
        first, second = np.stack([shares[0], both], -1), np.stack([np.zeros_like(alone), alone], -1)
        return np.concatenate(keys, 1), np.concatenate([first, second], 1).astype(np.float32)

    def lifts(self, shares: Float32s, popularity: Float32s, mixture: Float32s) -> Float32s:
        """Return what is added to the products of successors.

        Args:
            shares: float32 [..., 2], s1 and s2.
            popularity: float32 [...], as the successor's row has it.
            mixture: float32 [..., 3]: w * SCALE, a1 and a2.
        """
        mixed = (shares * np.exp(mixture[..., 1:])).sum(-1) * np.sign(popularity)
        lifted: Float32s = np.log1p(mixed * np.exp(-mixture[..., 0] * (popularity - np.float32(LOG_FLOOR / SCALE))))
        return lifted


def split_keys(keys: Int64s) -> Float32s:
    """Return keys in three whole numbers, float32 [..., KEY_PARTS]."""
    whole = keys.astype(np.uint64)
    low, mask = np.uint64(LOW_BITS), np.uint64((1 << LOW_BITS) - 1)
    parts = [whole & mask, (whole >> low) & mask, whole >> np.uint64(2 * LOW_BITS)]
    return np.stack(parts, axis=-1).astype(np.float32)


def joined_keys(parts: Float32s) -> Int64s:
    """Return the keys int64 [...] of split_keys() [..., KEY_PARTS]."""
    whole, low = parts.astype(np.uint64), np.uint64(LOW_BITS)
    keys: Int64s = (whole[..., 0] | whole[..., 1] << low | whole[..., 2] << np.uint64(2 * LOW_BITS)).astype(np.int64)
    return keys
