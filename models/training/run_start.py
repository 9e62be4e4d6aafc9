"""Find the state that a training run starts from: its checkpoint, a version without a checkpoint, or nothing.

Finding it changes nothing. The result has all that a trainer is made of; models.training.loop applies the weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freshet_serving.models.config.train_config import StartOptions, TrainConfig
from freshet_serving.models.data.source import Source
from freshet_serving.models.streams.open_rows import trainer_folder
from freshet_serving.models.training.checkpoint import Checkpoints, RunState
from freshet_serving.models.training.defaults import kept
from freshet_serving.models.training.fingerprint import fingerprint, settings
from freshet_serving.models.training.full_versions import FullVersions
from freshet_serving.models.training.repeated_run import RepeatedRun
from freshet_serving.models.training.resolved_config import hash_seeds_of, resume_config, scaling_of, start_config
from freshet_serving.models.training.spec import HashSeeds, Scaling
from freshet_serving.processor.repository import CANDIDATES, VersionContents, is_address


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start: the configuration, filled in, and what draft() takes."""

    config: TrainConfig
    scaling: Scaling
    hash_seeds: HashSeeds

    def state(self) -> RunState:
        config = self.config
        return RunState(
            fingerprint(config),
            self.scaling,
            settings=settings(config),
            train=kept(config.train),
            hash_seeds=self.hash_seeds,
        )


@dataclass(frozen=True, slots=True)
class FreshStart(RunStart):
    """No state to continue: new weights, rows from the first on; log_odds of a run to repeat, [] to measure them."""

    log_odds: list[float] = field(default_factory=list)

    def state(self) -> RunState:
        return replace(RunStart.state(self), log_odds=self.log_odds)


@dataclass(frozen=True, slots=True)
class ResumedStart(RunStart):
    """A checkpoint: its weights, configuration, and rows from its position on."""


@dataclass(frozen=True, slots=True)
class ContinuedStart(RunStart):
    """A version without a checkpoint: its weights, configuration, and rows from a position on.

    Position, data and histories are those of a withdrawn version's checkpoint, if there is one.
    """

    old: VersionContents
    position: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    histories: dict[str, str] = field(default_factory=dict)

    def state(self) -> RunState:
        return replace(RunStart.state(self), position=self.position, data=self.data, histories=self.histories)


def find_start(
    config: TrainConfig,
    source: Source,
    beginning: StartOptions,
    checkpoints: Checkpoints,
    versions: FullVersions,
    rows: int | None,
    note: Callable[[str], None],
) -> RunStart:
    """Find the state that a run starts from; raise BadInput if the configuration cannot continue it.

    `rows` are those of the full version, None for endless data; note() gets lines about choices.
    """
    old, position, data, histories = None, 0, dict[str, Any](), dict[str, str]()
    if not beginning.from_scratch:
        saved = checkpoints.newest()
        if versions.was_refused(saved, beginning.new_version):
            saved = None
        why = versions.barred(saved.version) if saved is not None and saved.version else ""
        if saved is not None and not why:
            resolved = resume_config(config, saved, rows, _shown(checkpoints.folder, config))
            return ResumedStart(resolved, saved.scaling, saved.hash_seeds)
        old = versions.newest() if beginning.new_version or why else None
        if saved is not None and old is not None:
            # Servers went back: continue from the weights they serve, and skip what the version had read.
            position, data = saved.version_row if beginning.replay else saved.position, saved.data
            histories = saved.histories
            note(f"version {saved.version} is {why}: not continuing from its checkpoint")
    if beginning.repeat is not None and old is None:
        repeated = RepeatedRun(beginning.repeat).state
        resolved = resume_config(config, repeated, rows, "")
        return FreshStart(resolved, repeated.scaling, repeated.hash_seeds, repeated.log_odds)
    version = old.base.manifest if old is not None else None
    resolved = start_config(config, source, version, rows, note)
    scaling, hash_seeds = scaling_of(resolved, source, version), hash_seeds_of(resolved, version)
    if old is not None:
        return ContinuedStart(resolved, scaling, hash_seeds, old, position, data, histories)
    return FreshStart(resolved, scaling, hash_seeds)


def make_folders(config: TrainConfig) -> Path:
    """Create the folders of a run, remove leftovers of a killed one, and return the trainer's folder."""
    trainer_dir = trainer_folder(config)
    trainer_dir.mkdir(parents=True, exist_ok=True)
    if not is_address(repository := config.publish.repository):
        Path(repository).mkdir(parents=True, exist_ok=True)
        for folder in (Path(repository, config.model.name), Path(repository, config.model.name, CANDIDATES)):
            for unfinished in folder.glob(".*.tmp"):
                # Not a file: the run's own heartbeat or a server may be writing it.
                if unfinished.is_dir() and not unfinished.is_symlink():
                    shutil.rmtree(unfinished, ignore_errors=True)
    return trainer_dir


def _shown(folder: Path, config: TrainConfig) -> str:
    """Return a checkpoint folder as messages name it."""
    trainer_dir = trainer_folder(config)
    return folder.relative_to(trainer_dir).as_posix() if folder.is_relative_to(trainer_dir) else folder.name
