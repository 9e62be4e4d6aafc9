"""An operator's policy for a model: versions to serve, traffic split, bounds of canaries and deltas. Pure values.

The configuration file ([model.NAME]) and the admin API use the same keys; a key set through the admin API overrides the
file until it is unset.

    versions       "latest:N" | "all" | a list of versions
    labels         label -> version
    split          label -> weight; the first label is the baseline
    sticky_input   input whose first value is the sticky key of requests that bring none
    split_salt     another number reassigns sticky keys
    shadow         label that receives a copy of requests; shadow_share: of this share of them
    guard          bounds of a canary: processor.watching.CanaryBounds
    delta_guard    bounds of a delta: processor.watching.DeltaBounds
    unjudged       "serve" | "hold": what to do with a new version that the gate cannot judge
    bake_s         seconds for which a replaced version stays loaded (VersionSelection)
    user_state     "exact" | bounds of how old kept user parts may be, and their type: features.user_bounds
    max_rows       rows of a request, instead of the server's limit; max_ids, max_cells: likewise
                   (processor.features.limits)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.package import NAME
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.versions.traffic import TrafficSplit, parse_users
from freshet_serving.processor.watching import CanaryBounds, DeltaBounds

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_bounds import OldestUsers

LATEST = re.compile(r"latest:([1-9][0-9]{0,5})")
MAX_VERSIONS, MAX_LABELS = 1000, 64
DEFAULT_SHADOW_SHARE = 0.1
SERVE, HOLD = "serve", "hold"
EXACT = "exact"
MAX_BAKE_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Selection of the versions to serve: exactly some, or the latest (0: all)."""

    latest: int = 1
    versions: tuple[int, ...] = ()

    def choose(self, known: Sequence[int], barred: Container[int] = ()) -> set[int]:
        """Return the versions to serve out of those in the repository; barred ones only if a list names them."""
        if self.versions:
            return set(self.versions) & set(known)
        sound = sorted(number for number in known if number not in barred)
        return set(sound[-self.latest :])

    @property
    def spelled(self) -> str | list[int]:
        """The policy as the operator writes it."""
        return list(self.versions) if self.versions else f"latest:{self.latest}" if self.latest else "all"

    @classmethod
    def parse(cls, raw: Any, where: str) -> VersionPolicy:
        if isinstance(raw, list) and 0 < len(raw) <= MAX_VERSIONS and all(type(v) is int and v > 0 for v in raw):
            return cls(0, tuple(sorted(set(raw))))
        match = LATEST.fullmatch(raw) if isinstance(raw, str) else None
        if match is None and raw != "all":
            raise BadInput(f"{where}: expected 'latest:N', 'all' or a list of versions, got {str(raw)[:64]!r}")
        return cls(int(match[1]) if match else 0)


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """An operator's settings for a model (keys: see the module); `given` are the keys that were set explicitly."""

    versions: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)
    split: Mapping[str, float] = field(default_factory=dict)
    sticky_input: str = ""
    split_salt: int = 0
    shadow: str = ""
    shadow_share: float = DEFAULT_SHADOW_SHARE
    guard: CanaryBounds = field(default_factory=CanaryBounds)
    delta_guard: DeltaBounds = field(default_factory=DeltaBounds)
    unjudged: str = SERVE
    bake_s: float = 600.0
    user_state: OldestUsers | None = None
    max_rows: int = 0
    max_ids: int = 0
    max_cells: int = 0
    given: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, raw: Any, where: str) -> ModelPolicy:
        """Parse a policy from JSON or TOML; raise BadInput that names the key, the expected and the actual value."""
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: expected a section, got {json_kind(raw)}")
        for key in raw:
            if key not in KEYS:
                raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(KEYS)}")
        read = {key: _PARSERS[key](value, f"{where}.{key}") for key, value in raw.items()}
        return cls(**read, given=frozenset(read))

    def check_extensions(self, where: str) -> None:
        """Raise BadInput if the policy asks for an extension that is not there."""
        canaries = sum(weight > 0 for weight in self.split.values()) > 1
        bounded = "delta_guard" in self.given and self.delta_guard.mode != OFF
        asked: dict[str, dict[str, Any]] = {
            "trials": {"shadow": self.shadow, "guard": "guard" in self.given, "split": canaries},
            "guard": {"delta_guard": bounded, "unjudged": self.unjudged == HOLD},
            "user_state": {"user_state": self.user_state},
        }
        for extension in asked.keys() - ENGINE.all().keys():
            for key, asks in asked[extension].items():
                if asks:
                    raise missing(f"{where}.{key}", extension)

    @property
    def limits(self) -> dict[str, int]:
        """The model's own request limits, by name."""
        limits = {"max_rows": self.max_rows, "max_ids": self.max_ids, "max_cells": self.max_cells}
        return {name: most for name, most in limits.items() if most}

    def to_json(self) -> dict[str, Any]:
        """Return the keys that were set, in the form that parse() accepts."""
        users = EXACT if self.user_state is None else self.user_state.spelled
        whole = {**asdict(self), "versions": self.versions.spelled, "user_state": users}
        return {key: whole[key] for key in KEYS if key in self.given}

    def over(self, other: ModelPolicy) -> ModelPolicy:
        """Return this policy's keys, completed by the other's where this one sets none."""
        values = {key: getattr(self, key) for key in self.given}
        others = {key: getattr(other, key) for key in other.given}
        return ModelPolicy(**(others | values), given=self.given | other.given)

    def changed(self, changes: Any, where: str) -> ModelPolicy:
        """Return this policy with keys set, or unset where they are None; raise BadInput."""
        if not isinstance(changes, dict):
            raise BadInput(f"{where}: expected an object, got {json_kind(changes)}")
        settings = {key: value for key, value in {**self.to_json(), **changes}.items() if value is not None}
        return ModelPolicy.parse(settings, where)


def _table(raw: Any, where: str, kinds: tuple[type, ...], expected: str) -> dict[str, Any]:
    if not isinstance(raw, dict) or len(raw) > MAX_LABELS:
        raise BadInput(f"{where}: expected at most {MAX_LABELS} labels")
    for label, value in raw.items():
        if NAME.fullmatch(label) is None:
            raise BadInput(f"{where}: expected a label of letters, digits, '_', '.', '-', got {label[:64]!r}")
        if type(value) not in kinds or not 0 <= value < 1 << 63:
            raise BadInput(f"{where}.{label}: expected {expected}, got {str(value)[:40]!r}")
    return dict(raw)


def _labels(raw: Any, where: str) -> dict[str, int]:
    labels = _table(raw, where, (int,), "a version")
    if 0 in labels.values():
        raise BadInput(f"{where}: expected versions of 1 or more, got 0")
    return labels


def _split(raw: Any, where: str) -> dict[str, float]:
    weights = _table(raw, where, (int, float), "a weight of 0 or more")
    if weights:
        TrafficSplit.of(weights, 0)
    return weights


def _name(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or (raw and NAME.fullmatch(raw) is None):
        raise BadInput(f"{where}: expected a name, got {str(raw)[:64]!r}")
    return raw


def _number(kind: type, accepts: Callable[[Any], bool], expected: str) -> Callable[[Any, str], Any]:
    """Return a parser of numbers of a kind; whole ones are accepted for floats."""

    def parse(raw: Any, where: str) -> Any:
        if type(raw) not in (int, kind) or not accepts(raw):
            raise BadInput(f"{where}: expected {expected}, got {str(raw)[:40]!r}")
        return kind(raw)

    return parse


def _unjudged(raw: Any, where: str) -> str:
    if raw not in (SERVE, HOLD):
        raise BadInput(f"{where}: expected {SERVE!r} or {HOLD!r}, got {str(raw)[:40]!r}")
    return str(raw)


def _user_state(raw: Any, where: str) -> OldestUsers | None:
    return parse_users(None if raw == EXACT else raw or {}, where)


_MOST = _number(int, lambda n: 1 <= n <= 1 << 31, f"1 to {1 << 31}")
_PARSERS: dict[str, Any] = {
    "versions": VersionPolicy.parse,
    "labels": _labels,
    "split": _split,
    "sticky_input": _name,
    "split_salt": _number(int, lambda n: 0 <= n < 1 << 32, f"0 to {(1 << 32) - 1}"),
    "shadow": _name,
    "shadow_share": _number(float, lambda n: 0 < n <= 1, "a share above 0 and at most 1"),
    "guard": CanaryBounds.parse,
    "delta_guard": DeltaBounds.parse,
    "unjudged": _unjudged,
    "bake_s": _number(float, lambda n: 0 <= n <= MAX_BAKE_S, f"0 to {MAX_BAKE_S:g} seconds"),
    "user_state": _user_state,
    "max_rows": _MOST,
    "max_ids": _MOST,
    "max_cells": _MOST,
}
KEYS = tuple(f.name for f in fields(ModelPolicy) if f.name != "given")
