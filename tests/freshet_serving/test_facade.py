"""What users import, also in projects whose own packages are called as our top folders are."""

import ast
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import freshet_serving

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(*arguments, cwd, path=()):
    """A fresh interpreter, with the folders of `path` before Freshet's own, as PYTHONPATH has it.

    Without site: a finder for editable installations would lend a stranger's package the modules of ours.
    """
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": ":".join(map(str, (*path, ROOT, sysconfig.get_path("purelib"))))},
        capture_output=True,
        text=True,
        timeout=120,
    )


def loaded(code):
    """Which of the libraries and rooms that cost something a program has imported."""
    ours = ("freshet_serving.processor.engine", "freshet_serving.serving.client.client")
    names = ("numba", "onnxruntime", "httpx", "grpc", "redis", *ours)
    result = run("-c", f"{code}\nimport sys\nprint(*[name for name in {names} if name in sys.modules])", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_facade_has_exactly_its_declared_names():
    assert all(getattr(freshet_serving, name).__name__ == name for name in freshet_serving.__all__)
    with pytest.raises(AttributeError, match="module 'freshet_serving' has no attribute 'Procesor'"):
        _ = freshet_serving.Procesor


def test_type_checker_sees_lazily_loaded_names():
    seen = {
        (node.module, alias.name, alias.asname)
        for block in ast.parse(Path(freshet_serving.__file__).read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
    }
    loading = {(module, name, name) for module, names in freshet_serving._MODULES.items() for name in names}
    assert seen == loading


def test_names_load_on_first_use():
    assert loaded("import freshet_serving") == []
    assert loaded("from freshet_serving import AsyncClient, Client, ConnectionLost, Ragged") == [
        "freshet_serving.serving.client.client"
    ]
    engine = loaded("from freshet_serving import PredictRequest, Processor")
    assert not {"redis", "freshet_serving.serving.client.client"} & set(engine)


def test_documented_imports_exist_in_the_facade():
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            for names in re.findall(r"^from freshet_serving import (.*)$", block, re.M):
                assert set(names.split(", ")) <= set(freshet_serving.__all__), page.name
            inner = re.search(r"^from (processor|serving)\b", block, re.M)
            assert not inner, f"{page.name}: the facade is what users import"


@pytest.fixture
def theirs(tmp_path):
    """make(name): an empty file of the user's, `theirs/<name>`."""

    def make(name):
        file = tmp_path / "theirs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    return make


@pytest.fixture
def project(theirs, tmp_path):
    """Return the folder of a project whose own packages have the names of our top folders."""
    for name in ("processor", "compiler", "models", "serving"):
        theirs(f"{name}/__init__.py").write_text(f"raise SystemExit('own {name} was run')")
    return tmp_path / "theirs"


def test_project_packages_named_like_top_folders_are_not_imported(project):
    result = run("-c", "from freshet_serving import Client, Processor, Publisher", cwd=project)
    assert (result.returncode, result.stderr) == (0, "")


def test_command_runs_in_a_project_with_equally_named_packages(project):
    result = run("-m", "freshet_serving", "serve", "--repository", "r", "--workers", "-1", cwd=project)
    assert result.stderr == "freshet: workers: expected 0 (what is best here) to 256, got -1\n"


@pytest.mark.parametrize("name", freshet_serving.__all__)
def test_exported_name_has_a_docstring(name):
    assert getattr(freshet_serving, name).__doc__
