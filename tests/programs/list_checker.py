"""Check lists of best items against what was published, by plain numpy and no code of the product.

What a generation holds is kept as plain arrays. A reply names the generation that it is of, and where vectors lag that
of the items' vectors. Its lists are computed again from those two, one product an item, and what it holds is compared:

- as many items as there are to list, each once, and so many missing as the reply says;
- each of them one that counts in the generation that the reply names: filter, allow, block, seen, removals;
- each score that of the item;
- no item that is left out has a better score than the last of the list.

The checker imports numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

DIM, COLUMNS, CATEGORIES, USERS, MOST_CATEGORIES = 4, 5, 6, 8, 2
BRANDS = ["ark", "bolt", "cress", "dune"]
TAGS = ["new", "red", "sale", "used", "wool"]
TOLERANCE = 1e-5
"""Of a score, which is a sigmoid."""


@dataclass(frozen=True)
class Contents:
    """What one generation holds; arrays of items are by position in `ids`. A row that is missing is all 0.

    ids: int64 [n]. rows: float32 [n, DIM]. there: bool [n], which have a record. of_category: how often each category
    is in an item's list, [n, CATEGORIES + 1]; the last has no row. brand: its number in BRANDS, -1 for none. tags:
    bool [n, len(TAGS)]. users: rows, [USERS, DIM]. categories: rows, [CATEGORIES, DIM].
    """

    ids: np.ndarray
    rows: np.ndarray
    there: np.ndarray
    of_category: np.ndarray
    price: np.ndarray
    stock: np.ndarray
    rating: np.ndarray
    brand: np.ndarray
    tags: np.ndarray
    users: np.ndarray
    categories: np.ndarray
    dense: dict


@dataclass(frozen=True)
class Change:
    """What a delta changes; items by position.

    items: get a row. put: get a record. removed: lose their record. bare: lose their row. categories: get a row.
    dropped: categories that lose theirs. users: get a row. dense: names of matrices.
    """

    items: list = field(default_factory=list)
    put: list = field(default_factory=list)
    removed: list = field(default_factory=list)
    bare: list = field(default_factory=list)
    categories: list = field(default_factory=list)
    dropped: list = field(default_factory=list)
    users: list = field(default_factory=list)
    dense: tuple = ()


def first_contents(items, random):
    """Contents of so many items, a fifth of which have no record yet."""
    ids = np.arange(items, dtype=np.int64) * 3 + 1
    ids[::7] += 1 << 40
    n = (items,)
    nothing = Contents(
        np.sort(ids), np.zeros((*n, DIM), np.float32), np.zeros(n, bool), np.zeros((*n, CATEGORIES + 1), np.int64),
        np.zeros(n, np.float32), np.zeros(n, np.int64), np.zeros(n, np.float32), np.full(n, -1),
        np.zeros((*n, len(TAGS)), bool), np.zeros((USERS, DIM), np.float32), np.zeros((CATEGORIES, DIM), np.float32),
        {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()},
    )  # fmt: skip
    everything = Change(
        list(range(items)), [n for n in range(items) if n % 5], [], [], list(range(CATEGORIES)), [],
        list(range(USERS)), tuple(SHAPES),
    )  # fmt: skip
    return changed(nothing, everything, random)


SHAPES = {"u": (DIM, COLUMNS), "i": (2 * DIM + 1, COLUMNS), "scale": (1, 1), "bias": (1,)}


def changed(before, change, random, sold_out=0.3):
    """Contents after a change, with new random values. sold_out: share of the items put whose stock is 0."""
    arrays = {name: getattr(before, name).copy() for name in ("rows", "users", "categories")}
    for name, numbers in (("rows", change.items), ("users", change.users), ("categories", change.categories)):
        arrays[name][numbers] = random.standard_normal((len(numbers), DIM))
    arrays["rows"][change.bare] = 0
    arrays["categories"][change.dropped] = 0
    put = np.array(change.put, np.int64)
    if len(put) + len(change.removed):
        of_items = ("there", "of_category", "price", "stock", "rating", "brand", "tags")
        arrays |= {name: getattr(before, name).copy() for name in of_items}
        arrays["there"][put], arrays["there"][change.removed] = True, False
        lists = np.zeros((len(put), CATEGORIES + 1), np.int64)
        for _ in range(MOST_CATEGORIES):
            chosen = np.flatnonzero(random.random(len(put)) < 0.7)
            lists[chosen, random.integers(0, CATEGORIES + 1, len(chosen))] += 1
        arrays["of_category"][put] = lists
        arrays["price"][put] = random.integers(0, 400, len(put)) / np.float32(10)
        arrays["stock"][put] = np.where(random.random(len(put)) < sold_out, 0, random.integers(1, 9, len(put)))
        arrays["rating"][put] = np.where(random.random(len(put)) < 0.3, np.nan, random.integers(0, 11, len(put)) / 2)
        arrays["brand"][put] = random.integers(-1, len(BRANDS), len(put))
        arrays["tags"][put] = random.random((len(put), len(TAGS))) < 0.3
    dense = dict(before.dense)
    for name in change.dense:
        dense[name] = (random.standard_normal(SHAPES[name]) / 3).astype(np.float32)
        if name == "scale":
            dense[name] = np.array([[random.choice([-1.0, 0.25, 0.5, 2.0])]], np.float32)
    return replace(before, dense=dense, **arrays)


def restocked(before, put, random, sold_out):
    """Contents after new stocks of items, and nothing else of them."""
    stock = before.stock.copy()
    stock[put] = np.where(random.random(len(put)) < sold_out, 0, random.integers(1, 9, len(put)))
    return replace(before, stock=stock)


def passes(contents, conditions):
    """Which items pass a filter, bool [n]; what it says of items without a record does not matter."""
    good = np.ones(len(contents.ids), bool)
    for name, condition in conditions.items():
        good &= _clause(contents, name, condition)
    return good


def _clause(contents, name, condition):
    if isinstance(condition, dict) and "not" in condition:
        return ~_clause(contents, name, condition["not"])
    if name == "category":
        matching = _numbers(np.arange(CATEGORIES + 1), condition)
        return (contents.of_category[:, matching] > 0).any(1)
    if name in ("brand", "tags"):
        words = {condition} if isinstance(condition, str) else set(condition)
        if name == "brand":
            return np.isin(contents.brand, [n for n, word in enumerate(BRANDS) if word in words])
        return contents.tags[:, [word in words for word in TAGS]].any(1)
    return _numbers(getattr(contents, name), condition)


def _numbers(values, condition):
    def as_held(number):
        return np.float32(number) if values.dtype == np.float32 else number

    if isinstance(condition, dict):
        return np.isin(values, np.array([as_held(number) for number in condition["in"]]))
    if isinstance(condition, list):
        low, high = condition
        good = ~np.isnan(values)
        if low is not None:
            good &= values >= as_held(low)
        if high is not None:
            good &= values <= as_held(high)
        return good
    return values == as_held(condition)


@dataclass(frozen=True)
class Asked:
    """A request: users' numbers, how many items, a filter (None for none), and ids by "allow", "block" and "seen":
    a list for each user, or one for all."""

    users: list
    k: int
    wanted: dict | None = None
    lists: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    """A reply: the steps that it names (`of` for the items' vectors), lists of each user, and how many are missing."""

    step: int
    of: int
    ids: list
    scores: list
    unfilled: int


class ListChecker:
    """Contents by step, and checks of replies. Not thread-safe."""

    def __init__(self):
        self.contents = {}
        self._vectors = {}

    def forget(self, steps):
        """Drop the contents of steps that no reply can name any more."""
        for step in steps:
            self.contents.pop(step, None)
            self._vectors.pop(step, None)

    def vectors(self, step):
        """Vectors of all items of a step, float64 [n, COLUMNS]."""
        if step not in self._vectors:
            c = self.contents[step]
            of_categories = c.of_category[:, :CATEGORIES].astype(np.float64) @ c.categories
            x = np.concatenate([c.rows, of_categories, c.price[:, None]], 1, dtype=np.float64)
            self._vectors[step] = x @ c.dense["i"].astype(np.float64)
        return self._vectors[step]

    def counting(self, asked, step, of):
        """Which items count for each user, bool [users, n]."""
        c = self.contents[step]
        good = c.there & self.contents[of].there
        if asked.wanted is not None:
            good = good & passes(c, asked.wanted)
        counting = np.repeat(good[None], len(asked.users), 0)
        for name, lists in asked.lists.items():
            for n in range(len(asked.users)):
                named = np.isin(c.ids, np.array(lists[n % len(lists)], np.int64))
                counting[n] &= named if name == "allow" else ~named
        return counting

    def problem(self, asked, listed):
        """What is wrong with a reply; "" if nothing."""
        for step in (listed.step, listed.of):
            if step not in self.contents:
                return f"a reply names step {step}, which nobody has published or which is long gone"
        c, vectors = self.contents[listed.step], self.vectors(listed.of)
        counting = self.counting(asked, listed.step, listed.of)
        length = min(asked.k, int(counting.sum(1).min()))
        context = f"step {listed.step}, vectors of {listed.of}, {asked}"
        if len(listed.ids) != len(asked.users) or listed.unfilled != asked.k - length:
            return f"{len(listed.ids)} lists, {listed.unfilled} missing in place of {asked.k - length}: {context}"
        scale, bias = float(c.dense["scale"][0, 0]), float(c.dense["bias"][0])
        for user, ids, scores, good in zip(asked.users, listed.ids, listed.scores, counting):
            at = np.searchsorted(c.ids, ids)
            if len(ids) != length or len(scores) != length or len(set(ids)) != length:
                return f"user {user} has {len(ids)} items in place of {length}: {context}"
            if (at == len(c.ids)).any() or (c.ids[at] != ids).any():
                return f"user {user} has ids that no item has: {context}"
            if not good[at].all():
                sold = "sold out or else " if (c.stock[at][~good[at]] == 0).any() else ""
                return f"user {user} has items that are {sold}not to be listed, {c.ids[at][~good[at]][:3]}: {context}"
            row = c.users[user] if user < USERS else np.zeros(DIM)
            product = vectors @ (row.astype(np.float64) @ c.dense["u"].astype(np.float64))
            expected = 1 / (1 + np.exp(-(scale * product + bias)))
            if length and np.abs(expected[at] - scores).max() > TOLERANCE:
                return f"user {user} has scores of another generation: {context}"
            good[at] = False
            if length > 0 and good.any() and expected[good].max() > expected[at].min() + TOLERANCE:
                return f"user {user} lacks a better item than the last: {context}"
        return ""
