"""Hours, weekdays, buckets and crosses: the served dense input is the trained one to the bit, from the raw columns."""

import datetime
import itertools

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch, Schema, wanted_fields
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.evaluation import Transforms

pytestmark = pytest.mark.tensorflow

SECTIONS = {
    "user": {"kind": "id", "dim": 4, "side": "user"},
    "tags": {"kind": "strings", "dim": 4},
    "age": {"kind": "float", "transform": "none"},
    "hour": {"transform": "hour", "dim": 4},
    "day": {"transform": "weekday", "dim": 4},
    "age_bucket": {"from": "age", "transform": "bucketize", "boundaries": [18, 30.5, 65], "dim": 4},
    "user_bucket": {"from": "user", "transform": "bucketize", "boundaries": [0, 1e6], "dim": 4},
    "user_x_hour": {"cross": ["user", "hour"], "buckets": 1000, "dim": 4},
    "age_x_tags": {"cross": ["age_bucket", "tags"], "dim": 4, "combiner": "mean"},
}


def config_of(folder):
    return parse_config({
        "model": {"name": "made", "hidden": [4]},
        "data": {"path": "x.parquet", "label": "y", "time": "ts"},
        "features": SECTIONS,
        "train": {"batch_rows": 64, "optimizer": "adagrad", "learning_rate": 0.1, "dense_learning_rate": 0.01},
        "publish": {"repository": str(folder), "full_rows": 256, "delta_rows": 64},
    })  # fmt: skip


class RawSource:
    """Rows of raw columns: a time of any century, ages with gaps."""

    def __init__(self, rows, features):
        self.schema = Schema(wanted_fields(features), "y", "ts")
        random = np.random.default_rng(5)
        age = np.where(random.random(rows) < 0.2, np.nan, random.choice([17, 18, 30.5, 31, 65, -4], rows))
        columns = {
            "user": random.integers(-(2**62), 2**62, rows) // random.choice([1, 2**40, 2**60], rows),
            "tags": Ragged.of([[f"tag {t}" for t in random.integers(0, 9, n)] for n in random.integers(0, 4, rows)]),
            "age": age.astype(np.float32),
            "ts": np.sort(random.integers(-(2**33), 2**33, rows)),
        }
        label = (random.random(rows) < 0.5).astype(np.float32)
        self.all = Batch({n: columns[n] for n in self.schema.names}, label, columns["ts"].astype(np.float64), 0)

    def count_rows(self):
        return len(self.all)

    def batches(self, rows, start=0):
        for first in range(start, len(self.all), rows):
            yield self.all.slice(first, min(first + rows, len(self.all)))


@pytest.mark.long
def test_every_generation_is_served_from_raw_columns_as_trained(tmp_path, quick):
    config = config_of(tmp_path)
    source = RawSource(400, config.features)
    run = TrainingRun(config, source)
    columns = source.all.columns
    one_user = {"user": np.array([7]), "tags": Ragged.of([["tag 1", "new"]]), "age": np.array([18], np.float32)}
    one_user["ts"] = np.array([0, 3599, 3600], np.int64)
    run.full()
    with Processor(ProcessorConfig(repository=tmp_path)) as processor:
        for generation in itertools.chain([run.state.version], run.stream()):
            processor.poll()
            replica = processor.predictor.replica("made")
            for given in (columns, one_user):
                with replica.pinned(0) as state:
                    bound = replica.plan.bind_inputs(given)
                    served = np.full((bound.rows, replica.plan.width), np.nan, np.float32)
                    counts = np.zeros((len(replica.manifest.tables), 2), np.int64)
                    replica.plan.fill(
                        BatchView(state.tables, state.epoch, [bound], np.array([[0, bound.rows]]), counts), served
                    )
                trained = run.trainer.dense_inputs(given)["x"]
                assert served.tobytes() == trained.tobytes(), generation
                reply = processor.process(PredictRequest("made", given))
                assert np.allclose(reply.outputs["score"].reshape(-1), run.trainer.score(given), atol=1e-5)
    for name in ("hour", "day", "age_bucket", "user_x_hour"):
        assert len(run.trainer.tables[name].export().keys) > 2


def test_hours_and_weekdays_follow_the_utc_calendar(tmp_path):
    config = config_of(tmp_path)
    source = RawSource(300, config.features)
    found = Transforms(draft(config, {})).run(source.all.columns)
    began = datetime.datetime(1970, 1, 1)
    times = [began + datetime.timedelta(seconds=s) for s in source.all.columns["ts"].tolist()]

    assert found["hour"].tolist() == [t.hour for t in times]
    assert found["day"].tolist() == [t.weekday() for t in times]


def test_bucket_is_the_number_of_boundaries_not_above_the_value(tmp_path):
    config = config_of(tmp_path)
    raw = RawSource(5, config.features).all.columns
    raw["age"] = np.array([17, 18, 30.5, 64.9, np.nan], np.float32)
    raw["user"] = np.array([-5, 0, 3, 10**6, 2**62])
    found = Transforms(draft(config, {})).run(raw)

    assert found["age_bucket"].tolist() == [0, 1, 2, 2, 3]
    assert found["user_bucket"].tolist() == [0, 1, 1, 2, 2]


def test_feature_may_share_the_name_of_its_source_column(tmp_path):
    raw = {"age": {"transform": "bucketize", "boundaries": [18]}, "age.1": {"kind": "id"}, "id": {"kind": "id"}}
    config = parse_config({
        "model": {"name": "made"},
        "data": {"path": "x.csv", "label": "y"},
        "features": raw | {"c": {"cross": ["age", "id"]}},
    })  # fmt: skip
    manifest = draft(config, {})

    assert [i.name for i in manifest.inputs] == ["age", "age.1", "id"]
    assert [(f.name, f.input) for f in manifest.features] == [
        ("age", "age.0"), ("age.1", "age.1"), ("id", "id"), ("c", "c"),
    ]  # fmt: skip
    assert manifest.transforms[-1].inputs == ["age.0", "id"]
