"""Stop training early by the held-out tail, which is scored after each epoch, and keep the best epoch's weights.

Invariants
- The held-out tail is not trained on during the epochs.
- The best epoch's weights are a checkpoint, which stays restorable until the epochs are over.
- Judging an epoch is one commit: the checkpoint with the score also has the consequence, the next epoch or the weights
  to continue with. After a kill before it, the epoch is judged again, with the same score.
- Going back restores everything: rows, network, optimizers and the step count, and so the learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.training.checkpoint import Checkpoints, RunState
from freshet_serving.models.training.trainer import BoundBatch, Trainer


def best_epoch(scores: Sequence[float]) -> int:
    """Return the index of the first best score, or the last one if all are NaN."""
    comparable = [score for score in scores if not math.isnan(score)]
    return scores.index(max(comparable)) if comparable else len(scores) - 1


class EpochQuality(NamedTuple):
    """Quality of the held-out rows after an epoch; `score` compares epochs, higher is better."""

    figures: dict[str, float]
    score: float
    told: str


def scored_quality(trainer: Trainer, works: Iterable[BoundBatch], stop_by: str) -> EpochQuality:
    """Score rows without training on them; `stop_by` names the metric that is the score."""
    scored = ScoredRows()
    for work in works:
        scored.add(work.batch.label, trainer.score(work), work.batch.weight)
    auc, log_loss = scored.auc(), scored.log_loss()
    told = f"AUC {auc:.4f}, log-loss {log_loss:.4f}"
    return EpochQuality({"auc": auc, "log_loss": log_loss}, auc if stop_by == "auc" else -log_loss, told)


class EarlyStopping:
    """Early stopping of one run."""

    def __init__(self, settings: TrainSettings, trainer: Trainer, checkpoints: Checkpoints) -> None:
        self._settings, self._trainer, self._checkpoints = settings, trainer, checkpoints

    def wanted(self, now: RunState) -> list[int]:
        """Return the number of the checkpoint to keep, if any."""
        if not now.epoch_scores:
            return []
        epochs = best_epoch(now.epoch_scores) + 1
        return [
            number
            for number, state in self._checkpoints.states()
            if (state.epoch, state.position, len(state.epoch_scores)) == (epochs, 0, epochs)
        ]

    def judge(self, state: RunState, quality: EpochQuality, position: int) -> str:
        """Record a finished epoch's score, move the run's state to what follows, and return one line about it."""
        settings = self._settings
        # A new list, because saved states share the old one.
        state.epoch_scores = [*state.epoch_scores, quality.score]
        best, ended = best_epoch(state.epoch_scores), len(state.epoch_scores) - 1
        line = f"epoch {ended + 1}: held out {quality.told}"
        over = ended + 1 == settings.epochs or ended - best >= settings.patience
        if over and best != ended:
            self._checkpoints.restore(self._trainer, self.wanted(state)[0])
            line += f"; stopping with the weights of epoch {best + 1}"
        state.epoch, state.position = (settings.epochs, position) if over else (ended + 1, 0)
        if over or best == ended:
            self._checkpoints.save_full(self._trainer, state)
        return line
