"""The session groups of a process: which models each serves, on how many sessions, on which cores.

The core plan. A group that names cores has them to itself: they are taken away from the sessions of every other group,
so a neighbour that is saturated slows it down no more. A model that no group names goes to the group with "*", else to
the group "default", which has the options of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from processor.clock import Clock
from processor.cores import available, numa_nodes, parse_cpusets, spread
from processor.errors import BadInput, NotFound
from processor.sessions.group import HOLDS, Compute, GroupOptions, Policy, SessionGroup
from processor.versions.replica import Replica
from processor.watching.sketch import Sketch
from processor.watching.stats import GroupStats, total

DEFAULT, ANY = "default", "*"
POLICIES = ("shared", "round-robin", "mod", "least-loaded")
COMPUTES = ("threads", "inline")
MAX_SESSIONS, MAX_THREADS, MAX_STAGES = HOLDS, 256, 64


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A group as the user writes it: what is None is as for the process. sessions: 0 for one a core. cpus: cores such
    as "0-1", or one set for each session in turn, such as "0-1;2-3"; "" for any."""

    models: list[str] = field(default_factory=list)
    sessions: int | None = None
    threads_per_session: int | None = None
    cpus: str | None = None
    policy: Policy | None = None
    batch_window_us: float | None = None
    max_queue_rows: int | None = None
    device_stages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """The options of a process's sessions; groups may have their own. device_stages: see processor.sessions.device; 0:
    none."""

    sessions: int = 0
    threads_per_session: int = 1
    cpus: str = ""
    policy: Policy = "shared"
    batch_window_us: float = 0.0
    max_queue_rows: int = 65536
    compute: Compute = "threads"
    device_stages: int = 0
    groups: Mapping[str, GroupConfig] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From options as JSON or TOML holds them: every group an object of its own options."""
        groups = {name: GroupConfig(**group) for name, group in options["groups"].items()}
        return cls(**{**options, "groups": groups})


def plan(
    config: SessionConfig, allowed: frozenset[int], nodes: Sequence[frozenset[int]]
) -> dict[str, tuple[tuple[str, ...], GroupOptions]]:
    """Models and options of every group; raises BadInput where they contradict each other. Pure.

    allowed: the process's cores. nodes: memory nodes, as cores.numa_nodes() gives them.
    """
    groups = dict(config.groups)
    named: dict[str, str] = {}
    for name, group in groups.items():
        for model in group.models or [name]:
            if model in named:
                raise BadInput(f"groups: model {model[:64]!r} is named by {named[model][:64]!r} and {name[:64]!r}")
            named[model] = name
    if DEFAULT in groups and groups[DEFAULT].models not in ([], [ANY]):
        raise BadInput("groups.default: serves the models that no group names, so no models wanted")
    if ANY not in named and DEFAULT not in groups:
        groups[DEFAULT] = GroupConfig([ANY])
    if config.compute == "inline" and len(groups) > 1:
        raise BadInput("compute: with groups threads wanted, got inline")
    own: dict[str, tuple[frozenset[int], ...]] = {}
    dedicated: dict[int, str] = {}
    for name, group in groups.items():
        own[name] = parse_cpusets(group.cpus or "", f"groups.{name[:64]}.cpus")
        for cpu in frozenset().union(*own[name]):
            if cpu in dedicated:
                raise BadInput(f"groups: core {cpu} is given to {dedicated[cpu][:64]!r} and {name[:64]!r}")
            dedicated[cpu] = name
    shared = parse_cpusets(config.cpus)
    for cpu in frozenset(dedicated).union(*shared) - allowed:
        raise BadInput(f"cpus: cores that this process may run on wanted, got {cpu}")
    rest = allowed - frozenset(dedicated)
    plans = {}
    for name, group in groups.items():
        cpus = own[name]
        if not cpus and shared:
            cpus = tuple(cpuset - frozenset(dedicated) for cpuset in shared if cpuset - frozenset(dedicated))
        elif not cpus:
            cpus = spread(rest, nodes) or ((rest,) if dedicated else ())
        if dedicated and not frozenset().union(*cpus):
            raise BadInput(f"groups.{name[:64]}: no core is left for it")
        cores = len(frozenset().union(*cpus)) if cpus else len(allowed)
        sessions = _first(group.sessions, 0 if group.cpus else config.sessions)
        options = GroupOptions(
            sessions=1 if config.compute == "inline" else sessions or cores,
            threads=_first(group.threads_per_session, config.threads_per_session),
            max_queue_rows=_first(group.max_queue_rows, config.max_queue_rows),
            policy=_first(group.policy, config.policy),
            window_s=_first(group.batch_window_us, config.batch_window_us) / 1e6,
            compute=config.compute,
            cpus=cpus,
            device_stages=_first(group.device_stages, config.device_stages),
        )
        _check(name, options)
        models = [ANY] if name == DEFAULT else group.models or [name]
        plans[name] = (tuple(models), options)
    return plans


def _first(mine: Any, others: Any) -> Any:
    return others if mine is None else mine


def _check(name: str, options: GroupOptions) -> None:
    where = "" if name == DEFAULT else f"groups.{name[:64]}."
    if not 1 <= options.sessions <= MAX_SESSIONS:
        raise BadInput(f"{where}sessions: 0 to {MAX_SESSIONS} wanted, got {options.sessions}")
    if not 1 <= options.threads <= MAX_THREADS:
        raise BadInput(f"{where}threads_per_session: 1 to {MAX_THREADS} wanted, got {options.threads}")
    if options.policy not in POLICIES:
        raise BadInput(f"{where}policy: one of {', '.join(POLICIES)} wanted, got {str(options.policy)[:40]!r}")
    if options.compute not in COMPUTES:
        raise BadInput(f"{where}compute: one of {', '.join(COMPUTES)} wanted, got {str(options.compute)[:40]!r}")
    if not 0 <= options.window_s <= 10:
        raise BadInput(f"{where}batch_window_us: 0 to 10000000 wanted, got {options.window_s * 1e6:g}")
    if not 0 <= options.device_stages <= MAX_STAGES:
        raise BadInput(f"{where}device_stages: 0 to {MAX_STAGES} wanted, got {options.device_stages}")
    if options.device_stages and options.compute == "inline":
        raise BadInput(f"{where}compute: threads wanted with device_stages, got inline")
    if options.max_queue_rows < 1:
        raise BadInput(f"{where}max_queue_rows: 1 or more wanted, got {options.max_queue_rows}")


class Groups:
    """The groups of this process, running."""

    def __init__(self, config: SessionConfig, clock: Clock) -> None:
        self._groups: dict[str, SessionGroup] = {}
        self._by_model: dict[str, SessionGroup] = {}
        for name, (models, options) in plan(config, available(), numa_nodes()).items():
            group = self._groups[name] = SessionGroup(options, clock)
            self._by_model.update(dict.fromkeys(models, group))
        self._any = self._by_model.pop(ANY)

    def of(self, model: str) -> SessionGroup:
        """The group that serves a model, whether there is such a model or not."""
        return self._by_model.get(model, self._any)

    @property
    def inline(self) -> SessionGroup | None:
        """The group that an owner drives, and then the only one; None when sessions have threads."""
        return self._any if self._any.inline else None

    def resize(self, sessions: int, name: str | None = None) -> None:
        """So many sessions in one group, or in every one; raises NotFound or BadInput."""
        if name is not None and name not in self._groups:
            raise NotFound(f"group {name[:64]!r} is not one of {', '.join(self._groups)}")
        for group in self._groups.values() if name is None else [self._groups[name]]:
            group.resize(sessions)

    def describe(self, name: str) -> dict[str, Any]:
        """A group for people, JSON-able: its models, sessions, cores, policy and queue."""
        group = self._groups[name]
        options = group.options
        models = sorted(model for model, other in self._by_model.items() if other is group)
        return {
            "models": [*models, *([ANY] if group is self._any else [])],
            "sessions": len(group),
            "threads_per_session": options.threads,
            "cpus": [sorted(cpus) for cpus in options.cpus],
            "policy": options.policy,
            "compute": options.compute,
            "device_stages": options.device_stages,
            "queue_rows": group.queue_rows,
        }

    def statistics(self) -> dict[str, GroupStats]:
        """A snapshot of each group, by name."""
        return {
            name: GroupStats(len(group), group.queue_rows, total(group.statistics()))
            for name, group in self._groups.items()
        }

    def counts(self, replica: Replica) -> NDArray[np.int64]:
        """See SessionGroup.counts."""
        return self.of(replica.manifest.model).counts(replica)

    def sketch(self, replica: Replica) -> Sketch:
        """See SessionGroup.sketch."""
        return self.of(replica.manifest.model).sketch(replica)

    def close(self) -> None:
        """Answers what is queued, then ends all sessions."""
        for group in self._groups.values():
            group.close()
