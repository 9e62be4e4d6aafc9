"""The wheel in a project whose own packages are called processor, compiler, models and serving."""

import os
import shutil
import subprocess
import sys

import pytest

from freshet_serving.processor.kernels.code_store import BUNDLES
from tests.models.publishing.torch_trainer import MODEL, write
from tests.models.publishing.torches import WHY, torch_python
from tests.release.archives import lay_out
from tests.release.newcomer import ROOT

TOOLS = ROOT / ".venv" / "tools" / "bin" / "python"
EPOCH_S = 1_700_000_000
CORE = (
    "tests/processor/package",
    "tests/processor/sessions",
    "tests/serving/codecs",
    "tests/models/publishing",
)

OWN_NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.user = torch.nn.Embedding(40, 4, sparse=True)
        self.tag = torch.nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
        self.fc = torch.nn.Linear(8, 1)

    def forward(self, users, tags):
        return self.fc(torch.cat([self.user(users), self.tag(tags)], 1))[:, 0]
"""
TRAINING_SCRIPT = """
import sys
import torch
from models.network import Net
from freshet_serving import Publisher

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.5)
hook = Publisher(sys.argv[1], "torched").torch(net, optimizer, every_batches=1)
for batch in range(3):
    optimizer.zero_grad()
    scores = net(torch.arange(8), torch.arange(24).reshape(8, 3))
    torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.ones(8)).backward()
    optimizer.step()
hook.close()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder that the wheel is unpacked in."""
    if not TOOLS.exists():
        pytest.skip("build tools are not installed: make .venv/.tools")
    work = tmp_path_factory.mktemp("wheel")
    lay_out(ROOT, work / "tree", EPOCH_S)
    # As the project's own backend builds it, but with the kernels of this checkout: to compile them takes two minutes.
    shutil.copytree(BUNDLES, work / "tree" / "processor" / "kernels" / "compiled", dirs_exist_ok=True)
    build = [
        TOOLS,
        "-c",
        "from setuptools import build_meta as b; import sys; b.build_wheel(sys.argv[1])",
        work / "out",
    ]
    (work / "out").mkdir()
    subprocess.run(build, cwd=work / "tree", check=True, capture_output=True)
    (wheel,) = (work / "out").glob("*.whl")
    shutil.unpack_archive(wheel, work / "site", "zip")
    return work / "site"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a project that has tests of ours, and packages of its own that must not be imported."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("processor", "compiler", "models", "serving"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise SystemExit('own {name} was imported')\n")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(*arguments, cwd, site):
    """Run a fresh interpreter that finds the wheel before an editable installation."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COVERAGE"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.long
def test_core_tests_pass_from_the_wheel_despite_name_clashes(site, project):
    found = run("-c", "import freshet_serving.processor.engine as e; print(e.__file__)", cwd=project, site=site)
    assert found.stdout.strip() == str(site / "freshet_serving" / "processor" / "engine.py"), found.stderr

    done = run("-m", "pytest", "-q", "-x", "-m", "not long", "-p", "no:cacheprovider", *CORE, cwd=project, site=site)

    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_pytorch_script_with_its_own_models_package_publishes_deltas(site, tmp_path):
    if torch_python() is None:
        pytest.skip(WHY)
    write(tmp_path / "repository")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    (tmp_path / "models" / "network.py").write_text(OWN_NETWORK)
    (tmp_path / "train.py").write_text(TRAINING_SCRIPT)

    done = subprocess.run(
        [torch_python(), "train.py", "repository"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "repository" / MODEL / "1" / "deltas").glob("*.safetensors"))) >= 2
