"""A model that was trained on a Parquet table, published and rolled back, for whoever evaluates generations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.data.formats import DataConfig
from tests.models.training.streams import make_batch, make_config

ROWS = 400
CHANNELS = ["app", "web", "a.b<c>", ""]


def listed(column):
    return [part.tolist() for part in np.split(column.values, column.row_splits[1:-1])]


def texts(column):
    flat = [value.decode() for value in column.values.tolist()]
    return [flat[a:b] for a, b in zip(column.row_splits, column.row_splits[1:])]


def write_table(path, batch):
    """The rows of the mixed stream, and two columns that are no features."""
    c, rows = batch.columns, np.arange(len(batch))
    pq.write_table(
        pa.table(
            {
                "user": c["user"],
                "item": c["item"],
                "city": [value.decode() for value in c["city"].tolist()],
                "history": pa.array(listed(c["history"]), pa.list_(pa.int64())),
                "tags": pa.array(texts(c["tags"]), pa.list_(pa.string())),
                "words": pa.array(texts(c["words"]), pa.list_(pa.string())),
                "price": c["price"],
                "age": c["age"],
                "clicked": batch.label,
                "channel": [CHANNELS[n % 4] for n in rows],
                "hour": rows // 17 % 24,
            }
        ),
        path,
    )


@dataclass
class Evaluated:
    """A repository, the table that its model was trained on, and what the trainer scored at each generation."""

    repository: Path
    data: DataConfig
    rows: object
    scores: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    summary: object = None


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from dataclasses import replace

    from freshet_serving.models.training.loop import TrainingRun
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository
    from tests.models.training.streams import Notes
    from tests.models.training.trainers import CompiledOnce

    folder = tmp_path_factory.mktemp("evaluated")
    batch, notes = make_batch(ROWS), Notes()
    write_table(folder / "clicks.parquet", batch)
    data = DataConfig(str(folder / "clicks.parquet"), "parquet", "clicked")
    config = replace(
        make_config(folder / "repository", full_rows=256, delta_rows=48),
        data=data,
        evaluate=EvaluateConfig(("channel", "hour", "city"), "user"),
    )
    made = Evaluated(folder / "repository", data, batch, notes=notes.notes)
    with pytest.MonkeyPatch.context() as patch:
        # One size of batch is enough: what is evaluated are generations.
        compiled = CompiledOnce(tmp_path_factory.mktemp("compiled"))
        patch.setattr("freshet_serving.compiler.building.packaging.compile_graph", compiled.compile_graph)
        run = TrainingRun(config, reporter=notes)
        for generation in itertools.chain((run.full() for _ in range(1)), run.stream()):
            made.scores[generation] = run.trainer.score(batch.columns)
            if generation.step == 2:
                ChangeLog.of(Repository(made.repository).version("mixed")).rollback(1)
        made.summary = run.run()
    return made
