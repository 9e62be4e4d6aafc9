"""Whole runs: what they publish, where they go on, and what a kill between any two commits leaves behind."""

import contextlib
import itertools
import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.data.synthetic import SyntheticSource
from freshet_serving.models.training import loop as running
from freshet_serving.models.training import resolved_config, run_start, run_summary
from freshet_serving.models.training.defaults import BEFORE
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import VersionReader, table_file
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.models.training.conftest import stand_in
from tests.models.training.streams import (
    FEATURES,
    MixedSource,
    Notes,
    differing,
    exported,
    make_config,
    served_as_bytes,
    snapshot,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS, FULL_ROWS = 584, 256
DELTAS = 4  # the other 328 rows: three chunks of 96 and a rest


def replayed(repository, model="mixed"):
    """The newest version with its deltas, as a server would start with them; the chain is asserted to be whole."""
    store = Repository(repository)
    number = store.versions(model)[-1]
    version = ServedVersion(VersionReader(store.folder(model, number)), 16, SystemClock())
    change_log = ChangeLog.of(version.files)
    links = change_log.history.line()[1:]
    assert [link.step for link in links] == list(range(1, len(links) + 1))
    for link in links:
        version.apply(change_log.read_delta(link), link.digest)
    return version


def finish(config, source=None):
    """Runs to the end from whatever lies in the repository -> the TrainingRun."""
    run = TrainingRun(config, source or MixedSource(ROWS))
    run.run()
    return run


def test_run_publishes_a_version_and_its_deltas(tmp_path):
    config = make_config(tmp_path, full_rows=1000, delta_rows=300)
    notes, seconds = Notes(), iter(range(1_000, 2_000))
    run = TrainingRun(config, MixedSource(2000), reporter=notes, unix_s=lambda: float(next(seconds)))

    summary = run.run()

    assert summary.generation == Generation(1, 4)
    assert summary.rows == 2000
    assert (len(summary.held_out), len(summary.streamed)) == (100, 1000)
    assert run.status().held_out == {"auc": summary.held_out.auc(), "log_loss": summary.held_out.log_loss()}
    assert 0.5 < summary.streamed.auc() < 1
    reader = VersionReader(tmp_path / "mixed" / "1")
    reader.verify()
    assert {t.name: t.dim for t in reader.manifest.tables} == {"user": 4, "item": 8, "city": 4, "tag": 4}
    assert reader.manifest.created_at == 1000.0
    met = reader.tensors(table_file("city"))["frequencies"]
    assert met.dtype == np.uint32
    assert met.sum() >= 1000 // 64
    deltas = [read_delta(tmp_path / "mixed" / "1" / "deltas" / f"{n}.safetensors") for n in (1, 2, 3, 4)]
    assert [(d.step, d.parent_step, d.version, d.events) for d in deltas] == [
        (1, 0, 1, 300), (2, 1, 1, 300), (3, 2, 1, 300), (4, 3, 1, 100),
    ]  # fmt: skip
    assert [d.published_at for d in deltas] == [1001.0, 1002.0, 1003.0, 1004.0]
    times = [tuple(reader.manifest.event_time), *(d.event_time for d in deltas)]
    assert all(a[0] <= a[1] <= b[0] for a, b in itertools.pairwise(times))
    version = replayed(tmp_path)
    assert version.generation == Generation(1, 4)
    assert served_as_bytes(version.export()) == served_as_bytes(exported(run.trainer))
    assert any("published mixed 1.0" in note for note in notes.notes)
    assert any("AUC" in note for note in notes.notes)


def test_delta_contains_exactly_the_new_and_trained_rows(tmp_path):
    run = TrainingRun(make_config(tmp_path), MixedSource(ROWS))
    run.full()
    before, steps = {name: table.export() for name, table in run.trainer.tables.items()}, run.trainer.steps
    next(run.stream())
    delta = read_delta(tmp_path / "mixed" / "1" / "deltas" / "1.safetensors")
    left_out = {}
    for name, table in run.trainer.tables.items():
        after = table.export()
        changed = ~np.isin(after.keys, before[name].keys) | (after.last_step > steps)
        carried = delta.tables[name].keys if name in delta.tables else []
        assert list(carried) == after.keys[changed].tolist()
        known = np.isin(before[name].keys, after.keys[~changed])
        assert after.rows[~changed].tobytes() == before[name].rows[known].tobytes()
        left_out[name] = int(known.sum())
    assert left_out["user"] > 0
    assert left_out["tag"] > 0


def test_resumed_run_continues_at_the_exact_row(tmp_path):
    source = MixedSource(ROWS)
    first = TrainingRun(make_config(tmp_path), source)
    first.full()
    assert [str(g) for g in first.stream(stop_row=448)] == ["1.1", "1.2"]
    assert first.state.position == 448

    source.started.clear()
    notes, seen = Notes(), []
    second = TrainingRun(make_config(tmp_path), source, reporter=notes)
    assert second.full() == Generation(1, 2)
    generations = [str(g) for g in second.stream(before=lambda batch: seen.append((batch.start, batch.end)))]

    assert notes.notes[0] == "resumed at row 448, generation 1.2"
    assert source.started == [0, 416, 448], "the first rows and the last ones are recognised"
    assert seen[0][0] == 448
    assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))
    assert seen[-1][1] == ROWS
    assert generations == ["1.3", "1.4"]
    assert finish(make_config(tmp_path), source).state.position == ROWS


def test_finished_run_is_left_alone_until_there_are_new_rows(tmp_path):
    def files(folder=tmp_path):
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    config = make_config(tmp_path)
    finish(config)
    before = files()
    assert finish(config).state.position == ROWS
    assert files() == before

    before = files(tmp_path / "mixed")
    finish(replace(config, model=replace(config.model, name="other")))
    assert files(tmp_path / "mixed") == before
    assert Repository(tmp_path).models() == ["mixed", "other"]

    longer = finish(config, MixedSource(ROWS + 96))
    assert longer.state.position == ROWS + 96
    assert served_as_bytes(replayed(tmp_path).export()) == served_as_bytes(exported(longer.trainer))

    # Without its checkpoints it publishes the next version.
    shutil.rmtree(tmp_path / ".checkpoints")
    run = finish(config)
    assert Repository(tmp_path).versions("mixed") == [1, 2]
    assert run.state.version == 2
    assert served_as_bytes(replayed(tmp_path).export()) == served_as_bytes(exported(run.trainer))


@pytest.mark.parametrize("settings", [{"epochs": 3}, {"epochs": 2, "patience": 1}], ids=["epochs", "early stopping"])
def test_only_the_last_epoch_learns_the_held_out_rows(settings, tmp_path):
    config = make_config(tmp_path, holdout=0.25, **settings)
    run = TrainingRun(config, MixedSource(ROWS))
    learned = []
    learn = run.trainer.learn
    run.trainer.learn = lambda work: learned.append((work.batch.start, work.batch.end)) or learn(work)
    try:
        run.full()
    finally:
        del run.trainer.learn
    assert learned == [(0, 64), (64, 128), (128, 192)] * settings["epochs"] + [(192, 256)]
    assert len(run.held_out) == 64


@pytest.mark.parametrize(
    ("publish", "deltas"),
    [({"full_rows": 0, "delta_rows": 0}, 0), ({"delta_rows": 0, "delta_seconds": 1e-9}, -(-(ROWS - FULL_ROWS) // 64))],
    ids=["none", "by time after each batch"],
)
def test_deltas_are_those_that_are_due(tmp_path, publish, deltas):
    config = make_config(tmp_path)
    run = finish(replace(config, publish=replace(config.publish, **publish)))
    assert (run.state.position, run.state.step) == (ROWS, deltas)
    assert len(list((tmp_path / "mixed" / "1" / "deltas").iterdir())) == deltas
    assert served_as_bytes(replayed(tmp_path).export()) == served_as_bytes(exported(run.trainer))


LEFT_OUT = {"optimizer": "", "batch_rows": 0, "learning_rate": 0, "dense_learning_rate": 0, "initial_accumulator": 0}


def test_omitted_settings_are_chosen_logged_and_kept(tmp_path):
    config, notes = make_config(tmp_path, full_rows=0, delta_rows=0, **LEFT_OUT), Notes()
    first = TrainingRun(config, MixedSource(ROWS), reporter=notes)
    assert notes.notes == ["defaults: adagrad 0.05, network 0.001, batch 32 for 584 rows"]
    assert first.config.train.initial_accumulator == 1e-6
    first.full()

    longer = MixedSource(ROWS)
    longer.count_rows = lambda: 100 * ROWS
    again = TrainingRun(config, longer, reporter=notes)
    assert again.config == first.config
    assert not any(note.startswith("defaults") for note in notes.notes[1:])
    rate = {**LEFT_OUT, "learning_rate": 0.2}
    changed = TrainingRun(make_config(tmp_path, full_rows=0, delta_rows=0, **rate), MixedSource(ROWS))
    assert changed.config.train == replace(first.config.train, learning_rate=0.2)


def test_omitted_transform_is_chosen_by_the_first_rows_and_kept(tmp_path, monkeypatch):
    features = [replace(f, transform="") for f in FEATURES]
    config, notes = make_config(tmp_path, features, full_rows=0, delta_rows=0), Notes()
    monkeypatch.setattr(
        resolved_config, "measure_transforms", lambda source, features: {"price": "log1p", "age": "none"}
    )
    first = TrainingRun(config, MixedSource(ROWS), reporter=notes)
    assert notes.notes == ["defaults: log1p of price"]
    assert [f.transform for f in first.config.features] == ["none"] * 6 + ["log1p", "none"]
    assert [f.log1p for f in first.trainer.manifest.features] == [False] * 6 + [True, False]
    first.full()

    monkeypatch.setattr(
        resolved_config, "measure_transforms", lambda source, features: {"price": "none", "age": "log1p"}
    )
    assert TrainingRun(config, MixedSource(ROWS)).config == first.config


def test_checkpoint_older_than_defaults_keeps_its_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(run_start, "kept", lambda settings: {})
    TrainingRun(make_config(tmp_path, **BEFORE), MixedSource(ROWS)).full()
    run = TrainingRun(make_config(tmp_path, **LEFT_OUT), MixedSource(ROWS))
    assert {key: getattr(run.config.train, key) for key in BEFORE} == BEFORE
    assert run.config.train.epochs == 1


def test_changed_or_excessive_full_rows_are_logged(tmp_path):
    notes = Notes()
    run = TrainingRun(make_config(tmp_path, full_rows=1000), MixedSource(ROWS), reporter=notes)
    run.run()
    assert len(run.held_out) == round(ROWS * 0.1)
    assert any(note.startswith("publish.full_rows is 1,000, the data have 584 rows") for note in notes.notes)

    TrainingRun(make_config(tmp_path, full_rows=256), MixedSource(ROWS), reporter=notes)
    assert notes.notes[-1].startswith("publish.full_rows is 256 and was 1,000 when version 1 was made")


def test_advice_for_a_poor_auc_follows_in_the_next_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        run_summary, "next_step", lambda scored, steps, named: f"{len(scored)} rows, {steps} steps, {named}"
    )
    notes, config = Notes(), make_config(tmp_path, delta_rows=0, initial_accumulator=0, batch_rows=0)
    TrainingRun(config, MixedSource(ROWS), reporter=notes).run()
    held_out, baseline, counting = notes.notes[-4:-1]
    assert held_out.startswith("held out: AUC ")
    assert baseline.startswith("baseline: popularity AUC ")
    assert counting.startswith("the network does not beat counting (popularity, AUC ")
    named = ["train.optimizer", "train.learning_rate", "train.dense_learning_rate"]
    assert notes.notes[-1] == f"26 rows, 9 steps, {named}"


def test_empty_or_endless_data_is_refused_in_one_line(tmp_path):
    with pytest.raises(BadInput, match="at least one row"):
        finish(make_config(tmp_path / "a", full_rows=0, delta_rows=0), MixedSource(0))
    endless = SyntheticSource(users=10, items=10)
    features = [FeatureConfig("user_id", "id", "user_id", 4)]
    with pytest.raises(BadInput, match="has no end"):
        TrainingRun(make_config(tmp_path / "b", features, full_rows=0, delta_rows=0), endless).full()


def published_files(repository):
    """Every file that a server may have read by now, with its bytes: none may ever change."""
    folders = [path for path in (repository / "mixed").glob("*") if path.name[0] != "."]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {path: path.read_bytes() for path in files}


class Killed(BaseException):
    """Stands for kill -9: nothing that catches Exception may catch it."""


class Disk:
    """Counts the commits of a run: every rename, link and removal of a file that a reader may open.

    before(n): called ahead of commit n; it copies the disk, or raises Killed. What a reader can never see (files of a
    version that is still hidden) is no commit, but for the last of them.
    """

    def __init__(self, monkeypatch, before):
        self.count, self._before = 0, before
        for name in ("replace", "rename", "link", "unlink"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real):
        def call(path, *args, **options):
            target = str(args[0] if args else path)
            hidden = "/mixed/." in target and not target.endswith("/model.json")
            if not target.endswith(".tmp") and not hidden:
                self.count += 1
                self._before(self.count - 1)
            return real(path, *args, **options)

        return call


@pytest.fixture
def every_batch_saved(monkeypatch):
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: its last snapshot, what each generation held, and the disk ahead of each of its commits."""

    last: dict = field(repr=False)
    generations: dict = field(repr=False)
    disks: Path
    commits: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory, _compiled):
    folder = tmp_path_factory.mktemp("whole")
    repository, disks = folder / "repository", folder / "disks"
    generations = {}
    with pytest.MonkeyPatch.context() as patch:
        stand_in(_compiled, patch)
        patch.setattr(running, "CHECKPOINT_SECONDS", 0.0)
        disk = Disk(patch, lambda n: shutil.copytree(repository, disks / f"{n:03d}"))
        run = TrainingRun(make_config(repository), MixedSource(ROWS))
        for generation in itertools.chain([run.full()], run.stream()):
            generations[generation] = served_as_bytes(exported(run.trainer))
    kept = [path for path in disks.rglob(".checkpoints/mixed/*.safetensors") if path.name[0] != "."]
    kinds = sorted({path.name.split(".", 1)[1] for path in kept})
    assert kinds == ["full.safetensors", "inc.safetensors"]
    assert disk.count > 4 + 3 + 3 * DELTAS
    return Whole(snapshot(run.trainer), generations, disks, disk.count)


def test_increments_outweigh_the_full_checkpoint_by_at_most_one(whole):
    phases = set()
    for commit in range(whole.commits):
        disk = whole.disks / f"{commit:03d}"
        checkpoints = (disk / ".checkpoints" / "mixed").glob("*.safetensors")
        files = sorted(path for path in checkpoints if path.name[0] != ".")
        fulls = [i for i, path in enumerate(files) if ".full." in path.name]
        if not fulls:
            continue
        full, *increments = (path.stat().st_size for path in files[fulls[-1] :])
        assert sum(increments[:-1]) <= full, commit
        if fulls[-1] > 0:
            phases.add(bool(Repository(disk).versions("mixed")))
    assert phases == {False, True}


@pytest.mark.long
@pytest.mark.usefixtures("every_batch_saved")
def test_run_killed_before_any_commit_resumes_bitwise_equal(whole, tmp_path):
    for commit in range(whole.commits):
        repository = tmp_path / f"{commit:03d}"
        shutil.copytree(whole.disks / f"{commit:03d}", repository)
        if Repository(repository).versions("mixed"):
            left = replayed(repository)
            assert served_as_bytes(left.export()) == whole.generations[left.generation], commit
        published = published_files(repository)

        run = finish(make_config(repository))

        assert published.items() <= published_files(repository).items(), commit
        assert differing(snapshot(run.trainer), whole.last) == [], commit
        version = replayed(repository)
        assert version.generation == Generation(1, DELTAS)
        assert served_as_bytes(version.export()) == whole.generations[version.generation], commit


@pytest.mark.long
@pytest.mark.usefixtures("every_batch_saved")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=st.lists(st.integers(0, 9), min_size=2, max_size=6))
def test_repeatedly_killed_run_ends_bitwise_equal(lives, whole, tmp_path_factory):
    repository = tmp_path_factory.mktemp("lives") / "repository"
    published = {}

    def die_at(last):
        def before(commit):
            if commit == last:
                raise Killed

        return before

    for commits in lives:
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, die_at(commits))
            with contextlib.suppress(Killed):
                finish(make_config(repository))
        if Repository(repository).versions("mixed"):
            left = replayed(repository)
            assert served_as_bytes(left.export()) == whole.generations[left.generation]
        assert published.items() <= published_files(repository).items()
        published = published_files(repository)

    run = finish(make_config(repository))
    assert differing(snapshot(run.trainer), whole.last) == []
    assert served_as_bytes(replayed(repository).export()) == whole.generations[Generation(1, DELTAS)]


def test_fused_outputs_are_published_and_served_with_their_constants(tmp_path):
    config = replace(make_config(tmp_path), fusion={"final": "score ** 2.0 * (age + 40)"})

    finish(config)

    version = VersionReader(Repository(tmp_path).folder("mixed", 1))
    assert [o.name for o in version.manifest.outputs] == ["final", "score"]
    assert version.manifest.notes["fusion"] == dict(config.fusion)
    assert version.dense()["fusion/final"].tolist() == [2.0, 40.0]
    # Constants are not trained: no delta repeats them.
    deltas = list((tmp_path / "mixed" / "1" / "deltas").iterdir())
    assert len(deltas) == DELTAS
    assert all("fusion/final" not in read_delta(path).dense for path in deltas)


def test_run_leaves_configuration_metrics_and_report_next_to_the_repository(tmp_path):
    config = replace(make_config(tmp_path), evaluate=EvaluateConfig(("city", "tags"), "user"))
    notes = Notes()
    summary = TrainingRun(config, MixedSource(ROWS), reporter=notes).run()

    (folder,) = (tmp_path / ".runs" / "mixed").iterdir()
    assert summary.report == folder / "report.html"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["generation"] for line in lines if line["what"] == "published"] == [
        f"1.{n}" for n in range(DELTAS + 1)
    ]
    (whole,) = (line for line in lines if line["what"] == "all")
    assert notes.notes[1].startswith(f"held out: AUC {whole['auc']:.4f}, log-loss {whole['log_loss']:.4f} over 26 rows")
    assert (whole["label"], whole["group"]) == ("label", "user")
    assert {line["by"] for line in lines if line["what"] == "slice"} == {"city", "tags"}
    last = [line for line in lines if line["what"] == "progress"][-1]
    assert (last["rows"], last["position"]) == (ROWS, ROWS)
    assert last["table_rows"].keys() == {"user", "item", "city", "tag"}
    assert json.loads((folder / "config.json").read_text())["train"]["batch_rows"] == 64
    assert Repository(tmp_path).models() == ["mixed"]


def test_each_epoch_shuffles_differently_and_a_killed_run_resumes(tmp_path, monkeypatch):
    settings = {"epochs": 2, "shuffle_rows": 100, "batch_rows": 32}
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)
    wanted = snapshot(finish(make_config(tmp_path / "whole", **settings)).trainer)
    in_order = snapshot(finish(make_config(tmp_path / "order", **settings | {"shuffle_rows": 0})).trainer)
    assert differing(wanted, in_order)

    for kill in (3, 11):
        config = make_config(tmp_path / f"killed {kill}", **settings)
        run = TrainingRun(config, MixedSource(ROWS))
        learn, steps = run.trainer.learn, itertools.count()
        seen = []

        def dying(work, learn=learn, steps=steps, seen=seen, kill=kill):
            if next(steps) == kill:
                raise KeyboardInterrupt
            seen.append(work.batch.columns["user"].copy())
            return learn(work)

        monkeypatch.setattr(run.trainer, "learn", dying)
        with pytest.raises(KeyboardInterrupt):
            run.run()
        again = finish(config)
        assert not differing(snapshot(again.trainer), wanted)
    epochs = [np.concatenate(seen[:8])[:230], np.concatenate(seen[8:11])]
    assert (epochs[0][: len(epochs[1])] != epochs[1]).any()
