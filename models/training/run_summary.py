"""Summarise a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.runs.step_profile import StageTime
from freshet_serving.processor.generation import Generation


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run.

    Attributes:
        generation: The last generation.
        rows: Number of rows read.
        held_out: Scores of the full version's held-out rows.
        streamed: Scores of the streamed rows before training on them.
        report: File of the run's report, if there is one.
        stage_times: Time by stage of a step.
    """

    generation: Generation
    rows: int
    held_out: ScoredRows
    streamed: ScoredRows
    report: Path | None = None
    stage_times: dict[str, StageTime] = field(default_factory=dict)
