"""Find the trainers of a repository's models, and have them watched from their first report on.

Most servers have none, or none any more: what reads reports (processor.versions.trainer_watch) is loaded once there is
one, and then every report is read as often as the files are looked at.

Invariants
- poll() is called by one thread; standings() by any.

Costs: a stat of a file for each model each LOOK_S.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from freshet_serving.processor.repository import TRAINER, Repository

if TYPE_CHECKING:
    from freshet_serving.processor.versions.trainer_watch import TrainerStanding, TrainerWatch

LOOK_S = 1.0


class Trainers:
    """The trainers of one repository."""

    def __init__(self, repository: Repository, now_s: Callable[[], float]) -> None:
        """Look at nothing yet.

        Args:
            repository: The repository.
            now_s: Clock for seconds.
        """
        self._repository, self._now_s = repository, now_s
        self._watch: TrainerWatch | None = None
        self._next_s = -1e9

    def poll(self, models: Collection[str]) -> list[str]:
        """Return a line for each trainer that ended, failed or fell silent (TrainerWatch.poll), once each LOOK_S.

        Args:
            models: Names of the models to watch; the others are forgotten.
        """
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_S
        root = self._repository.root
        if self._watch is None and any(os.path.lexists(root / model / TRAINER) for model in models):
            from freshet_serving.processor.versions.trainer_watch import TrainerWatch

            self._watch = TrainerWatch(self._repository, self._now_s)
        return [] if self._watch is None else self._watch.poll(models)

    def standings(self) -> Mapping[str, TrainerStanding]:
        """Return the standing of each model's trainer that has reported, by name of the model. Thread-safe."""
        watch = self._watch
        return {} if watch is None else watch.standings()
