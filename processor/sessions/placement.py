"""Place the session groups of a process: which models each serves, on how many sessions and which cores.

Core plan. A group that names cores has them to itself: they are removed from the sessions of every other group. A model
that no group names goes to the group with "*", else to the group "default", which has the options of the process.
Groups with a budget, a share or a minimum have their cores planned while they serve (port core_planner).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import Occupancy, ResourceLimits, available, numa_nodes, parse_cpusets, spread
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.options import check
from freshet_serving.processor.ports import ENGINE, CorePlanner, missing
from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.sessions.session_options import (
    MAX_SESSIONS,
    GroupConfig,
    GroupOptions,
    SessionConfig,
    SessionOptions,
)
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.watching import GroupStats, Sketch, total

DEFAULT, ANY = "default", "*"


def plan(
    config: SessionConfig, allowed: frozenset[int], nodes: Sequence[frozenset[int]], busy: int | None = None
) -> dict[str, tuple[tuple[str, ...], GroupOptions]]:
    """Return the models and options of every group, by name; raise BadInput if options contradict each other. Pure.

    `busy` is the number of the allowed cores, in these memory nodes, that the process can keep busy; None for all.
    """
    check(config)
    groups = dict(config.groups)
    named: dict[str, str] = {}
    for name, group in groups.items():
        for model in group.models or [name]:
            if model in named:
                raise BadInput(f"groups: model {model[:64]!r} is in both {named[model][:64]!r} and {name[:64]!r}")
            named[model] = name
    if DEFAULT in groups and groups[DEFAULT].models not in ([], [ANY]):
        raise BadInput("groups.default: expected no models: this group serves those that no other group names")
    if ANY not in named and DEFAULT not in groups:
        groups[DEFAULT] = GroupConfig([ANY])
    if config.compute == "inline" and len(groups) > 1:
        raise BadInput("compute: expected threads with groups, got inline")
    cpu_sets: dict[str, tuple[frozenset[int], ...]] = {}
    dedicated: dict[int, str] = {}
    for name, group in groups.items():
        cpu_sets[name] = parse_cpusets(group.cpus or "", f"groups.{name[:64]}.cpus")
        for cpu in frozenset().union(*cpu_sets[name]):
            if cpu in dedicated:
                raise BadInput(f"groups: core {cpu} is in both {dedicated[cpu][:64]!r} and {name[:64]!r}")
            dedicated[cpu] = name
    for cpu in frozenset(dedicated) - allowed:
        raise BadInput(f"cpus: expected cores that this process may run on, got {cpu}")
    rest = allowed - frozenset(dedicated)
    plans = {}
    for name, group in groups.items():
        cpus = cpu_sets[name] or spread(rest, nodes) or ((rest,) if dedicated else ())
        if dedicated and not frozenset().union(*cpus):
            raise BadInput(f"groups.{name[:64]}: no core is left for this group")
        cores = min(len(frozenset().union(*cpus)) if cpus else len(allowed), busy or len(allowed))
        own_options = _own_options(config, group)
        field = "" if name == DEFAULT else f"groups.{name[:64]}."
        check(own_options, field)
        if own_options.device_stages:
            if config.compute == "inline":
                raise BadInput("compute: expected threads with device_stages, got inline")
            # Loaded where there are device stages.
            from freshet_serving.processor.sessions.stages import check_stages

            check_stages(own_options.device_stages, field)
        if own_options.device_rows_mb:
            # Loaded where rows are to lie on a device.
            from freshet_serving.processor.running.placed_rows import check_device_rows

            check_device_rows(field)
        # Inline, the event loop's thread is a session; helpers are added only on request.
        sessions = own_options.sessions or (1 if config.compute == "inline" else min(cores, MAX_SESSIONS))
        options = GroupOptions(**{**asdict(own_options), "sessions": sessions}, compute=config.compute, cpus=cpus)
        models = [ANY] if name == DEFAULT else group.models or [name]
        plans[name] = (tuple(models), options)
    return plans


def _own_options(config: SessionConfig, group: GroupConfig) -> SessionOptions:
    """Return the options of a group: its own, else the process's. A group with own cores gets one session per core."""
    overrides = {f.name: value for f in fields(SessionOptions) if (value := getattr(group, f.name)) is not None}
    defaults = {f.name: getattr(config, f.name) for f in fields(SessionOptions)}
    if group.cpus:
        defaults["sessions"] = 0
    return SessionOptions(**{**defaults, **overrides})


def core_planner() -> CorePlanner:
    """Return what plans cores; raise BadInput without the extension."""
    planner: CorePlanner | None = ENGINE.only("core_planner")
    if planner is None:
        raise missing("groups: p99_ms, share, min_cores", "core_planner")
    return planner


class Groups:
    """The running session groups of this process; `planning` (or None) plans their cores, or a worker's half of it."""

    def __init__(
        self, config: SessionConfig, clock: Clock, occupancy: Occupancy | None = None, alone: bool = True
    ) -> None:
        """Start the groups; a worker is not `alone`: its supervisor plans cores for all."""
        self._groups: dict[str, SessionGroup] = {}
        self._by_model: dict[str, SessionGroup] = {}
        cores = ResourceLimits.here().cores
        occupancy = occupancy or Occupancy(cores)
        for name, (models, options) in plan(config, available(), numa_nodes(), cores).items():
            group = self._groups[name] = SessionGroup(options, clock, occupancy)
            self._by_model.update(dict.fromkeys(models, group))
        self._any = self._by_model.pop(ANY)
        self.planning: Any = None
        if any(group.planned for group in config.groups.values()):
            planner = core_planner()
            if alone:
                self.planning = planner.process(self._groups, config, available(), clock)
            else:
                self.planning = planner.worker(self._groups)

    def of(self, model: str) -> SessionGroup:
        """Return the group that serves a model, whether or not the model exists."""
        return self._by_model.get(model, self._any)

    @property
    def inline(self) -> SessionGroup | None:
        """The only group if an owner drives it; None if sessions have threads."""
        return self._any if self._any.inline else None

    def resize(self, sessions: int, name: str | None = None) -> None:
        """Change the number of sessions in one group, or in all; raise NotFound, or BadInput if cores are planned."""
        if self.planning is not None:
            raise BadInput("sessions: cores are planned (p99_ms, share, min_cores), and sessions with them")
        if name is not None and name not in self._groups:
            raise NotFound(f"group does not exist: {name[:64]!r}; expected one of {', '.join(self._groups)}")
        for group in self._groups.values() if name is None else [self._groups[name]]:
            group.resize(sessions)

    def describe(self, name: str) -> dict[str, Any]:
        """Return a JSON-able description of a group: its models, sessions, cores and queue."""
        group = self._groups[name]
        options = group.options
        models = sorted(model for model, model_group in self._by_model.items() if model_group is group)
        return {
            "models": [*models, *([ANY] if group is self._any else [])],
            "sessions": len(group),
            "threads_per_session": options.threads_per_session,
            "cpus": [sorted(cpus) for cpus in options.cpus],
            "compute": options.compute,
            "device_stages": options.device_stages,
            "device_rows_mb": options.device_rows_mb,
            "queue_rows": group.queue_rows,
            **({} if self.planning is None else self.planning.describe(name)),
        }

    def statistics(self) -> dict[str, GroupStats]:
        return {
            name: GroupStats(len(group), group.queue_rows, total(group.statistics()))
            for name, group in self._groups.items()
        }

    def counts(self, replica: Replica) -> NDArray[np.int64]:
        return self.of(replica.manifest.model).counts(replica)

    def sketch(self, replica: Replica) -> Sketch:
        return self.of(replica.manifest.model).sketch(replica)

    def close(self) -> None:
        """Answer queued requests, then stop all sessions."""
        if self.planning is not None:
            self.planning.close()
        for group in self._groups.values():
            group.close()
