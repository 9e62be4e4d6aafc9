"""Which version of a model answers a request: by number, by label, else the newest. Values, replaced whole.

The process that loads versions and the processes that are told of them pick by the same rules, in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from processor.errors import NotFound, NotReady

T = TypeVar("T")

LOADING, AVAILABLE, END = "LOADING", "AVAILABLE", "END"


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """Where one version stands. state: LOADING, AVAILABLE or END; error: why it ended, or ""."""

    version: int
    state: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Routes(Generic[T]):
    """One model's. served: what answers, by version. labels: version by label. states: every version known."""

    model: str
    served: Mapping[int, T] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[int, VersionStatus] = field(default_factory=dict)

    def pick(self, version: int | None = None, label: str | None = None) -> T:
        """What answers a request; raises NotFound or NotReady."""
        served = self.served
        if label is not None:
            if label not in self.labels:
                raise NotFound(f"label {label[:64]!r} of model {self.model!r} is not set")
            version = self.labels[label]
        if version is None:
            if not served:
                raise NotReady(f"no version of model {self.model!r} is loaded")
            return served[max(served)]
        if version not in served:
            raise NotFound(f"version {version} of model {self.model!r} is not loaded")
        return served[version]

    def status(self) -> list[VersionStatus]:
        """Every version known, newest first."""
        return [self.states[v] for v in sorted(self.states, reverse=True)]


def find(models: Mapping[str, T], name: str) -> T:
    """The model of that name; raises NotFound."""
    model = models.get(name)
    if model is None:
        raise NotFound(f"model {name[:64]!r} is not in the repository")
    return model
