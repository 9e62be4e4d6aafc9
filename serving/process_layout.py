"""Choose the layout of a server: the number of processes, where they compute, on how many sessions, and the reason.

Measured with 1, 64 and 512 candidates, saturated and at light load (`make bench BENCH_ARGS="--only layouts"`): one
worker per core that computes inline is the best or nearly so, and is the default. A single process is chosen if several
would be refused, if each would hold something too large to hold twice, or if options for the sessions of one process
are set, which several would each apply to their own. Explicit options are never changed.
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
from freshet_serving.processor.sessions.session_options import Compute, ProcessOptions, SessionOptions
from freshet_serving.serving.serve_config import ServeConfig

# More workers, or sessions of one worker, have not been measured. On larger machines the helper threads of all workers
# use the other cores.
MOST_WORKERS, MOST_SESSIONS = 8, 8
# Memory of a worker's own: Python, libraries, compiled kernels. Each worker has a queue, so limits of its length
# (PER_WORKER) do not call for a single process.
WORKER_NBYTES = 128 << 20
PER_WORKER = {"max_queue_rows"}
# Share of the memory that all workers may take, besides tables and other processes.
MEMORY_SHARE = 0.5
FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """Memory that the models take in each process.

    Attributes:
        dense_nbytes: Bytes of dense tensors.
        staged: Name of a model with a stage that its own library runs; "" for none.
    """

    dense_nbytes: int = 0
    staged: str = ""

    @classmethod
    def of(cls, repository: str, models: list[str], mirror: str = "") -> ModelFootprint:
        """Return the footprint of the newest version of each model; what cannot be read counts as nothing.

        Args:
            models: The models to count; empty for all.
        """
        dense_nbytes, staged = 0, ""
        with contextlib.suppress(FreshetError, OSError):
            opened = open_repository(repository, mirror, serving=True)
            for name in models or opened.models():
                with contextlib.suppress(FreshetError, OSError):
                    manifest = opened.version(name).manifest
                    dense_nbytes += FLOAT_NBYTES * sum(math.prod(shape) for shape in manifest.dense.values())
                    staged = staged or (name if manifest.stage is not None else "")
        return cls(dense_nbytes, staged)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout.

    Attributes:
        workers: Number of processes that answer; with 1, the started process answers itself.
        sessions: Number of sessions of each process; 0 for one per core.
        why: The reason, for the log.
    """

    workers: int
    compute: Compute
    sessions: int
    why: str

    @classmethod
    def here(cls, config: ServeConfig) -> Layout:
        """Return the layout for these options, on this machine and with the models that exist now."""
        footprint = (
            ModelFootprint() if config.workers else ModelFootprint.of(config.repository, config.models, config.mirror)
        )
        return cls.of(config, ResourceLimits.here(), footprint, linux=sys.platform == "linux")

    @classmethod
    def of(cls, config: ServeConfig, allowed: ResourceLimits, footprint: ModelFootprint, linux: bool) -> Layout:
        """Return the layout that the options ask for; what they leave open is set to what measured best. Pure."""
        workers, why = config.workers, "as configured"
        if not workers:
            workers, why = _count(config, allowed, footprint, linux)
        # A session's thread would only share a core with the event loop. But a session that waits must not block the
        # loop.
        alone = (workers > 1 or allowed.cores == 1) and config.sessions <= 1 and not (config.waiting or config.groups)
        if config.compute == "inline" or (config.compute == "auto" and alone):
            # One session runs on the event loop, the others help if cores are idle.
            sessions = config.sessions or (min(allowed.cores, MOST_SESSIONS) if workers > 1 else 1)
            return cls(workers, "inline", sessions, why)
        return cls(workers, "threads", config.sessions or (1 if workers > 1 and not config.groups else 0), why)

    def session_options(self, config: ServeConfig) -> dict[str, Any]:
        """Return the fields of processor.sessions.session_options.SessionConfig for each process, JSON-compatible."""
        return {
            **{f.name: getattr(config, f.name) for f in fields(ProcessOptions)},
            "sessions": self.sessions,
            "compute": self.compute,
            "groups": config.groups,
        }

    @property
    def text(self) -> str:
        """The layout as the ready line shows it."""
        return f"compute={self.compute} ({self.why})"


def may_have_workers(config: ServeConfig) -> bool:
    """Return True if the layout may have several processes; nothing of the repository has been read yet."""
    return config.workers != 1 and sys.platform == "linux" and (config.workers > 1 or ResourceLimits.here().cores > 1)


def _count(config: ServeConfig, allowed: ResourceLimits, footprint: ModelFootprint, linux: bool) -> tuple[int, str]:
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
    """Return the reason why one process must answer; "" for none."""
    changed = [f.name for f in fields(SessionOptions) if getattr(config, f.name) != f.default]
    reasons = {
        "workers need Linux": not linux,
        "groups are set": bool(config.groups),
        "shared_memory is on": config.shared_memory == "on",
        "remote tables are set": config.remote() is not None,
        f"{footprint.staged} has a stage that loads a large library": bool(footprint.staged),
        **{f"{name} is set": True for name in changed if name not in PER_WORKER},
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
