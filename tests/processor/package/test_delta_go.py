"""A delta that somebody else's program wrote, by docs/reference/delta-format.md alone: the example in Go."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.delta import parse_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import make_delta, make_weights, write_package

EXAMPLE = Path(__file__).parents[3] / "examples" / "publish_delta.go"
pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="needs Go: Debian's golang-go")


@pytest.fixture(scope="module")
def drop(tmp_path_factory):
    """Runs the example; returns what it said on either stream."""
    folder = tmp_path_factory.mktemp("go")
    env = os.environ | {"GOCACHE": str(folder / "cache"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    binary = folder / "publish_delta"
    subprocess.run(["go", "build", "-o", binary, EXAMPLE], env=env, check=True, capture_output=True, timeout=300)

    def run(folder, changes, step=1, parent=0, model="small"):
        place = ["-deltas", str(folder / "deltas"), "-model", model, "-step", str(step), "-parent", str(parent)]
        result = subprocess.run([binary, *place], input=json.dumps(changes), capture_output=True, text=True, timeout=60)
        return result.stdout + result.stderr

    return run


def test_file_dropped_by_a_go_program_becomes_a_delta(tmp_path, drop):
    folder = write_package(tmp_path / "repository")
    weights = make_weights(4)["mlp_0/bias"]
    changes = {
        "tables": {
            "user": {"dim": 4, "keys": [30, -2], "rows": [[1.5, -0.0, 3e-30, 4], [0.1, 0.2, 0.3, 0.4]], "removed": [7]},
            "tag": {"dim": 4, "removed": [-(2**63), 2**63 - 1]},
        },
        "dense": {"mlp_0/bias": {"shape": list(weights.shape), "values": weights.tolist()}},
    }

    assert drop(folder, changes).startswith("small 1.1: ")
    change_log = ChangeLog.of(Repository(tmp_path / "repository").version("small"))

    assert change_log.history.head.step == 1
    delta = change_log.read_delta(change_log.history.head)
    assert delta.tables["user"].keys.tolist() == [30, -2]
    wanted = np.array(changes["tables"]["user"]["rows"], np.float32)
    assert delta.tables["user"].rows.tobytes() == wanted.tobytes()
    assert delta.tables["user"].removed.tolist() == [7]
    assert delta.dense["mlp_0/bias"].tobytes() == weights.tobytes()
    assert delta.tables["tag"].removed.tolist() == [-(2**63), 2**63 - 1]
    assert (delta.rows, delta.removed, delta.events) == (2, 3, 0)


def test_delta_after_a_rollback_takes_a_new_step(tmp_path, drop):
    folder = write_package(tmp_path / "repository")
    change_log = ChangeLog.of(Repository(tmp_path / "repository").version("small"))
    for step in (1, 2):
        change_log.publish(make_delta(step, [step]))
    change_log.rollback(1)
    rows = {"tables": {"user": {"dim": 4, "keys": [3], "rows": [[1, 2, 3, 4]]}}}

    assert drop(folder, rows, step=3, parent=1).startswith("small 1.3: ")
    again = ChangeLog.of(Repository(tmp_path / "repository").version("small"))
    assert [link.step for link in again.history.line()] == [0, 1, 3]
    assert "file exists" in drop(folder, rows, step=3, parent=1)


def test_non_ascii_names_are_spelled_as_the_checksum_requires(tmp_path, drop):
    model = 'größe "x" \\ \t\x7f\x01 \U0001f600'
    (tmp_path / "deltas").mkdir()
    said = drop(tmp_path, {"dense": {"gewicht/ß": {"shape": [2], "values": [1, 2]}}}, model=model)
    assert said.endswith("bytes\n"), said
    delta = parse_delta((tmp_path / "deltas" / "1.safetensors").read_bytes())
    assert delta.model == model
    assert delta.dense["gewicht/ß"].tolist() == [1.0, 2.0]
