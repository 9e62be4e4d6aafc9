"""Traffic, the requests that name no version: its split over labels, and the ejected versions. Pure.

A split is a line of 2^32 buckets, cut into segments that each belong to a label. A sticky key has one fixed bucket (the
upper half of xxh3_64 with the split's salt); a request without a key takes the next bucket of a sequence that fills the
line evenly.

Invariants
- While the weights stay, no segment moves, so a sticky key never changes sides.
- reweighted() moves only what the losing labels give to the gaining ones: no more keys change sides than the weights
  require.
- A label without weight has no segment. The first label is the baseline: the others are judged by it, and it receives
  the share of a label that cannot answer.

Rejected: weighted rendezvous hashing (stateless, but changing one weight of three moves keys between the other two, and
every pick costs one hash per label); a random number per request (its share is off by its own variance, at the same
cost).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import xxhash

from freshet_serving.processor.errors import BadInput, first_of

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_bounds import OldestUsers

BUCKETS = 1 << 32
MAX_TARGETS = 16
MAX_SEGMENTS = 4096
# 2^32 over the golden ratio, made odd: its multiples modulo 2^32 are spread as evenly as multiples can be.
STEP = 0x9E3779B1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrafficSplit:
    """A split of traffic over labels, baseline first. Buckets [ends[i - 1], ends[i]) belong to owners[i].

    Ends ascend to 2^32; sticky keys are hashed with the salt.
    """

    labels: tuple[str, ...]
    ends: tuple[int, ...]
    owners: tuple[str, ...]
    salt: int

    @classmethod
    def of(cls, weights: Mapping[str, float], salt: int) -> TrafficSplit:
        """Return a split with one segment per label, in the order of the weights (baseline first); raise BadInput."""
        nobody = cls(tuple(weights), (BUCKETS,), (next(iter(weights), ""),), salt)
        return nobody.reweighted(weights)

    def reweighted(self, weights: Mapping[str, float]) -> TrafficSplit:
        """Return the same split with other weights, moving as few buckets as possible; raise BadInput."""
        target, before = _sizes(weights), self.sizes()
        surplus = {owner: max(0, size - target.get(owner, 0)) for owner, size in before.items()}
        lacking = [
            (label, size - before.get(label, 0)) for label, size in target.items() if size > before.get(label, 0)
        ]
        pieces = list(zip((0, *self.ends), self.ends, self.owners))
        # The baseline gives up the end of its segments and the others the beginning of theirs, so going back to former
        # weights restores the very same buckets.
        base = [n for n, (_, _, owner) in enumerate(pieces) if owner == self.labels[0]]
        gives = {}
        for n in [*reversed(base), *(n for n in range(len(pieces)) if n not in base)]:
            start, end, owner = pieces[n]
            gives[n] = min(end - start, surplus[owner])
            surplus[owner] -= gives[n]
        cut: list[tuple[int, str]] = []
        for n, (start, end, owner) in enumerate(pieces):
            at = end - gives[n] if n in base else start
            if at > start:
                cut.append((at, owner))
            while gives[n]:
                label, size = lacking[0]
                taken = min(gives[n], size)
                gives[n] -= taken
                at += taken
                cut.append((at, label))
                lacking[0] = (label, size - taken)
                if taken == size:
                    lacking.pop(0)
            if end > at:
                cut.append((end, owner))
        merged = [(e, o) for n, (e, o) in enumerate(cut) if n + 1 == len(cut) or cut[n + 1][1] != o]
        return TrafficSplit(tuple(weights), tuple(e for e, _ in merged), tuple(o for _, o in merged), self.salt)

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        start = 0
        for end, owner in zip(self.ends, self.owners):
            sizes[owner] = sizes.get(owner, 0) + end - start
            start = end
        return sizes

    def shares(self) -> dict[str, float]:
        """Return the share of all traffic by label, baseline first; 0 for a label without weight."""
        sizes = self.sizes()
        return {label: sizes.get(label, 0) / BUCKETS for label in self.labels}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> TrafficSplit:
        """Parse the result of to_json(); raise BadInput if it is not a valid split."""
        try:
            split = cls(tuple(raw["labels"]), tuple(raw["ends"]), tuple(raw["owners"]), raw["salt"])
            whole = all(type(end) is int for end in split.ends) and type(split.salt) is int
            ascending = all(a < b for a, b in zip((0, *split.ends), split.ends)) and split.ends[-1] == BUCKETS
            named = set(split.owners) <= set(split.labels) and len(split.owners) == len(split.ends) <= MAX_SEGMENTS
        except (KeyError, TypeError, IndexError):
            raise BadInput("split: expected labels, ends, owners and salt") from None
        if not (whole and ascending and named and 0 <= split.salt < 1 << 64):
            raise BadInput("split: expected segments that cover the whole range without overlap")
        return split


def _sizes(weights: Mapping[str, float]) -> dict[str, int]:
    """Return the number of buckets by label, 2^32 in all, without empty ones; raise BadInput."""
    if not 1 <= len(weights) <= MAX_TARGETS:
        raise BadInput(f"split: expected 1 to {MAX_TARGETS} labels, got {len(weights)}")
    for label, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise BadInput(f"split: expected a weight of 0 or more for {label[:64]!r}, got {weight}")
    whole = float(sum(weights.values()))
    if not 0 < whole < float("inf"):
        raise BadInput("split: expected a weight above 0 for at least one label")
    sizes, at, so_far = {}, 0, 0.0
    for label, weight in weights.items():
        so_far += weight
        end = round(so_far / whole * BUCKETS)
        sizes[label] = end - at
        at = end
    # Rounding may leave the very end unassigned: it goes to the last label that has weight.
    last = first_of(label for label in reversed(list(weights)) if weights[label] > 0)
    sizes[last] += BUCKETS - at
    return {label: size for label, size in sizes.items() if size}


@dataclass(frozen=True, slots=True)
class EjectedVersion:
    """An ejected version; `at` in Unix seconds."""

    reason: str
    at: float


def parse_users(raw: Any, where: str) -> OldestUsers | None:
    """Parse bounds of how old cached user parts may be; None for none. Raise BadInput."""
    if raw is None:
        return None
    # Loaded with the first model that has bounds.
    from freshet_serving.processor.features.user_bounds import OldestUsers

    return OldestUsers.parse(raw, where)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a model: how requests that name no version find theirs, and the limits of any request.

    Attributes:
        sticky_input: Input whose first value is the sticky key of requests without one; "" for none.
        shadow: Label that receives a copy of requests; "" for none.
        shadow_share: Share of requests that are copied.
        out: Ejected versions, which answer only requests that name their number or label.
        limits: The model's own request limits, by name (processor.features.limits).
        barred: Versions that are held or withdrawn; like ejected ones, they answer only requests that name them.
        users: Bounds of how old cached user parts may be; None if they have to be exact.
    """

    split: TrafficSplit | None = None
    sticky_input: str = ""
    shadow: str = ""
    shadow_share: float = 0.0
    out: Mapping[int, EjectedVersion] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    barred: frozenset[int] = frozenset()
    users: OldestUsers | None = None

    @property
    def aside(self) -> Set[int]:
        """Versions that take no share of traffic."""
        return self.out.keys() | self.barred

    def to_json(self) -> dict[str, Any]:
        return {
            "split": self.split.to_json() if self.split else None,
            "sticky_input": self.sticky_input,
            "shadow": self.shadow,
            "shadow_share": self.shadow_share,
            "out": {str(version): [out.reason, out.at] for version, out in self.out.items()},
            "limits": dict(self.limits),
            "barred": sorted(self.barred),
            "users": self.users and self.users.spelled,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Traffic:
        """Parse the result of to_json() in another process of this server."""
        return cls(
            TrafficSplit.from_json(raw["split"]) if raw["split"] else None,
            raw["sticky_input"],
            raw["shadow"],
            raw["shadow_share"],
            {int(version): EjectedVersion(*out) for version, out in raw["out"].items()},
            raw["limits"],
            frozenset(raw["barred"]),
            parse_users(raw["users"], "users"),
        )


class Router(Generic[T]):
    """A split with its labels resolved to targets."""

    __slots__ = ("_ends", "_next", "_salt", "_targets")

    def __init__(self, split: TrafficSplit, targets: Sequence[T], turns: Callable[[], int]) -> None:
        """Resolve a split; `targets` by segment, `turns` returns numbers that rise by STEP."""
        self._ends, self._salt, self._targets, self._next = list(split.ends), split.salt, list(targets), turns

    def pick(self, key: bytes | None) -> T:
        if key is None:
            bucket = self._next() & (BUCKETS - 1)
        else:
            bucket = xxhash.xxh3_64_intdigest(key, self._salt) >> 32
        return self._targets[bisect_right(self._ends, bucket)]


def new_turns() -> Callable[[], int]:
    """Return the sequence of buckets for requests without a key; its start differs by process."""
    return count(random.getrandbits(32), STEP).__next__
