"""The cost of smaller rows on real data: one DeepFM on MovieLens-1M, its tables in each type, scored by the engine.

The first 80 % of the events train it; the rest, whose times and labels are exact, is scored by a processor over each
export. Reported against float32: bytes of the tables' rows, the largest difference of a score, the change of the AUC.

    python -m loadtest.bench.dtypes FOLDER [--rows N]      FOLDER: MovieLens-1M (docs/reference/data.md)
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import publish_version
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.tensors import ROW_TYPES

TRAINED = 0.8
SCORED_ROWS = 4096
ROWS = 1_000_093


def measure(folder: Path, rows: int = ROWS) -> dict[str, dict[str, float]]:
    """By row type: nbytes of the rows, memory and AUC as they are and against float32, the largest score difference.

    rows: events to learn from and to score, in order of time.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-dtypes-") as scratch:
        repository = Path(scratch) / "float32"
        run = TrainingRun(_config(folder, repository, round(rows * TRAINED)))
        run.full()
        scores, labels = {}, np.empty(0, np.float32)
        report: dict[str, dict[str, float]] = {}
        for dtype in ROW_TYPES:
            where = Path(scratch) / f"as-{dtype}"
            _publish(run, where, dtype)
            with Processor.initialize(ProcessorConfig(str(where), sessions=1)) as processor:
                scores[dtype], labels = _score(processor, run, rows)
                nbytes = processor.host.catalogue["movies"].pick().memory()["rows"]
            area = auc(labels, scores[dtype])
            whole = report.get("float32", {"nbytes": nbytes, "auc": area})
            report[dtype] = {
                "nbytes": nbytes,
                "memory": nbytes / whole["nbytes"],
                "score_error": float(np.abs(scores[dtype] - scores["float32"]).max()),
                "auc": area,
                "auc_change": area - whole["auc"],
            }
        return report


def _config(folder: Path, repository: Path, full_rows: int) -> TrainConfig:
    return parse_config(
        {
            "model": {"name": "movies"},
            "data": {"path": str(folder), "format": "movielens"},
            "publish": {"repository": str(repository), "full_rows": full_rows},
            "train": {"holdout": 0.0},
        }
    )


def _publish(run: TrainingRun, repository: Path, dtype: str) -> None:
    """The run's state as version 1 of a repository of its own, every table as `dtype`."""
    trainer = run.trainer
    draft = replace(trainer.manifest, tables=[replace(t, dtype=dtype) for t in trainer.manifest.tables])
    exports = {name: table.export() for name, table in trainer.tables.items()}
    repository.mkdir(parents=True)
    graph = replace(trainer.dense.graph, weights=trainer.dense.weights())
    publish_version(repository, draft, {n: (e.keys, e.rows) for n, e in exports.items()}, graph)


def _score(processor: Processor, run: TrainingRun, rows: int) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = [], []
    for batch in run.source.batches(SCORED_ROWS, run.state.position):
        if batch.start >= rows:
            break
        batch = batch.slice(0, min(len(batch), rows - batch.start))
        scores.append(processor.process(PredictRequest("movies", batch.columns)).outputs["score"][:, 0].copy())
        labels.append(batch.label)
    return np.concatenate(scores), np.concatenate(labels)


def told_of(measured: dict[str, dict[str, float]]) -> dict[str, str]:
    """measure()'s result as figures by name."""
    found = {"AUC, rows as float32": f"{measured['float32']['auc']:.5f}"}
    for dtype, r in measured.items():
        if dtype != "float32":
            found[f"rows as {dtype}: memory over float32's"] = f"{r['memory']:.2f}"
            found[f"rows as {dtype}: largest score difference"] = f"{r['score_error']:.1e}"
            found[f"rows as {dtype}: AUC change"] = f"{r['auc_change']:+.6f}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.dtypes", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS, help="events to use, in order of time")
    arguments = parser.parse_args()
    for what, figure in told_of(measure(arguments.folder, arguments.rows)).items():
        print(f"{what}: {figure}")


if __name__ == "__main__":
    main()
