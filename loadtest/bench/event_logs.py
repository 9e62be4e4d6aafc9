"""Made-up logs of what users were shown and did, one for each reason why a user acts; every seed draws another shop.

A log is a table in order of time: user_id, item_id, category, hour, time and label. Users see items; the logit of a
label is a sum of what the log's kind weighs: the item's quality, the user's activity, whether the item follows from the
last item or the last but one that the user liked, a taste that drifts, and a habit of the hour. So the best AUC that
anything can reach is known: that of the probabilities themselves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

START_TIME = 1_700_006_400
"""A midnight."""
DAY_S = 86_400
FACTORS = 8

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LogKind:
    """Why users act in a log.

    Attributes:
        events: Rows that the trial draws.
        users, items, categories: How many there are.
        exponent: Of the Zipf distribution of what is shown.
        base: Logit without any reason.
        quality: Deviation of the logit by item.
        activity: Deviation of the logit by user.
        last, before: Logit of an item that follows from the last liked item, or from the one before.
        followers: Items that follow from an item.
        shown_followers: Share of rows that show an item which follows.
        taste: Deviation of the logit by the product of a user's and an item's vector.
        drift: Share of its vector by which a user moves with each liked item, toward or away from that item's.
        rhythm: Deviation of the logit by group of users, hour and category.
        ageing: Days in which an item's quality becomes another, step by step; 0 for never.
    """

    name: str
    events: int
    users: int
    items: int
    categories: int = 20
    exponent: float = 0.6
    base: float = -1.0
    quality: float = 0.4
    activity: float = 0.4
    last: float = 0.0
    before: float = 0.0
    followers: int = 4
    shown_followers: float = 0.0
    taste: float = 0.0
    drift: float = 0.0
    rhythm: float = 0.0
    ageing: float = 0.0


SPARSE_SHOP = LogKind("sparse shop", 20_000, 4_000, 3_000, last=1.4, taste=0.6, shown_followers=0.25, followers=3)
LAST_ITEM = LogKind("last item", 60_000, 3_000, 600, last=2.2, shown_followers=0.35)
LAST_TWO = LogKind("last two items", 20_000, 1_000, 300, last=1.7, before=1.5, shown_followers=0.45)
TASTES = LogKind("long tastes", 100_000, 2_000, 1_500, taste=1.4, drift=0.03)
POPULARITY = LogKind("popularity", 50_000, 5_000, 1_000, quality=1.1, ageing=20.0)
RHYTHM = LogKind("a day's rhythm", 200_000, 5_000, 2_000, rhythm=1.1, last=0.6, shown_followers=0.2)
KINDS = (SPARSE_SHOP, LAST_ITEM, LAST_TWO, TASTES, POPULARITY, RHYTHM)


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log and the probabilities that its labels were drawn with.

    Attributes:
        columns: user_id, item_id, category, hour, time int64 [n], label float32 [n].
        chances: float64 [n].
    """

    columns: Columns
    chances: NDArray[np.float64]


def event_log(kind: LogKind, seed: int, events: int = 0) -> EventLog:
    """Draw a log.

    Args:
        kind: Why users act.
        seed: Of everything.
        events: Rows; 0 for those of the kind.
    """
    n = events or kind.events
    random = np.random.default_rng([seed, len(kind.name), *kind.name.encode()])
    user = random.choice(kind.users, n, p=_zipf(kind.users, 0.5, random))
    shares = _zipf(kind.items, kind.exponent, random)
    shown = random.choice(kind.items, n, p=shares)
    category = random.integers(0, kind.categories, kind.items)
    days = 14
    time = START_TIME + np.sort(random.integers(0, days * DAY_S, n))
    hour = time // 3600 % 24
    age = (time - START_TIME) / DAY_S / kind.ageing if kind.ageing else np.zeros(n)
    era, passed = age.astype(np.int64), age % 1
    quality = random.standard_normal((era[-1] + 2, kind.items)) * kind.quality
    logit = kind.base + random.standard_normal(kind.users)[user] * kind.activity
    group = random.integers(0, 6, kind.users)
    habit = random.standard_normal((6, 24, kind.categories)) * kind.rhythm
    follows = random.integers(0, kind.items, (kind.items, kind.followers))
    centres = random.standard_normal((kind.categories, FACTORS))
    items = (centres[category] + 0.7 * random.standard_normal((kind.items, FACTORS))) / 1.22 / FACTORS**0.5
    users = random.standard_normal((kind.users, FACTORS))
    draws, which = random.random(n), random.integers(0, kind.followers, n)
    follow = random.random(n) < kind.shown_followers
    two_back = random.random(n) < (kind.before / (kind.before + kind.last) if kind.before else 0)
    liked: list[deque[int]] = [deque(maxlen=2) for _ in range(kind.users)]
    chances, label = np.empty(n), np.zeros(n, np.float32)
    sets = [set(row) for row in follows.tolist()]
    for row in range(n):
        u, i, seen = user[row], shown[row], liked[user[row]]
        if follow[row] and seen:
            i = shown[row] = follows[seen[0] if two_back[row] else seen[-1], which[row]]
        value = logit[row] + (1 - passed[row]) * quality[era[row], i] + passed[row] * quality[era[row] + 1, i]
        value += habit[group[u], hour[row], category[i]]
        if seen:
            value += kind.last * (i in sets[seen[-1]])
            value += kind.before * (len(seen) == 2 and i in sets[seen[0]])
        if kind.taste:
            value += kind.taste * float(users[u] @ items[i])
        chances[row] = 1 / (1 + np.exp(-value))
        if draws[row] < chances[row]:
            label[row] = 1
            seen.append(i)
            if kind.drift:
                users[u] += kind.drift * (items[i] * FACTORS**0.5 - users[u])
    columns = {"user_id": user, "item_id": shown, "category": category[shown], "hour": hour, "time": time}
    return EventLog({name: values.astype(np.int64) for name, values in columns.items()} | {"label": label}, chances)


def _zipf(count: int, exponent: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Return shares of `count` values in no order."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return random.permutation(shares / shares.sum())
