"""Measure how well a stream's rows are scored before training on them, compared with the version as published."""

from __future__ import annotations

from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.training.full_versions import FullVersions
from freshet_serving.models.training.published_baseline import PublishedBaseline
from freshet_serving.models.training.trainer import BoundBatch, Trainer
from freshet_serving.models.training.window_guard import Floats


class StreamQuality:
    """Stream quality of one run: of all rows, and of a sample since the newest version, also as that was published."""

    def __init__(self, versions: FullVersions, trainer: Trainer) -> None:
        self._versions, self._trainer = versions, trainer
        self.streamed, self.sampled, self.published_baseline = ScoredRows(), ScoredRows(), ScoredRows()
        self._frozen: PublishedBaseline | None = None

    def add(self, work: BoundBatch, fresh: Floats, version: int, sampled: bool) -> None:
        """Add a batch with its scores from before training on it; if `sampled`, score it by `version` as published."""
        batch = work.batch
        self.streamed.add(batch.label, fresh, batch.weight)
        if sampled:
            if self._frozen is None or self._frozen.version != version:
                self.sampled, self.published_baseline = ScoredRows(), ScoredRows()
                self._frozen = PublishedBaseline(self._versions.published(version), self._trainer.dense)
            self.sampled.add(batch.label, fresh, batch.weight)
            self.published_baseline.add(batch.label, self._frozen.score(batch.columns), batch.weight)

    def summary(self, version: int) -> str:
        line = metrics_line("streamed, scored before training", self.streamed)
        frozen = f"version {version} as published: AUC {self.published_baseline.auc():.4f}"
        if len(self.sampled) == len(self.streamed):
            return f"{line}; {frozen}"
        return (
            f"{line}; {frozen} over {len(self.sampled)} of them, where the updated model has {self.sampled.auc():.4f}"
        )


def metrics_line(what: str, scored: ScoredRows) -> str:
    return f"{what}: AUC {scored.auc():.4f}, log-loss {scored.log_loss():.4f} over {len(scored)} rows"
