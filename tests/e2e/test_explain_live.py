"""Explanations on a live server: in the layout of its cores and alone, while deltas come, and of models that were
trained: what is explained, pooled by plain numpy, is what the data port has answered."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.extensions.explaining.spare_executable import ScoringPath, SpareExecutables
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.package.subgraphs import SCORE, USER, user_features
from freshet_serving.serving.commands.cli import app
from tests.e2e.servers import ALONE, LiveServer
from tests.support.explained import scores_by_hand
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, REQUESTS = 8000, 60


def explain(server, model, wanted=200, **asked):
    status, answer = server.post_json(f"/admin/models/{model}/explain", asked)
    assert status == wanted, answer
    return answer


def upload(server, tmp_path, *args, **changes):
    write_delta(tmp_path / "delta", make_delta(*args, **changes))
    assert server.upload("small", (tmp_path / "delta").read_bytes())[0] == 200


REQUEST = {"user": [3, 900, 2**53 + 1], "tags": [["a", "zz"], [], ["b"]], "floats": [[0.5, 1.0, -2.0, 0.1]] * 3}


@pytest.mark.parametrize("layout", [(), ALONE, (*ALONE, "--sessions", "2")], ids=["default", "inline", "threads"])
def test_explanation_equals_served_scores_before_and_after_a_delta(tmp_path, layout):
    root = tmp_path / "repository"
    write_package(root, users=range(20))
    options = (*layout, "--undo-depth", "2", "--record", str(tmp_path / "recordings"), "--record-share", "1")
    with LiveServer(root, *options, log=tmp_path / "log") as server:
        served = {}
        body = json.dumps({"inputs": REQUEST}).encode()
        status, _, _ = server.request("POST", "/v1/models/small:predict", body, {"x-request-id": "first"})
        assert status == 200
        for step, changes in enumerate([{}, {"users": [3]}, {"users": [900], "dense_seed": 1}, {"removed": [3]}]):
            if step:
                upload(server, tmp_path, step, **changes)
            served[step], generation = server.predict("small", REQUEST)
            assert generation == f"1.{step}"
        for row in range(3):
            for step in (1, 2, 3):
                answer = explain(server, "small", inputs=REQUEST, row=row, generation=f"1.{step}", against="1.3")
                side = answer["sides"][0]
                assert side["generation"] == f"1.{step}"
                assert abs(side["outputs"]["score"][0] - np.ravel(served[step])[row]) < 1e-6
        answer = explain(server, "small", inputs=REQUEST, against="1.1")
        now, before = answer["sides"]
        assert {m["what"] for m in answer["moved"]} == {"feature user", "dense weights"}
        assert now["inputs"]["user"]["ids"][0]["why"] == "removed"
        assert before["inputs"]["user"]["ids"][0]["step"] == 1
        assert ("supervisor" in now["computed_by"]) == (layout == ())
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert ("onnxruntime" in mapped) == (layout != ()), "a supervisor runs no backend itself"
        assert "evaluate --generation 1.0" in explain(server, "small", 409, inputs=REQUEST, against="1.0")["error"]
        # It is recorded once the file is whole: what was asked first is written when the server ends.
        assert "was not recorded" in explain(server, "small", 404, request_id="second")["error"]
        assert server.generation("small") == "1.3"
    if layout:
        return
    with LiveServer(root, *options, log=tmp_path / "log") as server:
        recorded = explain(server, "small", request_id="first")
        assert recorded["recorded"]["generation"] == "1.0"
        assert abs(recorded["recorded"]["outputs"]["score"][0] - np.ravel(served[0])[0]) < 1e-6
        result = CliRunner().invoke(
            app, ["explain", "small", "--request-id", "first", "--admin", f"http://127.0.0.1:{server.admin_port}"]
        )
        assert result.exit_code == 0, result.exception
        assert "small, row 0 of 3" in result.stdout


def test_pinned_version_is_compared_with_the_newest(tmp_path):
    root = tmp_path / "repository"
    write_package(root, 1, users=range(20))
    with LiveServer(root, *ALONE, log=tmp_path / "log") as server:
        status, _ = server.post_json("/admin/models/small/labels/stable", {"version": 1}, "PUT")
        assert status == 200
        write_package(root, 2, users=range(5), seed=3)
        until(lambda: server.generation("small") == "2.0")
        pinned = explain(server, "small", inputs=REQUEST, version=1)["sides"][0]
        assert pinned["generation"] == "1.0"
        answer = explain(server, "small", inputs=REQUEST, label="stable", against="2.0")
        assert [side["generation"] for side in answer["sides"]] == ["1.0", "2.0"]
        assert "dense weights" in {m["what"] for m in answer["moved"]}


def random_requests(source, manifest, rng, most_rows):
    """Requests of random rows of a source, as JSON; every other one is a user's, whose inputs have one row for all."""
    from freshet_serving.serving.commands.demo import as_json

    users = {f.input for f in user_features(manifest.features)}
    for n in range(REQUESTS):
        batch = next(iter(source.batches(int(rng.integers(1, most_rows)), int(rng.integers(ROWS)))))
        inputs = {name: as_json(column) for name, column in batch.columns.items()}
        yield n, {name: rows[:1] if n % 2 and name in users else rows for name, rows in inputs.items()}


@pytest.mark.tensorflow
@pytest.mark.parametrize("arch", ["deepfm", "dlrm", "two_tower", "mmoe"])
def test_numpy_pooling_of_trained_rows_reproduces_served_scores(arch, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.models.config.train_config import load_config
    from freshet_serving.models.data.open_data import open_source
    from freshet_serving.models.training.loop import TrainingRun
    from freshet_serving.models.training.publication import publish_version
    from tests.models.data.sources import real_data
    from tests.models.training.test_zoo_examples import DATA, section

    monkeypatch.setattr(
        "freshet_serving.models.training.full_versions.publish_version", partial(publish_version, buckets=(1, 16, 64))
    )
    form = section(arch, "data")["format"]
    sets = {"data.path": real_data(DATA[form]), "data.format": form, "publish.repository": str(tmp_path / "r")}
    whole = [f'{key}="{value}"' for key, value in sets.items()]
    steps = [f"publish.full_rows={ROWS}", "publish.delta_rows=500", "train.seed=5"]
    config = load_config(EXAMPLES / f"{arch}.toml", [*whole, *steps])
    run = TrainingRun(config, open_source(config.data, config.features))
    run.full()
    for generation in run.stream():
        if generation.step == 3:
            break
    rng, worst = np.random.default_rng(7), 0.0
    engine = Processor.initialize(ProcessorConfig(str(tmp_path / "r"), sessions=1))
    with engine, LiveServer(tmp_path / "r", *ALONE, log=tmp_path / "log") as server:
        version = engine.host.catalogue[arch].pick()
        assert str(version.generation) == server.generation(arch)
        for n, inputs in random_requests(run.source, version.manifest, rng, 100):
            served, generation = server.predict(arch, inputs)
            scores = served if isinstance(served, dict) else {version.manifest.outputs[0].name: served}
            row = int(rng.integers(max(map(len, inputs.values()))))
            answer = explain(server, arch, inputs=inputs, row=row, vectors=True, against=f"{generation[:-1]}1")
            side = answer["sides"][0]
            assert side["generation"] == generation
            by_hand = scores_by_hand(version.files, version.dense, side)
            for name, values in scores.items():
                worst = max(worst, np.abs(by_hand[name] - np.ravel(values[row])).max())
                worst = max(worst, np.abs(np.array(side["outputs"][name]) - np.ravel(values[row])).max())
            assert worst < 1e-6, (n, row, worst)
        if USER in version.manifest.graphs:
            bucket = min(e.bucket for e in version.manifest.executables if e.subgraph == SCORE)
            x = rng.standard_normal((5, version.manifest.width)).astype(np.float32)
            whole, parts = (
                SpareExecutables().score(version.files, way, version.dense, {MATRIX: x})
                for way in (ScoringPath(16), ScoringPath(bucket, parts=True))
            )
            for name, values in whole.outputs.items():
                np.testing.assert_allclose(parts.outputs[name], values, atol=1e-5)
    print(f"{arch}: {REQUESTS} requests, off by {worst:.2g} at most")
