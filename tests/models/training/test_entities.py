"""Train with features of items in a table of their own; requests of ids alone score as those with everything."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Publisher
from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.entity_table import EntityTable
from freshet_serving.models.evaluation.evaluate import evaluate
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.models.training.streams import Notes

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ITEMS, EVENTS = 60, 3000


def tables(tmp_path):
    random = np.random.default_rng(3)
    price = random.normal(size=ITEMS)
    tags = [[f"t{n}" for n in random.integers(0, 9, random.integers(0, 5))] for _ in range(ITEMS)]
    columns = {
        "item_id": pa.array([f"item {n}" for n in range(ITEMS)]),
        "category": pa.array([f"c{n % 7}" for n in range(ITEMS)]),
        "price": pa.array(price),
        "tags": pa.array(tags, pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns), tmp_path / "items.parquet")
    item = random.integers(0, ITEMS + 5, EVENTS)
    known = np.append(price, np.zeros(5))[item]
    events = {
        "user_id": pa.array(random.integers(0, 50, EVENTS)),
        "item_id": pa.array([f"item {n}" for n in item]),
        "clicked": pa.array((random.random(EVENTS) < 1 / (1 + np.exp(-3 * known))).astype(np.float64)),
    }
    pq.write_table(pa.table(events), tmp_path / "events.parquet")


def config(tmp_path):
    return {
        "model": {"name": "ctr", "arch": "deepfm", "hidden": [8]},
        "data": {"path": str(tmp_path / "events.parquet"), "label": "clicked"},
        "features": {
            "user_id": {"kind": "id", "side": "user", "dim": 4},
            "item_id": {"kind": "string", "side": "item", "dim": 4},
            "category": {"kind": "string", "side": "item", "dim": 4},
            "price": {"kind": "float", "side": "item"},
            "dear": {"from": "price", "transform": "bucketize", "boundaries": [-1.0, 0.0, 1.0], "dim": 4},
            "tags": {"kind": "strings", "side": "item", "dim": 4, "combiner": "mean"},
        },
        "entities": {
            "item": {
                "key": "item_id",
                "path": str(tmp_path / "items.parquet"),
                "columns": ["category", "price", "dear", "tags"],
            }
        },
        "publish": {"repository": str(tmp_path / "repository"), "full_rows": 2000, "delta_rows": 500},
    }


def test_request_of_ids_scores_as_one_with_all_features(tmp_path):
    tables(tmp_path)
    settings = parse_config(config(tmp_path))
    run = TrainingRun(settings)
    try:
        run.full()
        # The trainer continues from features that another writer has published meanwhile.
        publisher = Publisher(tmp_path / "repository", "ctr")
        publisher.publish(entities={"item": (["item 63"], {"category": ["c0"], "price": [1.0], "tags": [[]]})})
        for _ in run.stream():
            pass
    finally:
        run.stop()
    users, items = np.arange(8), [f"item {n}" for n in (0, 1, 5, 59, 7, 7, 62, 64)]
    keys = {"user_id": users, "item_id": Strings.of(items)}
    entity = settings.entities[0]
    columns = EntityTable("item", entity.data, entity.key_field, entity.fields).columns(keys["item_id"], None)
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        alone = processor.process(PredictRequest("ctr", keys))
        whole = processor.process(PredictRequest("ctr", keys | columns))
        assert str(alone.generation) == "1.3"
        np.testing.assert_array_equal(alone.outputs["score"], whole.outputs["score"])
        new = {"category": ["c1"], "price": [2.5], "tags": [["t1", "t2"]]}
        publisher.publish(entities={"item": (["item 62"], new)})
        processor.poll()
        after = processor.process(PredictRequest("ctr", keys))
        assert str(after.generation) == "1.4"
        changed = np.flatnonzero((after.outputs["score"] != alone.outputs["score"]).ravel())
        assert changed.tolist() == [6]


@pytest.mark.long
def test_evaluation_joins_what_training_joined(tmp_path):
    tables(tmp_path)
    raw = config(tmp_path)
    raw["data"] |= {"path": str(tmp_path / "timed.parquet"), "time": "ts"}
    events = pq.read_table(tmp_path / "events.parquet")
    pq.write_table(events.append_column("ts", pa.array(np.arange(EVENTS) // 3)), tmp_path / "timed.parquet")
    raw["model"] |= {"arch": "stca"}
    raw["sequences"] = {
        "seen": {
            "columns": {"item": "item_id", "category": "category"},
            "tables": {"item": "item_id", "category": "category"},
            "from_events": "user_id",
            "max_length": 8,
        }
    }
    raw["publish"] |= {"delta_rows": 0}
    settings = parse_config(raw)
    run = TrainingRun(settings)
    try:
        run.full()
        (rows,) = run.source.batches(EVENTS - 2000, 2000)
        trained = run.trainer.score(rows.columns)
    finally:
        run.stop()
    with GenerationScorer(str(tmp_path / "repository"), "ctr", None) as scorer:
        made = evaluate(scorer, settings.data, ["clicked"], EvaluateConfig(), Notes(), skip=2000, trained=settings)
    assert len(made) == EVENTS - 2000
    assert made.main.scored.auc() == pytest.approx(auc(rows.label, trained), abs=1e-3)
