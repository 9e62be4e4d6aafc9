"""Models of PyTorch, exported by PyTorch itself, imported and served: what they score there is what comes over HTTP.

FRESHET_TORCH_PYTHON names Pythons that have PyTorch (and onnxscript, for the newer exporter), separated by colons;
without it this one is tried.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")
pytest.importorskip("onnx", reason="importing needs the train extra")

from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.processor.package.delta import Delta, TableDelta, write_delta
from freshet_serving.processor.repository.version import VersionReader
from tests.e2e.servers import ALONE, LiveServer
from tests.support.plugins import environment

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "compiler" / "imports" / "torch_models.py"
MODELS = ("dlrm", "dcn_v2", "two_tower")
EXPORTERS = ("torchscript", "dynamo", "unoptimised")
SIZES = (1, 7, 64, 300)
LACKING = 3
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "pytorch.md"
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
# The request of the tutorial, as PyTorch scores it.
SCORED = """
with torch.no_grad():
    rows = [torch.tensor(v) for v in ([1, 2], [4, 5], [7, 8], [0, 2], [[0.5, 0.1], [0.0, 1.0]])]
    print(model(*rows).tolist())
"""
HERE = [sys.executable] if importlib.util.find_spec("torch") else []
PYTHONS = [p for p in os.environ.get("FRESHET_TORCH_PYTHON", "").split(":") if p] or HERE
if not PYTHONS:
    pytest.skip("no PyTorch: FRESHET_TORCH_PYTHON names no Python that has it", allow_module_level=True)


@pytest.fixture(scope="module", params=[(p, e) for p in PYTHONS for e in EXPORTERS], ids=lambda p: f"{p[0]}-{p[1]}")
def exported(request, tmp_path_factory):
    """A folder with what one exporter of one PyTorch writes, and which they are."""
    python, exporter = request.param
    folder = tmp_path_factory.mktemp("exported")
    done = subprocess.run([python, str(SCRIPT), str(folder), exporter], capture_output=True, text=True, env=CLEAN)
    if done.returncode == LACKING:
        pytest.skip("this PyTorch has no such exporter")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, request.param


@pytest.fixture(scope="module")
def imported(exported, tmp_path_factory):
    repository = tmp_path_factory.mktemp("live") / "repository"
    return repository, {name: import_model(exported[0] / f"{name}.onnx", repository, name) for name in MODELS}


@pytest.fixture(scope="module")
def server(imported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with LiveServer(imported[0], *ALONE, log=folder / "log", env=environment(folder / "plugins")) as running:
        yield running


def request_of(kept, rows):
    """The inputs of a request: bags of ids as lists."""
    mine = {k.partition("/")[2]: kept[k] for k in kept.files if k.startswith(f"{rows}/")}
    inputs = {}
    for name, values in mine.items():
        if f"{name}:offsets" in mine:
            inputs[name] = [part.tolist() for part in np.split(values, mine[f"{name}:offsets"][1:])]
        elif name != "score" and ":" not in name:
            inputs[name] = values.tolist()
    return inputs


def scores(server, name, inputs):
    status, _, body = server.request("POST", f"/v1/models/{name}:predict", json.dumps({"inputs": inputs}).encode())
    assert status == 200, body
    return np.ravel(np.array(json.loads(body)["outputs"], np.float64))


@pytest.mark.parametrize("name", MODELS)
def test_http_scores_equal_pytorch(name, exported, server):
    kept = np.load(exported[0] / f"{name}.npz")
    for rows in SIZES:
        got, wanted = scores(server, name, request_of(kept, rows)), np.ravel(kept[f"{rows}/score"])
        apart = np.abs(got - wanted)
        print(f"{name} {rows} rows: off by {apart.max():.2e}, relative {(apart / np.abs(wanted)).max():.2e}")
        assert apart.max() <= 1e-5
        assert (apart / np.abs(wanted)).max() <= 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_keep_pytorch_names_and_need_no_tensorflow(name, exported, imported):
    state = np.load(exported[0] / f"{name}.state.npz")
    reader = VersionReader(imported[1][name].folder)
    tables = {table.name for table in reader.manifest.tables}
    embeddings = {
        key for key in state.files if key.split(".")[0] in ("tables", "fields", "users", "items", "seen", "tags")
    }

    assert reader.manifest.stage is None
    assert embeddings <= tables


def test_unoptimised_export_keeps_the_state_dict_weights(exported, imported):
    if exported[1][1] != "unoptimised":
        pytest.skip("other exports compute with weights beforehand")
    for name in MODELS:
        state = np.load(exported[0] / f"{name}.state.npz")
        dense = VersionReader(imported[1][name].folder).dense()
        assert dense.keys() <= set(state.files)
        for key, weight in dense.items():
            np.testing.assert_array_equal(weight, state[key])


def test_tutorial_code_exports_as_described(exported, tmp_path):
    """docs/tutorials/pytorch.md, its Python as it stands: run where there is the newer exporter."""
    python, exporter = exported[1]
    if exporter != "dynamo":
        pytest.skip("once a PyTorch")
    code = "\n".join(re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.S)) + SCORED
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=CLEAN)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("ctr", "ctr-torchscript"):
        imported = import_model(tmp_path / f"{name}.onnx", tmp_path / "repository", name)
        reader = VersionReader(imported.folder)
        assert [t.name for t in reader.manifest.embeddings] == ["tags.weight", "items.weight", "users.weight"]
        # The older exporter writes equal tensors once, and the tutorial's model was never trained.
        assert "deep.1.running_var" in reader.dense() or name != "ctr"
        assert reader.manifest.stage is None
    with LiveServer(
        tmp_path / "repository", *ALONE, log=tmp_path / "log", env=environment(tmp_path / "plugins")
    ) as server:
        inputs = json.loads(re.findall(r"-d '(.*?)'", TUTORIAL.read_text(), re.S)[0])["inputs"]
        for name in ("ctr", "ctr-torchscript"):
            np.testing.assert_allclose(
                scores(server, name, inputs), json.loads(done.stdout.splitlines()[-1]), rtol=1e-5, atol=1e-5
            )


def test_table_delta_scores_like_pytorch_with_those_rows(exported, imported, server, tmp_path):
    """A delta that gives a bag's one id the row of another id makes the bag score as the other id's."""
    state = np.load(exported[0] / "dlrm.state.npz")
    inputs = {"dense": [[0.1, 0.2, 0.3, 0.4]] * 2, "brand": [[3], [9]], "shop": [[1], [1]], "genre": [[], []]}
    before = scores(server, "dlrm", inputs)
    row = state["tables.0.weight"][9][None]
    change = TableDelta(np.array([3], np.int64), row, np.empty(0, np.int64))
    write_delta(tmp_path / "delta", Delta("dlrm", 1, 1, 0, {"tables.0.weight": change}, {}, published_at=1.0))

    status, reply = server.upload("dlrm", (tmp_path / "delta").read_bytes())

    assert (status, reply["generation"]) == (200, "1.1")
    after = scores(server, "dlrm", inputs)
    assert before[0] != before[1]
    np.testing.assert_allclose(after, [before[1], before[1]], rtol=1e-6)
