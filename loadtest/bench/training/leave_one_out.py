"""Leave-one-out: each user's last event is the target, the events before it are learned; numpy alone, for every side.

One order: by time, then by place in the file. One rule for ties: a target is behind every item of its score. One rule
for seen items: a user's learned items are no candidates, but the target is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP = 10
SCORED_USERS = 512

Int64s = NDArray[np.int64]


class LeaveOneOut:
    """Events split by user.

    Attributes:
        users: User of each learned event, numbered from 0 [n].
        items: Item of each learned event, numbered from 0 [n]; ordered by user, then by time.
        splits: Learned events of user u are [splits[u], splits[u + 1]).
        targets: Each user's last item [users].
        times: Second of each learned event [n].
        catalogue: Number of items, those of targets among them.
    """

    def __init__(self, users: Int64s, items: Int64s, times: Int64s) -> None:
        """users: in the order of time, as items and their seconds are [n]."""
        numbered = np.unique(users, return_inverse=True)[1]
        self.ids, coded = np.unique(items, return_inverse=True)
        order = np.argsort(numbered, kind="stable")
        counts = np.bincount(numbered)
        ends = np.cumsum(counts)
        last = np.zeros(len(users), bool)
        last[ends - 1] = True
        by_user = coded[order]
        self.targets: Int64s = by_user[last]
        self.users: Int64s = numbered[order][~last]
        self.items: Int64s = by_user[~last]
        self.times: Int64s = times[order][~last]
        self.splits: Int64s = np.concatenate([[0], np.cumsum(counts - 1)])
        self.catalogue = len(self.ids)

    def saved(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def loaded(cls, arrays: Any) -> LeaveOneOut:
        made = cls.__new__(cls)
        vars(made).update({name: arrays[name] for name in arrays})
        return made

    def measured(self, user_vectors: NDArray[np.float32], item_vectors: NDArray[np.float32]) -> dict[str, float]:
        """Return hit rate and NDCG at TOP of scores that are products of vectors [users, d] and [catalogue, d]."""
        ranks = np.zeros(len(self.targets), np.int64)
        for first in range(0, len(self.targets), SCORED_USERS):
            last = min(first + SCORED_USERS, len(self.targets))
            scores = user_vectors[first:last] @ item_vectors.T
            targets = self.targets[first:last]
            own = scores[np.arange(last - first), targets]
            seen = slice(self.splits[first], self.splits[last])
            scores[self.users[seen] - first, self.items[seen]] = -np.inf
            # The target is one of the items that are not below it, unless the user had it before.
            scores[np.arange(last - first), targets] = own
            ranks[first:last] = (~(scores < own[:, None])).sum(axis=1)
        hit = ranks <= TOP
        return {"hit_rate": float(hit.mean()), "ndcg": float((hit / np.log2(ranks + 1)).mean())}
