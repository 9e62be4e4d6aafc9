"""Say which items count in one request: what its inputs filter, allow, block, seen and the candidates say.

    filter   a text, one for all users (filter_text)
    allow    ids of the items that count, a list for each user or one for all; others are not looked at
    block    ids that do not count
    seen     the same, beside the items of the history

Candidates are a list to allow for all users, and items of the history among them count. Ids are those of the model's
item; strings are hashed as the model hashes them. An id without a row is no item, in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.top_items.item_filters import ItemFilter, is_costly
from freshet_serving.processor.extensions.top_items.section import ALLOW, BLOCK, FILTER, SEEN, ItemRanking
from freshet_serving.processor.kernels.hashing import hash_strings

CLAUSES_AN_ID = 4
"""Clauses that cost an item what one product with a vector does, which one of lists or many numbers does alone."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenItems:
    """The items that count: the filter, and for each user the keys that count, each once, None for all; and do not."""

    text: bytes
    filter: ItemFilter | None
    allowed: Sequence[Int64s] | None
    excluded: Sequence[Int64s]

    @property
    def cost(self) -> int:
        """Ids that an item counts as for the filter."""
        clauses = [] if self.filter is None else self.filter.clauses
        return -(-sum(CLAUSES_AN_ID if is_costly(clause) else 1 for clause in clauses) // CLAUSES_AN_ID)

    @property
    def shared_by(self) -> bytes | None:
        """The filter that requests have in common if they share a scan; None if this one shares none."""
        return None if self.allowed is not None else self.text


def chosen_items(
    ranking: ItemRanking,
    inputs: Mapping[str, Column],
    history: Sequence[Int64s],
    max_ids: int,
    like: Int64s | None = None,
) -> ChosenItems:
    """Return the items that count in a request of at most `max_ids`, else raise TooLarge.

    Each user has a history, and may have an item that never counts (`like`, int64 [n]).
    """
    users, sent = len(history), {name: inputs[name] for name in ranking.options if name in inputs}
    text = single_text(FILTER, sent.get(FILTER))
    source = ranking.filtered
    if text and source is None:
        raise BadInput(
            f"filter: model {ranking.manifest.model!r} version {ranking.manifest.version} has no columns to filter on:"
            f" give its items an entity with filters, keyed by {ranking.item!r}, and publish a new version"
        )
    # An item of which no record has the text of its id cannot be named.
    filter_ = ItemFilter(text, source, ranking.texts) if source is not None and (text or ranking.texts) else None
    lists = {name: _ids(ranking, name, sent[name], users) for name in (ALLOW, BLOCK, SEEN) if name in sent}
    if ranking.item in inputs:
        lists[ranking.item] = [keys_of(ranking, ranking.item, inputs[ranking.item])] * users
        history = [np.empty(0, np.int64)] * users
    count = sum(len(of_user) for of_users in lists.values() for of_user in of_users)
    if count > max_ids:
        raise TooLarge(f"max_ids: expected at most {max_ids} ids to allow, block, rank and leave out, got {count}")
    if ranking.item in lists:
        both = zip(lists[ranking.item], lists.get(ALLOW, lists[ranking.item]))
        lists[ALLOW] = [np.intersect1d(*of_user) for of_user in both]
    without = [lists.get(name, [np.empty(0, np.int64)] * users) for name in (BLOCK, SEEN)]
    itself = [np.empty(0, np.int64)] * users if like is None else list(like[:, None])
    excluded = [np.concatenate(of_user) for of_user in zip(history, *without, itself)]
    allowed = [np.unique(of_user) for of_user in lists[ALLOW]] if ALLOW in lists else None
    return ChosenItems(text, filter_, allowed, excluded)


def single_text(name: str, column: Column | None) -> bytes:
    """Return the text of an input, which all of its rows have; b"" for none."""
    if column is None:
        return b""
    if not isinstance(column, Strings):
        raise BadInput(f"{name}: expected one text for all users, got another type")
    texts = set(column.tolist())
    if len(texts) > 1:
        raise BadInput(f"{name}: expected one text for all users, got {len(column)} that differ")
    return next(iter(texts), b"")


def _ids(ranking: ItemRanking, name: str, column: Column, users: int) -> list[Int64s]:
    if not isinstance(column, Ragged):
        # A list for all users, as callers in this process may send it.
        return [keys_of(ranking, name, column)] * users
    keys, splits = keys_of(ranking, name, column.values), column.row_splits
    if len(column) not in (1, users):
        raise BadInput(f"{name}: expected a list of ids for each of {users} users, or one for all, got {len(column)}")
    lists = [keys[splits[n] : splits[n + 1]] for n in range(len(column))]
    return lists * users if len(lists) == 1 else lists


def keys_of(ranking: ItemRanking, name: str, ids: Column) -> Int64s:
    """Return the keys of ids, int64 [n]; raise BadInput, with the input's name, for what are none."""
    whole = isinstance(ids, np.ndarray) and (ids.dtype == np.int64 or not ids.size)
    if not (isinstance(ids, Strings) if ranking.texts else whole):
        expected = "strings" if ranking.texts else "whole numbers"
        raise BadInput(f"{name}: expected ids that are {expected}, got another type")
    return keys_of_ids(ranking, ids).reshape(-1).astype(np.int64)


def keys_of_ids(ranking: ItemRanking, ids: Column) -> Int64s:
    return np.asarray(hash_strings(ids, ranking.hash_seed)) if isinstance(ids, Strings) else np.asarray(ids)
