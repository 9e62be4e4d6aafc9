"""Say what ranks the items of one request: the model, likeness to an item, or what ranks them for everybody.

    source  a text, one for all users: model, like, or one of those that the version has (item_sources)
    like    an item's id for each user, or one for all; the source is then "like"

Likeness to an item is, of two towers, the product with its vector, and of a next-item network what follows a history of
exactly that item. An item that the version does not have, such as one that was just removed, is like no other: the list
is empty, and no error, because the caller could not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.chosen_items import keys_of, single_text
from freshet_serving.processor.extensions.top_items.item_sources import MODEL, NEW, POPULAR
from freshet_serving.processor.extensions.top_items.section import ALLOW, BLOCK, LIKE, SEEN, SOURCE, ItemRanking
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.input_reader import blank_inputs, size_of
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.sequences import is_sound
from freshet_serving.processor.package import UNREAD, Manifest

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AskedSource:
    """The source that a request asks for: MODEL, LIKE, or one of the version's; whether the network is run for it.

    `like`, int64 [n], are the keys of items that others are to be like.
    """

    name: str = MODEL
    like: Int64s | None = None
    computed: bool = True

    @classmethod
    def of(cls, ranking: ItemRanking, inputs: Mapping[str, Column]) -> AskedSource:
        """Return what a request asks for; raise BadInput if the version does not have it."""
        sent = {name: inputs[name] for name in (LIKE, SOURCE) if name in ranking.options and name in inputs}
        text = single_text(SOURCE, sent.get(SOURCE))
        name = text.decode(errors="replace") or (LIKE if LIKE in sent else MODEL)
        if name not in (MODEL, LIKE, POPULAR, NEW):
            raise BadInput(f"source: expected 'model', 'like', 'popular' or 'new', got {name[:64]!r}")
        if (name == LIKE) != (LIKE in sent):
            problem = f"like: expected it with source 'like' alone, got source {name!r}"
            raise BadInput(problem if LIKE in sent else "like: expected the id of an item for source 'like', got none")
        if name in (POPULAR, NEW) and name not in ranking.sources:
            sources = ", ".join(map(repr, (MODEL, LIKE, *ranking.sources)))
            raise BadInput(
                f"source: model {ranking.manifest.model!r} version {ranking.manifest.version} has no {name!r}, only "
                f"{sources}: publish a version of sasrec_next, hstu_next or two_tower, for 'new' with data.time"
            )
        if name != LIKE:
            return cls(name, computed=name == MODEL)
        keys = keys_of(ranking, LIKE, sent[LIKE])
        if not len(keys) or len(keys) != len(sent[LIKE]):
            raise BadInput(f"like: expected an id for each user, got {len(keys)} for {len(sent[LIKE])}")
        return cls(name, keys, computed=ranking.tower is None)

    def spread(self, users: int) -> AskedSource:
        """Return it with an item to be like for each user."""
        if self.like is None or len(self.like) == users:
            return self
        return replace(self, like=np.repeat(self.like, users))


class BoundUsers(NamedTuple):
    """The users of a request, what was bound of them, and the items of each one's history.

    Of a source that no network is run for, the bound request has nothing but its rows.
    """

    inputs: Mapping[str, Column]
    bound: BoundRequest
    history: list[Int64s]

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Column],
        ranking: ItemRanking,
        asked: AskedSource,
        plan: SparsePlan,
        manifest: Manifest,
        limits: RequestLimits,
    ) -> BoundUsers:
        """Bind the users of a request; for another source than the model, their inputs may be left out."""
        user_inputs = {name: column for name, column in inputs.items() if name not in ranking.options}
        # One candidate, whose score nobody reads.
        blank = {ranking.item: Strings.of([""]) if ranking.texts else np.zeros(1, np.int64)}
        if asked.name == MODEL:
            aligned = plan.aligned(user_inputs | blank)
            bound = plan.bind_inputs(aligned, limits)
            return cls(aligned, bound, histories_of(ranking, aligned, bound.rows))
        sent = plan.aligned({name: column for name, column in user_inputs.items() if name != ranking.item})
        users = _count_users(inputs, sent, ranking, manifest, limits)
        history = histories_of(ranking, sent, users)
        if not asked.computed:
            return cls(sent, BoundRequest(users, 0, b"", ()), history)
        ids = inputs[LIKE]
        items = _like_inputs(ranking, manifest, ids if len(ids) == users else take_rows(ids, np.zeros(users, np.int64)))
        aligned = plan.aligned(items | blank)
        return cls(aligned, plan.bind_inputs(aligned, limits), history)


def histories_of(ranking: ItemRanking, inputs: Mapping[str, Column], users: int) -> list[Int64s]:
    """Return the items of each user's history, as far as the model reads it; one history is that of all users."""
    lists_of: list[list[Int64s]] = [[np.empty(0, np.int64)] for _ in range(users)]
    for name in ranking.history:
        column = inputs.get(name)
        if column is None:
            continue
        if not isinstance(column, Ragged) or not is_sound(column):
            raise BadInput(f"{name}: expected lists of ids, got another type")
        items, lists = keys_of(ranking, name, column.values), len(column)
        for user, of_user in enumerate(lists_of):
            row = user if lists > 1 else 0
            of_user.append(items[column.row_splits[row] : column.row_splits[row + 1]])
    return [np.concatenate(of_user) for of_user in lists_of]


def _count_users(
    inputs: Mapping[str, Column],
    sent: Mapping[str, Column],
    ranking: ItemRanking,
    manifest: Manifest,
    limits: RequestLimits,
) -> int:
    """Return the number of users of a request that need not say anything of them; `sent` are the model's inputs."""
    lists = {name: inputs[name] for name in (ALLOW, BLOCK, SEEN, LIKE) if name in ranking.options and name in inputs}
    specs = {spec.name: spec for spec in (*manifest.inputs, *ranking.manifest.inputs)}
    size, rows = RequestSize(limits), {}
    for name, column in (*sent.items(), *lists.items()):
        if name not in specs:
            raise BadInput(f"input {name[:64]!r} is not one of the model's: {', '.join(specs)}")
        if name in lists and name != LIKE and not isinstance(column, Ragged):
            # A list for all users, as callers in this process may send it.
            continue
        rows[name], values = size_of(column, specs[name].columns or 1)
        size.add(specs[name], rows[name], values)
    users = max(rows.values(), default=1) or 1
    for name, count in rows.items():
        if count not in (1, users):
            raise BadInput(f"{name}: expected a row for each of {users} users, or one for all, got {count}")
    return users


def _like_inputs(ranking: ItemRanking, manifest: Manifest, ids: Column) -> dict[str, Column]:
    """Return the inputs of users whose history is one item each; what else there is of an event says nothing."""
    values = ids if isinstance(ids, Strings) else np.ascontiguousarray(ids).reshape(-1)
    splits, inputs = np.arange(len(values) + 1), dict[str, Column]()
    unread = {name for name, filler in manifest.fillers.items() if filler.kind == UNREAD}
    for name, blank in blank_inputs(manifest).items():
        if name in unread:
            continue
        if name in ranking.history:
            inputs[name] = Ragged(values, splits)
        elif isinstance(blank, Ragged):
            inputs[name] = Ragged(take_rows(blank.values, np.zeros(len(values), np.int64)), splits)
        else:
            inputs[name] = blank
    return inputs
