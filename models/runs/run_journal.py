"""Append-only log of a training run, and the report made of it.

    config.json     the configuration as it was read, with defaults filled in
    metrics.jsonl   one JSON object a line: what = progress | epoch | published | all | decile | slice
    report.html     curves and tables of them, rewritten now and then and at the end
    events.*        the same curves for TensorBoard

Costs: a batch costs a few additions and one reading of the clock. Progress is written at most once a second and once in
1/LINES of the run's time, so that an endless stream gives a few thousand lines; the report once in REPORT_S seconds or
a hundredth of the run's time. Nothing here can end a run (models.runs.run_folder).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.runs.run_folder import RunFolder
from freshet_serving.models.runs.run_report import report_html
from freshet_serving.models.runs.tensorboard_log import TensorBoardLog

LINE_S, LINES = 1.0, 500
REPORT_S, REPORTS = 60.0, 100
SHOWN: tuple[str, ...] = ("loss", "auc", "log_loss", "rows_per_s", "dense_learning_rate")

Line = dict[str, Any]


class RunJournal:
    """Append-only log of a run. Creates its folder on first write."""

    def __init__(
        self,
        parent: Path,
        title: str,
        config: Mapping[str, Any],
        progress: Callable[[], Line],
        note: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log; nothing is written yet.

        Args:
            parent: Folder of the folders of this model's runs.
            config: The configuration, JSON-able.
            progress: Returns the run's state for a line of progress: step, epoch, position, learning_rates and
                table_rows by table, dense_learning_rate.
            note: Called once if the folder cannot be written.
        """
        unix_s = time.time()
        self._title = f"{title}, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(unix_s))} UTC"
        self._folder = RunFolder(parent, unix_s, note)
        self._config, self._progress_line, self._now_s = config, progress, now_s
        self._board: TensorBoardLog | None = None
        # A run may publish without end: keep only the first and the last generation.
        self._lines, self._generations = list[Line](), list[str]()
        self._published = 0
        self._began_s = self._written_s = self._reported_s = now_s()
        self._rows = self._new_rows = 0
        self._new_loss, self._window = 0.0, ScoredRows()

    def learned(self, rows: int, loss: float) -> None:
        """Record a learned batch and its mean loss before it was learned."""
        self._new_rows += rows
        self._new_loss += rows * loss
        now_s = self._now_s()
        if now_s - self._written_s >= max(LINE_S, (now_s - self._began_s) / LINES):
            self._write_progress(now_s)
            if now_s - self._reported_s >= max(REPORT_S, (now_s - self._began_s) / REPORTS):
                self.report()

    def scored(
        self, labels: NDArray[np.float32], scores: NDArray[np.float32], weights: NDArray[np.float32] | None
    ) -> None:
        self._window.add(labels, scores, weights)

    def published(self, generation: str) -> None:
        self._published += 1
        self._generations = [*self._generations[:1], generation]
        self._write({"what": "published", "generation": generation, "rows": self._rows + self._new_rows})

    def epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Record the metrics of the held-out rows, by name, after an epoch, counted from 1."""
        self._add({"what": "epoch", "epoch": epoch, **figures})

    def measured(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._add(line)

    def report(self) -> Path | None:
        """Write the report of everything so far; return its path, or None if it is empty or cannot be written."""
        if self._new_rows:
            self._write_progress(self._now_s())
        self._reported_s = self._now_s()
        if not self._lines:
            return None
        published = " to ".join(self._generations) + (f", {self._published:,} of them" if self._published > 1 else "")
        return self._folder.write("report.html", report_html(self._title, self._lines, published, self._config))

    def _write_progress(self, now_s: float) -> None:
        self._rows += self._new_rows
        line = {
            "what": "progress",
            "rows": self._rows,
            "seconds": max(1e-3, now_s - self._began_s),
            "rows_per_s": self._new_rows / max(1e-3, now_s - self._written_s),
            "loss": self._new_loss / self._new_rows,
            **self._progress_line(),
        }
        if len(self._window):
            line |= {"auc": self._window.auc(), "log_loss": self._window.log_loss()}
        self._written_s, self._new_rows, self._new_loss, self._window = now_s, 0, 0.0, ScoredRows()
        self._add(line)
        self._folder.attempt(lambda folder: self._show(folder, line))

    def _add(self, line: Line) -> None:
        self._lines.append({key: _finite(value) for key, value in line.items()})
        self._write(self._lines[-1])

    def _write(self, line: Line) -> None:
        if self._folder.path is None:
            self._folder.write("config.json", json.dumps(self._config, indent=1))
        self._folder.append("metrics.jsonl", json.dumps({"unix_s": round(time.time(), 3), **line}) + "\n")

    def _show(self, folder: Path, line: Line) -> None:
        if self._board is None:
            self._board = TensorBoardLog(folder)
        values: dict[str, float] = {key: line[key] for key in SHOWN if key in line}
        for key in ("learning_rates", "table_rows"):
            values |= {f"{key}/{table}": value for table, value in line[key].items()}
        self._board.write(line["step"], values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
