"""Collect all metrics of scored rows for each label: AUC, grouped AUC, log-loss, calibration, slices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.evaluate_section import TOP
from freshet_serving.models.evaluation.calibration import expected_calibration_error
from freshet_serving.models.evaluation.counting_baselines import CountingBaselines
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.evaluation.ranking import RankingResult
from freshet_serving.models.evaluation.slices import GroupedAuc, GroupedAucResult, Slice, Slices, row_metrics
from freshet_serving.processor.columns import Column

Line = dict[str, Any]


class LabelMetrics:
    """The metrics of one label: all scored rows, and metrics by value for each sliced column."""

    def __init__(self, by: Sequence[str], group: str, top: int = TOP) -> None:
        """Create empty metrics, by value of the columns `by` and within groups of a column; "" for none."""
        self.scored = ScoredRows()
        self.slices = {name: Slices() for name in by}
        self._group, self._grouped, self._top = group, GroupedAuc(), top

    def add(
        self,
        columns: Mapping[str, Column],
        labels: NDArray[np.float32],
        scores: NDArray[np.float32],
        weights: NDArray[np.float32] | None,
    ) -> None:
        self.scored.add(labels, scores, weights)
        for name, slices in self.slices.items():
            slices.add(columns[name], labels, scores, weights)
        if self._group:
            self._grouped.add(columns[self._group], labels, scores, weights)

    def grouped(self) -> GroupedAucResult | None:
        return self._grouped.result() if self._group else None

    def ranking(self) -> RankingResult:
        return self._grouped.ranking(self._top)

    def sliced(self) -> Iterator[tuple[str, Slice]]:
        for name, slices in self.slices.items():
            yield from ((name, line) for line in slices.lines())


class EvaluationMetrics:
    """The metrics of rows, added batch by batch; the first label is the main one."""

    def __init__(
        self,
        labels: Sequence[str],
        by: Sequence[str] = (),
        group: str = "",
        top: int = TOP,
        baselines: CountingBaselines | None = None,
    ) -> None:
        self.group, self.top, self.baselines = group, top, baselines
        self.labels = {name: LabelMetrics(by, group, top) for name in labels}

    @property
    def main(self) -> LabelMetrics:
        return next(iter(self.labels.values()))

    def add(
        self,
        columns: Mapping[str, Column],
        labels: NDArray[np.float32],
        scores: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Add n scored rows: labels and scores [n] or [n, labels], and at least the columns of slices and group."""
        for i, each in enumerate(self.labels.values()):
            single = labels.ndim == 1
            each.add(columns, labels if single else labels[:, i], scores if single else scores[:, i], weights)

    def __len__(self) -> int:
        return len(self.main.scored)

    def lines(self) -> Iterator[Line]:
        """Yield flat JSON-able objects: what = 'all', 'baseline', 'decile' or 'slice'; missing figures are None."""
        for label, each in self.labels.items():
            scored, parts = each.scored, each.scored.deciles()
            whole = row_metrics(scored.tally.counts())
            line = {
                "what": "all",
                "label": label,
                **(asdict(whole[0]) if whole else {"rows": 0}),
                "auc_error": scored.auc_error(),
                "calibration_error": expected_calibration_error(parts),
                "not_scored": scored.tally.lost,
            }
            if (grouped := each.grouped()) is not None:
                line |= {"group": self.group}
                line |= {f"grouped_{key}": value for key, value in asdict(grouped).items()}
                ranked = each.ranking()
                line |= {"top": self.top, "hit_rate": ranked.hit_rate, "ndcg": ranked.ndcg, "ranked": ranked.groups}
            yield _json_able(line)
            if self.baselines is not None and each is self.main:
                yield from map(_json_able, self.baselines.lines(label))
            for part in parts:
                yield _json_able({"what": "decile", "label": label, **asdict(part)})
            for name, part_of in each.sliced():
                about = {"what": "slice", "label": label, "by": name, "value": part_of.value, "others": part_of.others}
                yield _json_able(about | asdict(part_of.metrics))


def _json_able(line: Line) -> Line:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
