"""Summarise a training run: its result, and lines about it for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.quality import ScoredRows, next_step
from freshet_serving.models.training.stream_quality import metrics_line
from freshet_serving.processor.generation import Generation


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run.

    Attributes:
        rows: Number of rows read.
        held_out: Scores of the full version's held-out rows.
        streamed: Scores of the streamed rows before training on them.
        report: File of the run's report, if there is one.
    """

    generation: Generation
    rows: int
    held_out: ScoredRows
    streamed: ScoredRows
    report: Path | None = None


def held_out_lines(measured: EvaluationMetrics, steps: int, named: Sequence[str]) -> Iterator[str]:
    """Yield lines about the held-out rows: figures by label, what counting reaches, and advice."""
    main, baselines = measured.main.scored, measured.baselines
    for label, each in measured.labels.items():
        which = "" if each.scored is main else f", {label}"
        yield metrics_line(f"held out{which}", each.scored)
    lines = [] if baselines is None else [baselines.line(), baselines.advice(main.auc())]
    yield from filter(None, [*lines, next_step(main, steps, named)])
