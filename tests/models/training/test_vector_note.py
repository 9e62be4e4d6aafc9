"""A trained network of two towers ranks its items: the best of all are those that score best as candidates."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.section import NOTE

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ITEMS, EVENTS, USERS = 60, 1500, np.arange(8)


def write_tables(folder):
    random = np.random.default_rng(3)
    tags = [[f"t{n}" for n in random.integers(0, 9, random.integers(0, 5))] for _ in range(ITEMS)]
    columns = {
        "item_id": pa.array(range(100, 100 + ITEMS)),
        "category": pa.array([f"c{n % 7}" for n in range(ITEMS)]),
        "price": pa.array(random.normal(size=ITEMS)),
        "tags": pa.array(tags, pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns), folder / "items.parquet")
    events = {
        "user_id": pa.array(random.integers(0, 50, EVENTS)),
        "item_id": pa.array(random.integers(100, 100 + ITEMS, EVENTS)),
        "clicked": pa.array((random.random(EVENTS) < 0.5).astype(np.float64)),
    }
    pq.write_table(pa.table(events), folder / "events.parquet")


def config(folder, **model):
    return {
        "model": {"name": "pairs", "arch": "two_tower", "hidden": [8], "vector_dim": 4, **model},
        "data": {"path": str(folder / "events.parquet"), "label": "clicked"},
        "features": {
            "user_id": {"kind": "id", "side": "user", "dim": 4},
            "item_id": {"kind": "id", "side": "item", "dim": 4},
            "category": {"kind": "string", "side": "item", "dim": 4},
            "price": {"kind": "float", "side": "item"},
            "tags": {"kind": "strings", "side": "item", "dim": 4, "combiner": "mean"},
        },
        "entities": {
            "item": {"key": "item_id", "path": str(folder / "items.parquet"), "columns": ["category", "price", "tags"]}
        },
        "publish": {"repository": str(folder / "repository"), "full_rows": 1000, "delta_rows": 250},
    }


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_best_items_of_a_trained_network_score_as_candidates_do(tmp_path, similarity):
    write_tables(tmp_path)
    run = TrainingRun(parse_config(config(tmp_path, similarity=similarity)))
    try:
        run.full()
        for _ in run.stream():
            pass
    finally:
        run.stop()
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        manifest = processor.host.catalogue["pairs"].pick().manifest
        noted = manifest.notes[NOTE]
        assert set(noted["weights"]) == {name for name in manifest.dense if name.startswith("item_")}
        while processor.host.upkeep.maintain():
            pass
        best = processor.process(PredictRequest("pairs", {"user_id": USERS}, top_items=ITEMS))
        assert best.item_generation is None
        assert best.outputs["item_ids"].shape == (len(USERS), ITEMS)
        for row, user in enumerate(USERS):
            items = best.outputs["item_ids"][row]
            inputs = {"user_id": np.array([user]), "item_id": items}
            scored = processor.process(PredictRequest("pairs", inputs)).outputs["score"][:, 0]
            np.testing.assert_allclose(best.outputs["scores"][row], scored, atol=1e-5)
            assert (np.diff(scored) <= 1e-6).all()
