"""Early stopping: the held-out tail is scored after each epoch and not learned; the best epoch's weights are kept.

Invariants
- The best epoch's weights are a checkpoint of the run's own, and stay restorable until the run is over with epochs.
- Judging an epoch is one commit: the checkpoint that has the score has what follows from it, the next epoch to begin or
  the weights to go on with. A kill before it judges the same epoch again, to the same score.
- Going back goes back whole: rows, network, optimizers and the count of steps, and with it the learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.checkpoint import Checkpoints, RunState
from freshet_serving.models.training.trainer import Trainer


def best_epoch(scores: Sequence[float]) -> int:
    """The first of the best; the last where all are NaN, so that there is nothing to choose by. Higher is better."""
    known = [score for score in scores if not math.isnan(score)]
    return scores.index(max(known)) if known else len(scores) - 1


class EarlyStopping:
    """Of one run."""

    def __init__(self, settings: TrainSettings, trainer: Trainer, checkpoints: Checkpoints) -> None:
        self._settings, self._trainer, self._checkpoints = settings, trainer, checkpoints

    def wanted(self, now: RunState) -> list[int]:
        """The number of the checkpoint that has to stay."""
        if not now.epoch_scores:
            return []
        epochs = best_epoch(now.epoch_scores) + 1
        return [
            number
            for number, state in self._checkpoints.states()
            if (state.epoch, state.position, len(state.epoch_scores)) == (epochs, 0, epochs)
        ]

    def judge(self, state: RunState, auc: float, log_loss: float, position: int) -> str:
        """Takes the scores of an epoch that has ended, and moves the run's state to what follows; position: of the row
        after the last epoch. Returns one line about it."""
        settings = self._settings
        # Another list: states that were saved share this one.
        state.epoch_scores = [*state.epoch_scores, auc if settings.stop_by == "auc" else -log_loss]
        best, ended = best_epoch(state.epoch_scores), len(state.epoch_scores) - 1
        told = f"epoch {ended + 1}: held out AUC {auc:.4f}, log-loss {log_loss:.4f}"
        over = ended + 1 == settings.epochs or ended - best >= settings.patience
        if over and best != ended:
            self._checkpoints.restore(self._trainer, self.wanted(state)[0])
            told += f"; ends here with the weights of epoch {best + 1}"
        state.epoch, state.position = (settings.epochs, position) if over else (ended + 1, 0)
        if over or best == ended:
            self._checkpoints.save_full(self._trainer, state)
        return told
