"""Find the state that a training run starts from: its checkpoint, a version without a checkpoint, or nothing.

Finding it changes nothing. The result has everything that a trainer is made of: the complete configuration, the scaling
of float features and the seeds of tables of strings. models.training.loop applies the weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.models.config.train_config import StartOptions, TrainConfig
from freshet_serving.models.data.source import Source
from freshet_serving.models.streams.open_rows import trainer_folder
from freshet_serving.models.training.checkpoint import Checkpoints, RunState
from freshet_serving.models.training.defaults import kept
from freshet_serving.models.training.fingerprint import fingerprint, settings
from freshet_serving.models.training.resolved_config import hash_seeds_of, resume_config, scaling_of, start_config
from freshet_serving.models.training.spec import HashSeeds, Scaling
from freshet_serving.processor.repository import CANDIDATES, VersionContents, is_address


@dataclass(frozen=True, slots=True)
class RunStart:
    """The state found.

    Attributes:
        config: The configuration, filled in.
        scaling: Scaling of float features.
        hash_seeds: Seeds of tables of strings.
    """

    config: TrainConfig
    scaling: Scaling
    hash_seeds: HashSeeds

    def state(self) -> RunState:
        """Return the state of a run that has read nothing."""
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
    """No state to continue: new weights, and rows from the first on."""


@dataclass(frozen=True, slots=True)
class ResumedStart(RunStart):
    """A checkpoint: its weights, and rows from its position on.

    The configuration is filled in as the checkpoint has it.
    """


@dataclass(frozen=True, slots=True)
class ContinuedStart(RunStart):
    """A version without a checkpoint: its weights, and rows from the first on.

    The configuration is filled in as the version has it.

    Attributes:
        old: Contents of the version.
    """

    old: VersionContents


def find_start(
    config: TrainConfig,
    source: Source,
    beginning: StartOptions,
    checkpoints: Checkpoints,
    newest: Callable[[], VersionContents | None],
    rows: int | None,
    note: Callable[[str], None],
    refused: bool = False,
) -> RunStart:
    """Find the state that a run starts from.

    Args:
        config: The configuration of the file.
        source: The rows; some are read if a setting is chosen by them.
        beginning: Options of the command.
        checkpoints: The run's checkpoints.
        newest: Returns the contents of the repository's newest version; None if there is none.
        rows: Rows of the full version; None if they have no end.
        note: Receives lines about what was chosen by the rows.
        refused: True if the gate has refused the version of the checkpoints, so that none is continued.

    Returns:
        A FreshStart, a ResumedStart or a ContinuedStart.

    Raises:
        BadInput: The configuration cannot continue the existing state; one line lists the changes.
    """
    old = None
    if not beginning.from_scratch:
        if not refused and (saved := checkpoints.newest()) is not None:
            whole = resume_config(config, saved, rows, _shown(checkpoints.folder, config))
            return ResumedStart(whole, saved.scaling, saved.hash_seeds)
        old = newest() if beginning.new_version else None
    version = old.base.manifest if old is not None else None
    whole = start_config(config, source, version, rows, note)
    scaling, hash_seeds = scaling_of(whole, source, version), hash_seeds_of(whole, version)
    if old is not None:
        return ContinuedStart(whole, scaling, hash_seeds, old)
    return FreshStart(whole, scaling, hash_seeds)


def make_folders(config: TrainConfig) -> Path:
    """Create the folders that a run writes to, remove leftovers of a killed run, and return the trainer's folder."""
    own = trainer_folder(config)
    own.mkdir(parents=True, exist_ok=True)
    if not is_address(repository := config.publish.repository):
        Path(repository).mkdir(parents=True, exist_ok=True)
        for folder in (Path(repository, config.model.name), Path(repository, config.model.name, CANDIDATES)):
            for unfinished in folder.glob(".*.tmp"):
                shutil.rmtree(unfinished)
    return own


def _shown(folder: Path, config: TrainConfig) -> str:
    """Return a folder of checkpoints as messages name it."""
    own = trainer_folder(config)
    return folder.relative_to(own).as_posix() if folder.is_relative_to(own) else folder.name
