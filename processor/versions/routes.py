"""Routes of a model: select the version that answers a request, by number, label or traffic split, else the newest.

Routes are immutable values, replaced as a whole. The process that loads versions and those that receive the routes
select by the same rules, with the same messages. What a request needs is computed when routes are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from freshet_serving.processor.errors import NotReady, UnknownVersion, nearest
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import listed, unknown_model
from freshet_serving.processor.versions.traffic import Router, Traffic, new_turns

LOADING, AVAILABLE, END = "LOADING", "AVAILABLE", "END"

_turns = new_turns()


class RouteTarget(Protocol):
    """A version, as far as routes need it."""

    @property
    def manifest(self) -> Manifest: ...


S = TypeVar("S", bound=RouteTarget)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The status of one version; `state` is LOADING, AVAILABLE or END, `error` why it ended."""

    version: int
    state: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Routes(Generic[S]):
    """The routes of one model.

    Attributes:
        served: The target that answers, by version.
        labels: Version by label.
        states: Status of every known version.
        default: Target of requests that name no version and are not split; None if nothing is served.
        table: The traffic split over targets; None if all requests go to `default`.
        shadow: Target of shadow traffic, or None.
    """

    model: str
    served: Mapping[int, S] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[int, VersionStatus] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    default: S | None = field(init=False, default=None)
    table: Router[S] | None = field(init=False, default=None)
    shadow: S | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        split, aside = self.traffic.split, self.traffic.aside
        if not self.served:
            return
        default = self.served[max([v for v in self.served if v not in aside] or self.served)]
        if split is not None:
            if (baseline := self._labelled(split.labels[0])) is not None:
                default = baseline
            targets = [self._beside(default, owner) or default for owner in split.owners]
            if any(target is not default for target in targets):
                object.__setattr__(self, "table", Router(split, targets, _turns))
        object.__setattr__(self, "default", default)
        if self.traffic.shadow:
            object.__setattr__(self, "shadow", self._beside(default, self.traffic.shadow))

    def route(self, version: int | None = None, label: str | None = None, key: bytes | None = None) -> S:
        """Return the target that answers a request, by its sticky key if it names none; raise NotFound or NotReady."""
        if version is None and label is None and self.table is not None:
            return self.table.pick(key)
        return self.pick(version, label)

    def pick(self, version: int | None = None, label: str | None = None) -> S:
        """Return the target of a version or label, or the default, without a split; raise NotFound or NotReady."""
        if version is None and label is None:
            if self.default is None:
                why = self.refused
                raise NotReady(f"no version of model {self.model!r} is loaded" + (f": {why}" if why else ""))
            return self.default
        if label is not None:
            if label not in self.labels:
                raise self.no_label(label)
            version = self.labels[label]
        if version is None or version not in self.served:
            why = f"version {version} of model {self.model!r} is not loaded"
            raise UnknownVersion(why, _counted_noun("version", sorted(self.served)))
        return self.served[version]

    def no_label(self, label: str) -> UnknownVersion:
        """Return the error for a label that is not set."""
        why = f"label {label[:64]!r} of model {self.model!r} is not set{nearest(label, self.labels)}"
        return UnknownVersion(why, _counted_noun("label", sorted(self.labels)))

    @property
    def refused(self) -> str:
        """The newest version that failed to load, with the reason; "" if a version is served or is loading."""
        states = [] if self.served else self.status()
        if any(state.state == LOADING for state in states):
            return ""
        return next((f"version {state.version}: {state.error}" for state in states if state.error), "")

    def status(self) -> list[VersionStatus]:
        """Return the status of every known version, newest first."""
        return [self.states[v] for v in sorted(self.states, reverse=True)]

    def shares(self) -> dict[int, float]:
        """Return the share of requests without a version that each version answers."""
        split, default = self.traffic.split, self.default
        if default is None:
            return {}
        if split is None:
            return {default.manifest.version: 1.0}
        shares: dict[int, float] = {}
        for label, share in split.shares().items():
            version = (self._beside(default, label) or default).manifest.version
            shares[version] = shares.get(version, 0.0) + share
        return shares

    def active(self) -> dict[str, int]:
        """Return the versions of labels with a share of their own, baseline first; {} if the baseline cannot answer."""
        if self.traffic.split is None or self.default is None:
            return {}
        labels = self.traffic.split.labels
        versions = {label: served.manifest.version for label in labels if (served := self._beside(self.default, label))}
        return versions if labels[0] in versions else {}

    def trials(self) -> list[tuple[S, S]]:
        """Return pairs of canary and its baseline."""
        baseline, *canaries = dict.fromkeys(self.active().values()) or [0]
        return [(self.served[number], self.served[baseline]) for number in canaries]

    def _labelled(self, label: str) -> S | None:
        """Return the target of a label if it is loaded, not ejected and not barred."""
        version = self.labels.get(label)
        return None if version is None or version in self.traffic.aside else self.served.get(version)

    def _beside(self, baseline: S, label: str) -> S | None:
        """Return the target of a label if it accepts the baseline's requests (same inputs by name)."""
        served = self._labelled(label)
        return served if served is not None and served.manifest.inputs == baseline.manifest.inputs else None


def find(models: Mapping[str, T], name: str) -> T:
    """Return a model by its name; raise UnknownModel."""
    model = models.get(name)
    if model is None:
        raise unknown_model(name, models)
    return model


def _counted_noun(noun: str, names: Sequence[Any]) -> str:
    return f"{noun}{'s' * (len(names) > 1)} {listed(map(str, names))}" if names else f"no {noun}"


def without(routes: Routes[S], number: int, why: str = "") -> Mapping[str, Any]:
    """Return the fields of routes that change when a version is no longer served (`why`: if it is an error)."""
    served = {v: s for v, s in routes.served.items() if v != number}
    return {"served": served, "states": {**routes.states, number: VersionStatus(number, END, why)}}
