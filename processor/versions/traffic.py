"""Traffic, the requests that name no version: a split of it over labels, and what has been taken out of it. Pure.

A split is a line of 2^32 buckets, cut into segments that each belong to a label. A sticky key has one bucket for good
(xxh3_64 with the split's salt, its upper half), a request without a key takes the next bucket of a sequence that fills
the line evenly.

Invariants
- While the weights stay, no segment moves, so a sticky key never changes sides.
- reweighted() takes from the labels that lose and gives exactly that to those that gain: of all keys no more change
  sides than the weights themselves say.
- A label without weight keeps no segment. The first label is the baseline: the others are judged by it, and what a
  label that cannot answer would get goes to it.

Refused: weighted rendezvous hashing (needs no state, but a change of one weight of three moves keys between the other
two, and every pick costs a hash a label); a random number a request (its share is off by its own variance, and the
sequence costs the same).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

import xxhash

from freshet_serving.processor.errors import BadInput

BUCKETS = 1 << 32
MAX_TARGETS = 16
MAX_SEGMENTS = 4096
# 2^32 over the golden ratio, made odd: the multiples of it, modulo 2^32, are as evenly spread as multiples can be.
STEP = 0x9E3779B1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrafficSplit:
    """A split of traffic. labels: the baseline first. Segment i is buckets [ends[i - 1], ends[i]) and belongs to
    owners[i]; the last end is 2^32, and no two neighbours have one owner. salt: of sticky keys."""

    labels: tuple[str, ...]
    ends: tuple[int, ...]
    owners: tuple[str, ...]
    salt: int

    @classmethod
    def of(cls, weights: Mapping[str, float], salt: int) -> TrafficSplit:
        """Segments one after another, in the weights' order; raises BadInput."""
        nobody = cls(tuple(weights), (BUCKETS,), (next(iter(weights), ""),), salt)
        return nobody.reweighted(weights)

    def reweighted(self, weights: Mapping[str, float]) -> TrafficSplit:
        """The same split with other weights, moving as little as can be; raises BadInput."""
        wanted, had = _sizes(weights), self.sizes()
        surplus = {owner: max(0, size - wanted.get(owner, 0)) for owner, size in had.items()}
        lacking = [(label, size - had.get(label, 0)) for label, size in wanted.items() if size > had.get(label, 0)]
        pieces = list(zip((0, *self.ends), self.ends, self.owners))
        # The baseline gives the end of what it has and the others the beginning of theirs: going back to former weights
        # gives the very same buckets back.
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

    def bucket(self, key: bytes) -> int:
        """A sticky key's place on the line."""
        return xxhash.xxh3_64_intdigest(key, self.salt) >> 32

    def pick(self, bucket: int) -> str:
        """The label whose segment the bucket is in."""
        return self.owners[bisect_right(self.ends, bucket)]

    def sizes(self) -> dict[str, int]:
        """Number of buckets by label."""
        sizes: dict[str, int] = {}
        start = 0
        for end, owner in zip(self.ends, self.owners):
            sizes[owner] = sizes.get(owner, 0) + end - start
            start = end
        return sizes

    def shares(self) -> dict[str, float]:
        """Share of all traffic by label, the baseline first; 0 for a label without weight."""
        sizes = self.sizes()
        return {label: sizes.get(label, 0) / BUCKETS for label in self.labels}

    def to_json(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels), "ends": list(self.ends), "owners": list(self.owners), "salt": self.salt,
        }  # fmt: skip

    @classmethod
    def from_json(cls, raw: Any) -> TrafficSplit:
        """Reads to_json(); raises BadInput for anything that is no split."""
        try:
            split = cls(tuple(raw["labels"]), tuple(raw["ends"]), tuple(raw["owners"]), raw["salt"])
            whole = all(type(end) is int for end in split.ends) and type(split.salt) is int
            ascending = all(a < b for a, b in zip((0, *split.ends), split.ends)) and split.ends[-1] == BUCKETS
            named = set(split.owners) <= set(split.labels) and len(split.owners) == len(split.ends) <= MAX_SEGMENTS
        except (KeyError, TypeError, IndexError):
            raise BadInput("split: labels, ends, owners and salt wanted") from None
        if not (whole and ascending and named and 0 <= split.salt < 1 << 64):
            raise BadInput("split: segments that tile the line wanted")
        return split


def _sizes(weights: Mapping[str, float]) -> dict[str, int]:
    """Buckets by label, in all 2^32; raises BadInput."""
    if not 1 <= len(weights) <= MAX_TARGETS:
        raise BadInput(f"split: 1 to {MAX_TARGETS} labels wanted, got {len(weights)}")
    for label, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise BadInput(f"split: a weight of 0 or more wanted for {label[:64]!r}, got {weight}")
    whole = float(sum(weights.values()))
    if not 0 < whole < float("inf"):
        raise BadInput("split: a weight above 0 wanted for at least one label")
    sizes, at, so_far = {}, 0, 0.0
    for label, weight in weights.items():
        so_far += weight
        end = round(so_far / whole * BUCKETS)
        sizes[label] = end - at
        at = end
    # Rounding may leave the very end to nobody: it is the last label's that has weight.
    last = next(label for label in reversed(list(weights)) if weights[label] > 0)
    sizes[last] += BUCKETS - at
    return {label: size for label, size in sizes.items() if size}


@dataclass(frozen=True, slots=True)
class EjectedVersion:
    """A version that has been taken out: why, and when, in Unix seconds."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a model: how requests that name no version find theirs, and what any may cost. sticky_input: the
    input whose first value is the key of requests without one; "" for none. shadow: the label that gets a copy of
    shadow_share of them; "" for none. out: versions that answer only who asks for them by number or label. limits: the
    model's own, by name (processor.features.limits)."""

    split: TrafficSplit | None = None
    sticky_input: str = ""
    shadow: str = ""
    shadow_share: float = 0.0
    out: Mapping[int, EjectedVersion] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "split": self.split.to_json() if self.split else None,
            "sticky_input": self.sticky_input,
            "shadow": self.shadow,
            "shadow_share": self.shadow_share,
            "out": {str(version): [out.reason, out.at] for version, out in self.out.items()},
            "limits": dict(self.limits),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Traffic:
        """The Traffic of what to_json() said, in another process of this server."""
        return cls(
            TrafficSplit.from_json(raw["split"]) if raw["split"] else None,
            raw["sticky_input"],
            raw["shadow"],
            raw["shadow_share"],
            {int(version): EjectedVersion(*out) for version, out in raw["out"].items()},
            raw["limits"],
        )


class Router(Generic[T]):
    """A split with its labels resolved: what a request is routed by."""

    __slots__ = ("_ends", "_next", "_salt", "_targets")

    def __init__(self, split: TrafficSplit, targets: Sequence[T], turns: Callable[[], int]) -> None:
        """targets: what answers each segment. turns: numbers that go up by STEP."""
        self._ends, self._salt, self._targets, self._next = list(split.ends), split.salt, list(targets), turns

    def pick(self, key: bytes | None) -> T:
        if key is None:
            bucket = self._next() & (BUCKETS - 1)
        else:
            bucket = xxhash.xxh3_64_intdigest(key, self._salt) >> 32
        return self._targets[bisect_right(self._ends, bucket)]


def new_turns() -> Callable[[], int]:
    """The sequence that requests without a key take their buckets from; each process starts somewhere else."""
    return count(random.getrandbits(32), STEP).__next__
