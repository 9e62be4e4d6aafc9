"""A second version: of the weights that are there, or of new ones; and what the versions before it are worth."""

import dataclasses
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.training import full_versions
from freshet_serving.models.training import loop as running
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import WARMUP, VersionReader
from freshet_serving.processor.repository.version_writer import add_file
from freshet_serving.processor.repository.warmup import dump_warmup
from tests.models.training.streams import FEATURES, MixedSource, Notes, differing, make_batch, make_config, snapshot
from tests.models.training.test_lineage import assert_at_head

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS = 584
ANEW, ON = StartOptions(new_version=True, from_scratch=True), StartOptions(new_version=True)


def begin(repository, start_options=None, rows=ROWS, **options):
    heard = Notes()
    made = make_config(repository, **options)
    return TrainingRun(made, MixedSource(rows), reporter=heard, start_options=start_options), heard.notes


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_second_version_from_old_weights_initially_scores_like_the_first(tmp_path, dtype):
    config = make_config(tmp_path)
    config = dataclasses.replace(config, publish=dataclasses.replace(config.publish, table_dtype=dtype))
    first = TrainingRun(config, MixedSource(ROWS - 96))
    first.run()
    assert str(Generation(1, first.state.step)) == "1.3"
    probes = [make_batch(300, seed=n, users=80).columns for n in range(3)]

    second = TrainingRun(config, MixedSource(ROWS), start_options=ON)

    assert second.full() == Generation(2, 0)
    with (
        Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as new,
        Processor.initialize(ProcessorConfig(str(copied(tmp_path, 1)), sessions=1)) as old,
    ):
        assert (str(new.predictor.manifest("mixed")[1]), str(old.predictor.manifest("mixed")[1])) == ("2.0", "1.3")
        for columns in probes:
            request = PredictRequest("mixed", columns)
            gaps = np.abs(new.process(request).outputs["score"] - old.process(request).outputs["score"])
            assert gaps.max() <= 1e-6
    assert [str(g) for g in second.stream()] == ["2.1"]
    assert second.state.position == ROWS
    assert_at_head(second, dtype)
    again, notes = begin(tmp_path, None)
    assert again.full() == Generation(2, 1)
    assert notes[0].startswith(f"resumed at row {ROWS}, generation 2.1: the data have no rows after it")


def copied(repository, version):
    """The repository with this version alone."""
    other = repository.with_name(repository.name + "-copied")
    shutil.copytree(repository / "mixed" / str(version), other / "mixed" / str(version))
    return other


def test_second_version_starts_from_the_rolled_back_state(tmp_path):
    first, _ = begin(tmp_path, rows=ROWS - 96)
    first.run()
    ChangeLog.of(Repository(tmp_path).version("mixed", 1)).rollback(1)

    second, notes = begin(tmp_path, ON)

    assert notes[1] == "1.3 was rolled back to 1.1: went back, skipped 136 rows"
    assert second.full() == Generation(2, 0)
    assert_at_head(second)
    assert [str(g) for g in second.stream()] == ["2.1"]


def withdraw(repository, number):
    opened = Repository(repository)
    opened.version_records("mixed").add(number, opened.root_of("mixed", number), "withdraw", "bad night", "rollback")


def test_run_after_a_withdrawn_version_continues_from_what_is_served(tmp_path):
    begin(tmp_path, rows=ROWS - 96)[0].run()
    begin(tmp_path, ANEW, rows=ROWS - 96)[0].full()
    withdraw(tmp_path, 2)
    third, notes = begin(tmp_path)
    assert notes[:2] == [
        "version 2 is withdrawn by rollback: bad night: not continuing from its checkpoint",
        f"no checkpoint: starting with the weights of 1.3 and row {third.state.version_row}",
    ]
    assert third.full() == Generation(3, 0)
    opened = [Repository(tmp_path).version("mixed", number) for number in (1, 2, 3)]
    heads = [(version, ChangeLog.of(version)) for version in opened]
    served, bad, now = (VersionContents(version, log, log.history.head).dense for version, log in heads)
    assert [np.array_equal(served[name], now[name]) for name in served] == [True] * len(served)
    assert not all(np.array_equal(served[name], bad[name]) for name in served)
    assert [str(generation) for generation in third.stream()]
    assert begin(tmp_path)[1][0].startswith("resumed at row")


def test_delta_of_a_version_that_is_withdrawn_meanwhile_is_not_published(tmp_path):
    run, _ = begin(tmp_path)
    run.full()
    stream = run.stream()
    next(stream)
    withdraw(tmp_path, 1)
    with pytest.raises(Conflict, match=r"version 1 of mixed is withdrawn by rollback: bad night: no server takes"):
        list(stream)
    assert ChangeLog.of(Repository(tmp_path).version("mixed", 1)).history.head.step == 1


def test_run_killed_before_the_second_version_publishes_it_once(tmp_path, monkeypatch):
    begin(tmp_path)[0].run()
    with monkeypatch.context() as patch:
        patch.setattr(full_versions, "publish_version", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begin(tmp_path, ON)
    assert Repository(tmp_path).versions("mixed") == [1]

    second, _ = begin(tmp_path, ON)

    assert Repository(tmp_path).versions("mixed") == [1, 2]
    assert_at_head(second)


def test_second_version_without_checkpoints_starts_from_the_repository(tmp_path):
    first, _ = begin(tmp_path)
    first.run()
    held = snapshot(first.trainer)
    shutil.rmtree(tmp_path / ".checkpoints")

    second, notes = begin(tmp_path, ON, rows=ROWS)

    rows = {name for name in held if name.endswith(("/rows", "/keys")) or name.startswith("dense/")}
    assert not rows & set(differing(snapshot(second.trainer), held))
    assert second.state.scaling == first.state.scaling
    assert notes[0].startswith("no checkpoint: starting with the weights of 1.4")
    assert second.full() == Generation(2, 0)
    assert second.state.position == 0
    assert_at_head(second)
    next(second.stream())
    assert_at_head(second)


def test_weights_of_another_shape_are_refused_at_equal_width(tmp_path):
    def features(dim, max_length):
        seen = dataclasses.replace(FEATURES[3], table="seen", dim=dim, max_length=max_length, combiner="none")
        return [*FEATURES[:3], seen, *FEATURES[4:]]

    begin(tmp_path, features=features(4, 6))[0].full()
    shutil.rmtree(tmp_path / ".checkpoints")
    for other in (features(5, 5), features(4, 5), features(4, 6)[:-1]):
        with pytest.raises(BadInput, match=r"features or tables of version 1 differ.*--from-scratch"):
            begin(tmp_path, ON, features=other)


def test_from_scratch_trains_a_second_version_like_the_first(tmp_path):
    first, _ = begin(tmp_path)
    first.full()
    wanted = snapshot(first.trainer)
    list(first.stream())
    options = {"optimizer": "ftrl"}

    second, _ = begin(tmp_path, ANEW, **options)
    learned = second.state.position
    assert second.full() == Generation(2, 0)

    assert (learned, second.state.position) == (0, 256)
    assert set(differing(snapshot(second.trainer), wanted))
    assert str(next(second.stream())) == "2.1"
    assert_at_head(second)
    # A kill on the way is gone on from, without any option.
    assert begin(tmp_path, **options)[0].full() == Generation(2, 1)
    third, _ = begin(tmp_path, ANEW)
    third.full()
    assert (third.state.version, differing(snapshot(third.trainer), wanted)) == (3, [])


def test_incompatible_training_file_error_names_changes_and_both_options(tmp_path):
    begin(tmp_path)[0].run()
    for start_options in (None, ON):
        with pytest.raises(BadInput) as refused:
            begin(tmp_path, start_options, optimizer="ftrl", seed=4)
        told = str(refused.value)
        assert "\n" not in told
        assert str(tmp_path) not in told
        for words in (
            "train.optimizer was 'adagrad' and is 'ftrl'",
            "train.seed was 3 and is 4",
            ".checkpoints/mixed",
            "--new-version --from-scratch",
            "model.name",
        ):
            assert words in told
    assert begin(tmp_path, learning_rate=0.01, batch_rows=32, epochs=2)[0].full() == Generation(1, 4)


def test_from_scratch_alone_is_refused():
    with pytest.raises(BadInput, match="only allowed with --new-version"):
        StartOptions(from_scratch=True)


def test_published_version_is_scored_next_to_the_fresh_model(tmp_path):
    run, notes = begin(tmp_path)
    run.run()
    assert len(run.quality.published_baseline) == len(run.quality.sampled) == len(run.quality.streamed) == ROWS - 256
    assert run.quality.sampled.auc() == run.quality.streamed.auc()
    assert f"; version 1 as published: AUC {run.quality.published_baseline.auc():.4f}" in notes[-1]
    assert run.quality.published_baseline.auc() != run.quality.streamed.auc()


def test_sample_of_a_long_stream_is_scored_by_both(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SAMPLED_BATCHES", 2)
    run, notes = begin(tmp_path)
    run.run()
    assert 0 < len(run.quality.published_baseline) == len(run.quality.sampled) < len(run.quality.streamed) == ROWS - 256
    assert (
        f"over {len(run.quality.sampled)} of them, where the updated model has {run.quality.sampled.auc():.4f}"
        in notes[-1]
    )


def test_second_version_reuses_the_warmup_requests_of_the_first(tmp_path):
    assert begin(tmp_path, ON)[0].full() == Generation(1, 0), "a new version of nothing is the first"
    data = dump_warmup([make_batch(3).columns])
    add_file(VersionReader(tmp_path / "mixed" / "1"), WARMUP, data)
    begin(tmp_path, ANEW)[0].full()
    assert Repository(tmp_path).version("mixed", 2).file(WARMUP) == data


def events_config(folder, history, data="rows.parquet"):
    return parse_config(
        {
            "model": {"name": "watched", "arch": "stca", "units": 8, "layers": 1, "hidden": [8]},
            "data": {"path": str(folder / data), "label": "clicked", "time": "ts"},
            "features": {"user": {"kind": "id", "side": "user"}, "item": {"kind": "id", "side": "item", "dim": 4}},
            "sequences": {"history": {"tables": {"item": "item"}, "max_length": 5} | history},
            "train": {"batch_rows": 64, "seed": 3, "holdout": 0.0},
            "publish": {"repository": str(folder / "repository"), "full_rows": 448, "delta_rows": 64},
        }
    )


def write_events(path, scale=1.0):
    random = np.random.default_rng(7)
    lists = [random.integers(0, 20, n).tolist() for n in random.integers(0, 8, ROWS)]
    seconds = [(scale * np.exp(random.normal(2, 2, len(own)))).tolist() for own in lists]
    seconds[3] = [None] * len(seconds[3])
    columns = {"user": random.integers(0, 9, ROWS), "item": random.integers(0, 20, ROWS), "ts": np.arange(ROWS) + 1e9}
    columns |= {"clicked": random.integers(0, 2, ROWS), "seconds": scale * np.exp(random.normal(2, 2, ROWS))}
    pq.write_table(pa.table(columns | {"hist_items": lists, "hist_seconds": seconds}), path)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            {"columns": {"item": "hist_items"}, "floats": {"watched": "hist_seconds"}}, marks=pytest.mark.long
        ),
        {"columns": {"item": "item"}, "floats": {"watched": "seconds"}, "from_events": "user"},
    ],
    ids=["lists", "events"],
)
def test_floats_of_events_keep_their_scaling_in_later_versions(history, tmp_path):
    write_events(tmp_path / "rows.parquet")
    config = events_config(tmp_path, history)
    first = TrainingRun(config, reporter=Notes())
    first.full()
    (column,) = (c for c in first.trainer.manifest.sequences[0].columns if not c.table)
    (batch,) = first.source.batches(ROWS)
    logs = np.log1p(batch.columns["history.watched"].values[~np.isnan(batch.columns["history.watched"].values)])
    assert column.log1p
    assert (column.mean, column.scale) == pytest.approx((logs.mean(), 1 / logs.std()), rel=1e-4)
    assert "defaults: log1p of history.watched" in first._report.notes
    resumed = TrainingRun(config, reporter=Notes())
    assert [g.step for g in resumed.stream()] == [1, 2, 3]
    assert resumed.trainer.manifest.sequences == first.trainer.manifest.sequences
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        scores = processor.process(PredictRequest("watched", batch.columns)).outputs["score"][:, 0]
    np.testing.assert_allclose(scores, resumed.trainer.score(batch.columns), atol=1e-5)
    write_events(tmp_path / "larger.parquet", 100.0)
    shutil.rmtree(tmp_path / "repository" / ".checkpoints")
    second = TrainingRun(events_config(tmp_path, history, "larger.parquet"), start_options=ON, reporter=Notes())
    assert second.trainer.manifest.sequences == first.trainer.manifest.sequences
    anew = TrainingRun(events_config(tmp_path, history, "larger.parquet"), start_options=ANEW, reporter=Notes())
    (other,) = (c for c in anew.trainer.manifest.sequences[0].columns if not c.table)
    assert other.mean > column.mean + 3


def test_run_refuses_to_go_on_with_other_data(tmp_path):
    begin(tmp_path)[0].run()
    for options in (None, ON):
        with pytest.raises(BadInput, match="expected the rows that were learned, got other ones"):
            TrainingRun(make_config(tmp_path), MixedSource(ROWS + 96, seed=9), start_options=options)
        fewer = f"expected the {ROWS} rows that were learned and perhaps more, got fewer, 500"
        with pytest.raises(BadInput, match=fewer):
            begin(tmp_path, options, rows=500)
    assert TrainingRun(make_config(tmp_path), MixedSource(ROWS, seed=9), start_options=ANEW).state.version == 0
