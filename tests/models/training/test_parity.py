"""Training and serving are one function: the same dense input to the bit, and the same scores, at every generation.

A run publishes a version and deltas while rows are removed under it. A processor that follows by polling,
one that starts late, and one that rolls back and comes forward again all have to hold what the trainer held.
Hours, weekdays, buckets and crosses are worked out from the raw columns on both sides.
"""

import dataclasses
import datetime
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch, Schema, wanted_fields
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.overview import model_stats
from tests.models.training.streams import (
    FEATURES,
    SEQUENCES,
    MixedSource,
    exported,
    make_batch,
    make_config,
    odd_batch,
    pooled_by,
    served_as_bytes,
    spread,
    untouched,
)

pytestmark = pytest.mark.tensorflow

ROWS = 700
SCORE_TOLERANCE = 1e-5
PROBES = {
    "seen": make_batch(ROWS, seed=0, users=300, items=900).slice(0, 50).columns,
    "coming": make_batch(ROWS, seed=0, users=300, items=900).slice(500, 600).columns,
    "half unseen": make_batch(40, seed=8, users=600, items=1800).columns,
    "odd": odd_batch().columns,
    "one row": make_batch(1, seed=3).columns,
    "more than a bucket": make_batch(300, seed=4).columns,
}


@dataclass
class Held:
    """What the trainer held when it published a generation: dense inputs and scores of the probes, the whole export."""

    pooled: dict
    scores: dict
    export: dict = field(repr=False)

    @classmethod
    def by(cls, trainer):
        return cls(
            {name: trainer.dense_inputs(columns)["x"] for name, columns in PROBES.items()},
            {name: trainer.score(columns) for name, columns in PROBES.items()},
            served_as_bytes(exported(trainer)),
        )

    def assert_served_by(self, processor):
        """Returns the largest difference of any score."""
        worst = 0.0
        for name, columns in PROBES.items():
            x = pooled_by(processor, columns)
            assert x.tobytes() == self.pooled[name].tobytes(), name
            reply = processor.process(PredictRequest("mixed", columns))
            worst = max(worst, float(np.abs(reply.outputs["score"][:, 0] - self.scores[name]).max()))
        assert worst <= SCORE_TOLERANCE
        assert served_as_bytes(processor.host.catalogue["mixed"].pick().export()) == self.export
        return worst


def open_processor(repository, **options):
    # A run of a few steps moves every row and score further than a guard would serve.
    return Processor.initialize(ProcessorConfig(str(repository), sessions=1, delta_guard="off", **options))


@dataclass
class Story:
    """A run that removed rows on its way: its repository, what each generation held, its trainer."""

    repository: Path
    held: dict
    run: TrainingRun
    worst: float


@pytest.fixture(
    scope="module", params=[pytest.param("dlrm-ftrl-pooled", marks=pytest.mark.long), "deepfm-adam-sequences"]
)
def story(request, tmp_path_factory):
    """Every generation is compared with a polling processor as it comes."""
    arch, optimizer, lists = request.param.split("-")
    features = SEQUENCES if lists == "sequences" else FEATURES
    repository = tmp_path_factory.mktemp("story")
    config = make_config(repository, features, arch=arch, optimizer=optimizer, full_rows=256, delta_rows=64)
    run, held, worst = TrainingRun(config, MixedSource(ROWS, users=300, items=900)), {}, 0.0
    user, item = run.trainer.tables["user"], run.trainer.tables["item"]
    generations = itertools.chain([run.full()], run.stream())
    first = next(generations)
    held[first] = Held.by(run.trainer)
    with open_processor(repository) as processor:
        worst = max(worst, held[first].assert_served_by(processor))
        for generation in generations:
            held[generation] = Held.by(run.trainer)
            processor.poll()
            assert processor.predictor.manifest("mixed")[1] == generation
            worst = max(worst, held[generation].assert_served_by(processor))
            if generation.step == 2:
                assert user.remove(spread(np.arange(0, 300, 3)))
            if generation.step == 4:
                # Trained later in the next chunk or not at all: some come back as new rows, some stay away.
                assert item.remove(untouched(item, run.trainer.steps + 1))
            if generation.step == 5:
                assert user.remove(untouched(user, run.trainer.steps))
    return Story(repository, held, run, worst)


def test_every_generation_is_served_as_it_was_trained(story, record_property):
    record_property("worst_score_difference", story.worst)
    print(f"scores of training and serving, largest difference over {len(story.held)} generations: {story.worst:.1e}")
    assert [str(g) for g in story.held] == [f"1.{n}" for n in range(8)]
    removed = [sum(len(t.removed) for t in delta.tables.values()) for delta in deltas(story)]
    assert sum(n > 0 for n in removed) >= 3
    assert story.worst <= SCORE_TOLERANCE


def test_probes_contain_both_known_and_unknown_ids(story):
    """Guards the tests here: probes of which nothing is found, or everything, would prove little."""
    with open_processor(story.repository) as processor:
        for name, columns in PROBES.items():
            processor.process(PredictRequest("mixed", columns))
            if name == "seen":
                (stats,) = model_stats(processor.host)
                assert stats.misses < stats.lookups / 2
        (stats,) = model_stats(processor.host)
        assert 0 < stats.misses < stats.lookups


def deltas(story):
    change_log = ChangeLog.of(Repository(story.repository).version("mixed", 1))
    return [change_log.read_delta(link) for link in change_log.history.line()[1:]]


def test_processor_started_late_replays_the_log_bitwise(story):
    with open_processor(story.repository) as processor:
        newest = processor.predictor.manifest("mixed")[1]
        assert newest == Generation(1, 7)
        story.held[newest].assert_served_by(processor)


@pytest.mark.parametrize("undo_depth", [16, 2], ids=["from memory", "beyond the undo log"])
def test_every_generation_is_equal_after_rollback_and_reapplication(story, tmp_path, undo_depth):
    import shutil

    repository = tmp_path / "repository"
    shutil.copytree(story.repository, repository)
    files = {int(path.stem): path.read_bytes() for path in (repository / "mixed" / "1" / "deltas").iterdir()}
    with open_processor(repository, undo_depth=undo_depth) as processor:
        for back in (5, 3, 0):
            assert processor.rollback("mixed", Generation(1, back)).generation == Generation(1, back)
            story.held[Generation(1, back)].assert_served_by(processor)
        for step in range(1, 8):
            assert processor.apply_delta("mixed", data=files[step]).generation == Generation(1, step)
            story.held[Generation(1, step)].assert_served_by(processor)
        again = processor.apply_delta("mixed", data=files[7])
        assert (again.generation, again.apply_ms) == (Generation(1, 7), 0)
    with open_processor(repository) as processor:
        story.held[Generation(1, 7)].assert_served_by(processor)


def test_version_with_deltas_equals_the_version_published_whole(story, tmp_path):
    trainer = story.run.trainer
    tables, _ = exported(trainer)
    graph = trainer.dense.published()
    publish_version(tmp_path, dataclasses.replace(trainer.manifest, version=2), tables, graph)
    with open_processor(tmp_path) as whole, open_processor(story.repository) as chain:
        by_version = served_as_bytes(whole.host.catalogue["mixed"].pick().export())
        by_deltas = served_as_bytes(chain.host.catalogue["mixed"].pick().export())
        assert by_version == by_deltas
        assert whole.predictor.manifest("mixed")[1] == Generation(2, 0)
        story.held[Generation(1, 7)].assert_served_by(whole)
        for columns in PROBES.values():
            replies = [p.process(PredictRequest("mixed", columns)).outputs["score"] for p in (whole, chain)]
            assert replies[0].tobytes() == replies[1].tobytes()


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
            for given in (columns, one_user):
                trained = run.trainer.dense_inputs(given)["x"]
                assert pooled_by(processor, given, "made").tobytes() == trained.tobytes(), generation
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
