"""Train the sample that `freshet serve --sample` serves: python -m generators.sample.

A small DeepFM on the click stream of `freshet demo`, published once and then as a delta for every DELTA_ROWS clicks.
The files of the version and of its deltas become serving/sample/sample.zip; request.json beside it has a request and
its scores by the full version and by the last delta, which a test compares.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.data.synthetic import SyntheticSource, default_features
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.serving.commands.demo import as_json
from freshet_serving.serving.sample.replay import MODEL, REQUEST, SAMPLE, VERSION

FULL_ROWS, DELTA_ROWS, DELTAS = 60_000, 20, 240
DIM, HIDDEN = 4, [16, 8]
CANDIDATES = 3
TIME = (1980, 1, 1, 0, 0, 0)
"""Of all members: the archive is the same whenever it is made."""


def main() -> None:
    source = SyntheticSource(seed=7, rows=FULL_ROWS + DELTA_ROWS * DELTAS, users=800, items=300, drift_rows=40_000)
    features = {
        name: section | ({"dim": DIM} if "dim" in section else {}) for name, section in default_features().items()
    }
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        config = parse_config(
            {
                "model": {"name": MODEL, "hidden": HIDDEN},
                "data": {"path": "synthetic", "label": "label", "format": "parquet"},
                "train": {"batch_rows": DELTA_ROWS, "seed": 7},
                "publish": {
                    "repository": str(repository), "full_rows": FULL_ROWS, "delta_rows": DELTA_ROWS,
                    "snapshot_after": 0, "table_dtype": "float16",
                },
                "features": features,
            }
        )  # fmt: skip
        run = TrainingRun(config, source)
        run.full()
        inputs = request(next(iter(source.batches(100, FULL_ROWS))))
        first = scores(repository, inputs)
        for _ in run.stream():
            pass
        last = scores(repository, inputs)
        pack(repository / MODEL / str(VERSION))
    document = {"model": MODEL, "body": {"inputs": inputs}, "scores": {"first": first, "last": last}}
    REQUEST.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{SAMPLE.stat().st_size >> 10} KiB; held-out AUC {run.held_out.auc():.4f}; scores {first} -> {last}")


def request(candidates: Batch) -> dict[str, list[Any]]:
    """Return the inputs of a request: a user, an hour, and the first items with at most two tags, each once."""
    columns = {name: as_json(column) for name, column in candidates.columns.items()}
    columns["price"] = [round(price, 2) for price in columns["price"]]
    rows = {item: row for row, item in reversed(list(enumerate(columns["item_id"]))) if len(columns["tags"][row]) <= 2}
    first = sorted(rows.values())[:CANDIDATES]
    inputs = {name: [values[row] for row in first] for name, values in columns.items()}
    return inputs | {name: inputs[name][:1] for name in ("user_id", "hour")}


def scores(repository: Path, inputs: dict[str, list[Any]]) -> list[float]:
    """Return the scores of a request by what a repository has now."""
    columns: dict[str, Any] = {
        "category": Strings.of(inputs["category"]),
        "tags": Ragged.of(inputs["tags"]),
        "price": np.array(inputs["price"], np.float32),
    }
    columns |= {name: np.array(inputs[name], np.int64) for name in ("user_id", "item_id", "hour")}
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        reply = processor.process(PredictRequest(MODEL, columns))
    return [round(score, 6) for score in reply.outputs["score"].ravel().tolist()]


def pack(version: Path) -> None:
    with zipfile.ZipFile(SAMPLE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in version.rglob("*") if path.is_file()):
            member = zipfile.ZipInfo(path.relative_to(version).as_posix(), TIME)
            member.external_attr = 0o644 << 16
            archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
