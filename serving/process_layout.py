"""How a server is laid out: how many processes answer, where they compute, on how many sessions, and why so.

Measured with 1, 64 and 512 candidates, saturated and at light load (`make bench BENCH_ARGS="--only layouts"`): a worker
a core that computes inline is the best or near it, so that is what a server is without options. One process is taken
where several would be refused, would each hold what is too much to hold twice, or would take options of sessions for
their own that are meant for the sessions of one process. What was asked for is never changed.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass, fields
from typing import Any

from freshet_serving.processor.cores import ResourceLimits
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository import open_repository
from freshet_serving.processor.sessions.session_options import Compute, SessionOptions
from freshet_serving.serving.serve_config import ServeConfig

# More have not been measured: workers, and sessions of one. On larger machines the helpers of all make use of the rest.
MOST_WORKERS, MOST_SESSIONS = 8, 8
# What a worker has of its own: Python, libraries, compiled kernels; and a queue for each, so its length does not tell.
WORKER_NBYTES = 128 << 20
PER_WORKER = {"max_queue_rows", "max_queue_ids"}
# The share of the memory that all workers may take, beside tables and what else runs there.
MEMORY_SHARE = 0.5
FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """The burden of the models that are there: what each process holds once more. dense_nbytes: of dense tensors.
    staged: a model with a stage that its own library runs, "" for none."""

    dense_nbytes: int = 0
    staged: str = ""

    @classmethod
    def of(cls, repository: str, models: list[str], mirror: str = "") -> ModelFootprint:
        """Of the newest version of each model, or of those named; what cannot be read is none."""
        dense_nbytes, staged = 0, ""
        with contextlib.suppress(FreshetError, OSError):
            there = open_repository(repository, mirror, serving=True)
            for name in models or there.models():
                with contextlib.suppress(FreshetError, OSError):
                    manifest = there.version(name).manifest
                    dense_nbytes += FLOAT_NBYTES * sum(math.prod(shape) for shape in manifest.dense.values())
                    staged = staged or (name if manifest.stage is not None else "")
        return cls(dense_nbytes, staged)


@dataclass(frozen=True, slots=True)
class Layout:
    """workers: processes that answer; 1: the one that was started does. sessions: of each, 0 for one a core. why: for
    people."""

    workers: int
    compute: Compute
    sessions: int
    why: str

    @classmethod
    def here(cls, config: ServeConfig) -> Layout:
        """The layout of a server with these options, on this machine and with the models that are there now."""
        footprint = (
            ModelFootprint() if config.workers else ModelFootprint.of(config.repository, config.models, config.mirror)
        )
        return cls.of(config, ResourceLimits.here(), footprint, linux=sys.platform == "linux")

    @classmethod
    def of(cls, config: ServeConfig, allowed: ResourceLimits, footprint: ModelFootprint, linux: bool) -> Layout:
        """The layout that was asked for, and where nothing was, the one that measured best. Pure."""
        workers, why = config.workers, "as asked"
        if not workers:
            workers, why = _count(config, allowed, footprint, linux)
        # A session's thread would only share a core with the event loop; but what waits must not stop the loop.
        alone = (workers > 1 or allowed.cores == 1) and config.sessions <= 1 and not (config.waiting or config.groups)
        if config.compute == "inline" or (config.compute == "auto" and alone):
            # One is the loop's, the others help where cores are spare.
            sessions = config.sessions or (min(allowed.cores, MOST_SESSIONS) if workers > 1 else 1)
            return cls(workers, "inline", sessions, why)
        return cls(workers, "threads", config.sessions or (1 if workers > 1 and not config.groups else 0), why)

    def session_options(self, config: ServeConfig) -> dict[str, Any]:
        """processor.sessions.session_options.SessionConfig's fields, JSON-able, of each process."""
        return {
            **{f.name: getattr(config, f.name) for f in fields(SessionOptions)},
            "sessions": self.sessions,
            "cpus": config.session_cpus,
            "compute": self.compute,
            "groups": config.groups,
        }

    @property
    def text(self) -> str:
        """The layout in words of the ready line."""
        return f"compute={self.compute} ({self.why})"


def _count(config: ServeConfig, allowed: ResourceLimits, footprint: ModelFootprint, linux: bool) -> tuple[int, str]:
    """The number of workers, and why."""
    if allowed.cores == 1:
        return 1, allowed.why
    if reason := _alone(config, footprint, linux):
        return 1, f"one process: {reason}"
    workers, why = min(allowed.cores, MOST_WORKERS), allowed.why
    if workers < allowed.cores:
        why += f", at most {MOST_WORKERS} workers"
    if allowed.memory_nbytes is not None:
        each = WORKER_NBYTES + footprint.dense_nbytes
        room = max(1, int(MEMORY_SHARE * allowed.memory_nbytes) // each)
        if room < workers:
            workers, why = room, f"{allowed.memory_nbytes >> 20} MiB of memory, {each >> 20} for each worker"
    return workers, why


def _alone(config: ServeConfig, footprint: ModelFootprint, linux: bool) -> str:
    """Why one process is to answer, "" for no reason."""
    given = [f.name for f in fields(SessionOptions) if getattr(config, f.name) != f.default]
    reasons = {
        "workers need Linux": not linux,
        "groups divide the cores of one": bool(config.groups),
        "session_cpus are those of one": bool(config.session_cpus),
        "shared_memory is registered with one": config.shared_memory == "on",
        "the row store is cached in each": config.remote() is not None,
        f"{footprint.staged} has a stage that each would load a library for": bool(footprint.staged),
        **{f"{name} is said of its sessions": True for name in given if name not in PER_WORKER},
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
