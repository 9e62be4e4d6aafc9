"""Parts of users' events as checkpoints save them (models.data.user_events).

A whole part has `keys`, ascending, the `counts` of their events, and the `events` in that order. A part of the events
since another one has a key for each event. Keys that are texts are `names`, by ascending distinct user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings, take_rows

READ_EVENTS = 1 << 16

Int64s = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


def pieces_of(part: Mapping[str, NDArray[Any]]) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the user of each event and the events, piece by piece: a whole part's have READ_EVENTS, or one user's."""
    events, keys = part["events"], part["keys"]
    if "counts" not in part:
        yield np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(events, np.int64)
        return
    counts = np.asarray(part["counts"])
    ends = np.cumsum(counts)
    first = begin = 0
    while first < len(counts):
        stop = max(first + 1, int(np.searchsorted(ends, begin + READ_EVENTS, "right")))
        yield np.repeat(keys[first:stop], counts[first:stop]), np.ascontiguousarray(events[begin : ends[stop - 1]])
        first, begin = stop, int(ends[stop - 1])


def without_users(part: Mapping[str, NDArray[Any]], users: Int64s) -> Arrays | None:
    """Return a part without the events and keys of users, as `keys` has them; None if it has none of them."""
    keys = np.asarray(part["keys"])
    stays = ~np.isin(keys, users)
    if stays.all():
        return None
    arrays = dict(part) | {"keys": keys[stays]}
    if "counts" in part:
        arrays["counts"] = part["counts"][stays]
    arrays["events"] = part["events"][np.repeat(stays, part["counts"]) if "counts" in part else stays]
    if "names" in part:
        named = np.flatnonzero(~np.isin(np.unique(keys), users))
        names = take_rows(Strings(part["names"], part["name_offsets"]), named)
        arrays |= {"names": names.data, "name_offsets": names.offsets}
    return arrays
