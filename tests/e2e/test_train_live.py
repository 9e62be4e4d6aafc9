"""The main job: train, serve, replay the stream through the server, keep it fresh, and be better for it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.errors import FreshetError
from tests.e2e.servers import ALONE, LiveServer
from tests.serving.commands.running import run
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))


def replay(run, server, frozen_scores):
    """Scores each event by the server before it is learned; returns (AUC served, AUC frozen)."""
    from freshet_serving.compiler.building.auc import auc
    from freshet_serving.serving.commands.demo import as_json

    name = run.config.model.name
    labels, served, frozen, generations = [], [], [], []

    def before(batch):
        scores, generation = server.predict(name, {n: as_json(c) for n, c in batch.columns.items()})
        labels.append(batch.label)
        served.append(np.ravel(scores).astype(np.float32))
        frozen.append(frozen_scores(batch))
        generations.append(generation)

    for generation in run.stream(before=before):
        wait_until_served(server, name, str(generation))
    labels = np.concatenate(labels)
    assert len(set(generations)) > 5
    return auc(labels, np.concatenate(served)), auc(labels, np.concatenate(frozen))


def wait_until_served(server, name, generation):
    until(lambda: server.generation(name) == generation)


def frozen_model(tmp_path, run):
    """A processor over a copy of version 1 as first published."""
    from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig

    name = run.config.model.name
    shutil.copytree(Path(run.config.publish.repository) / name / "1", tmp_path / "frozen" / name / "1")
    processor = Processor.initialize(ProcessorConfig(str(tmp_path / "frozen"), sessions=1))
    return processor, lambda b: processor.process(PredictRequest(name, b.columns)).outputs["score"].reshape(-1)


def beats_frozen(tmp_path, config, source):
    from freshet_serving.models.training.loop import TrainingRun

    run = TrainingRun(config, source)
    run.full()
    processor, frozen_scores = frozen_model(tmp_path, run)
    with processor, LiveServer(run.config.publish.repository, *ALONE, log=tmp_path / "serve.log") as server:
        return replay(run, server, frozen_scores)


def test_refreshed_model_beats_the_frozen_one_on_synthetic_data(tmp_path):
    from freshet_serving.models.config.train_config import parse_config
    from freshet_serving.models.data.synthetic import SyntheticSource, default_features

    config = parse_config(
        {
            "model": {"name": "ctr", "hidden": [64]},
            "data": {"path": "synthetic", "label": "label", "format": "parquet"},
            "features": default_features(),
            "publish": {"repository": str(tmp_path / "repository"), "full_rows": 100_000, "delta_rows": 2000},
        }
    )
    served, frozen = beats_frozen(tmp_path, config, SyntheticSource(rows=160_000, drift_rows=400_000))
    print(f"synthetic: AUC served {served:.4f}, frozen {frozen:.4f}")
    assert served > frozen


def test_refreshed_model_beats_the_frozen_one_on_movielens(tmp_path):
    if not (DATA / "ml-1m").is_dir():
        pytest.skip("MovieLens is not at hand; set FRESHET_DATA to the folder that holds ml-1m")
    from freshet_serving.models.config.train_config import parse_config
    from freshet_serving.models.data.open_data import open_source

    raw = {
        "model": {"name": "ml", "hidden": [64]},
        "data": {"path": str(DATA / "ml-1m"), "format": "movielens"},
        "publish": {"repository": str(tmp_path / "repository"), "full_rows": 200_000, "delta_rows": 1000},
    }
    config = parse_config(raw)
    source = Slice(open_source(config.data, config.features), 240_000)
    served, frozen = beats_frozen(tmp_path, config, source)
    print(f"MovieLens slice: AUC served {served:.4f}, frozen {frozen:.4f}")
    assert served > frozen


def test_demo_trains_serves_deltas_and_stops_without_a_failed_request(tmp_path):
    command = [sys.executable, "-m", "freshet_serving", "demo", "--exit-after", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(re.findall(r"│ (.*?) +│ (.*?) +│", done.stdout))
    assert figures["failed requests"] == "0"
    assert int(figures["generation served"].removeprefix("1.")) > 0
    assert int(figures["events scored, then learned"]) > 0
    assert re.search(r"(beats|does not beat) ", done.stdout)


class Slice:
    """The first rows of a source."""

    def __init__(self, source, rows):
        self._source, self._rows = source, rows
        self.schema = source.schema

    def count_rows(self):
        return self._rows

    def batches(self, rows, start=0):
        for batch in self._source.batches(rows, start):
            if batch.start >= self._rows:
                return
            yield batch.slice(0, min(len(batch), self._rows - batch.start))


def write_table(folder, rows=3000):
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    user, item = random.integers(0, 200, rows), random.integers(0, 50, rows)
    lengths = random.integers(0, 6, rows)
    table = {
        "user": user,
        "item": item,
        "city": [["Rome", "Oslo", "", "Zürich"][i % 4] for i in range(rows)],
        "price": np.where(random.random(rows) < 0.1, np.nan, random.exponential(20, rows)).astype(np.float32),
        "seen": [random.integers(0, 50, n).tolist() for n in lengths],
        "tags": [[f"t{t}" for t in random.integers(0, 9, n)] for n in lengths],
        "ts": np.arange(rows) + 1.7e9,
        "clicked": ((user + item) % 3 == 0).astype(np.int8),
        "unused": np.zeros(rows),
    }
    pq.write_table(pa.table(table), folder / "clicks.parquet")
    (folder / "train.toml").write_text(
        """
[model]
name = "shop"
arch = "dlrm"
hidden = [32]
[data]
path = "clicks.parquet"
label = "clicked"
time = "ts"
[features.user]
kind = "id"
dim = 8
side = "user"
[features.item]
kind = "id"
dim = 8
side = "item"
[features.city]
kind = "string"
dim = 8
[features.price]
kind = "float"
transform = "log1p"
[features.seen]
kind = "ids"
table = "item"
dim = 8
combiner = "mean"
max_length = 4
[features.tags]
kind = "strings"
dim = 8
[train]
batch_rows = 256
[publish]
repository = "repository"
full_rows = 2000
delta_rows = 250
"""
    )


def freshet(*arguments, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "freshet_serving", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, what the command printed): a user's own table, its training file and the repository that was made."""
    folder = tmp_path_factory.mktemp("own")
    write_table(folder)
    result = freshet("train", "--config", "train.toml", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_user_table_is_trained_published_and_served(trained, tmp_path):
    folder, printed = trained
    assert "shop 1.4" in printed
    assert "held out: AUC" in printed
    assert "streamed, scored before training: AUC" in printed
    assert "; version 1 as published: AUC" in printed.replace("\n", " ")
    with LiveServer(folder / "repository", *ALONE, log=tmp_path / "serve.log") as server:
        candidates = {
            "user": [7],
            "city": ["Zürich"],
            "tags": [["t1", "t2", "never seen"]],
            "seen": [[1, 2, 3, 4, 5, 6]],
            "item": [1, 2, 3],
            "price": [1.5, 2.5, float("nan")],
        }
        scores, generation = server.predict("shop", candidates)
        assert generation == "1.4"
        assert np.shape(scores) == (3, 1)
        one_by_one = [
            server.predict("shop", candidates | {"item": [i], "price": [p]})[0][0]
            for i, p in zip(candidates["item"], candidates["price"])
        ]
        np.testing.assert_allclose(scores, one_by_one, atol=1e-6)
        trainer = until(lambda: json.loads(server.get("/admin/models", admin=True)[2])["models"]["shop"]["trainer"])
    assert (trainer["state"], trainer["version"], trainer["step"], trainer["problem"]) == ("finished", 1, 4, "")
    assert 0 < trainer["held_out"]["auc"] < 1


def refused(*arguments):
    """The one line that a command, run in this folder, is refused with."""
    with pytest.raises(FreshetError) as error:
        run("train", "--config", "train.toml", *arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_run_that_fails_is_shown_as_failed(trained, tmp_path, monkeypatch):
    folder = shutil.copytree(trained[0], tmp_path / "own")
    monkeypatch.chdir(folder)
    (folder / "clicks.parquet").unlink()
    refused()
    report = json.loads((folder / "repository" / "shop" / "trainer.json").read_bytes())
    assert report["state"] == "failed"
    assert report["error"].startswith("data.path")
    (folder / "clicks.parquet").write_bytes(b"")
    assert "clicks.parquet" in refused()


def test_second_version_of_a_user_table_is_trained_by_command(trained, tmp_path, monkeypatch):
    folder = shutil.copytree(trained[0], tmp_path / "own")
    monkeypatch.chdir(folder)
    assert "shop 2.0 is in" in run("train", "--config", "train.toml", "--new-version")
    text = (folder / "train.toml").read_text().replace('arch = "dlrm"', 'arch = "deepfm"')
    (folder / "train.toml").write_text(text)
    line = refused()
    for words in ("model.arch was 'dlrm' and is 'deepfm'", ".checkpoints/shop", "--new-version --from-scratch"):
        assert words in line
    assert "only allowed with --new-version" in refused("--from-scratch")
