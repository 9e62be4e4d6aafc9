"""What a user imports, and what they are told when a module of theirs has the name of one of ours."""

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
    names = "('numba', 'onnxruntime', 'httpx', 'grpc', 'processor.engine', 'serving.client.client')"
    result = run("-c", f"{code}\nimport sys\nprint(*[name for name in {names} if name in sys.modules])", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_every_name_is_there_and_nothing_else():
    assert all(getattr(freshet_serving, name).__name__ == name for name in freshet_serving.__all__)
    with pytest.raises(AttributeError, match="module 'freshet_serving' has no attribute 'Procesor'"):
        _ = freshet_serving.Procesor


def test_a_type_checker_sees_the_names_that_load_on_first_use():
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
    assert loaded("from freshet_serving import AsyncClient, Client, Lost, Ragged") == ["serving.client.client"]
    assert "serving.client.client" not in loaded("from freshet_serving import PredictRequest, Processor")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_import_what_the_facade_has(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        for names in re.findall(r"^from freshet_serving import (.*)$", block, re.M):
            assert set(names.split(", ")) <= set(freshet_serving.__all__)
        assert not re.search(r"^from (processor|serving)\b", block, re.M), "the facade is what users import"


@pytest.fixture
def theirs(tmp_path):
    """make(name): an empty file of the user's, `theirs/<name>`."""

    def make(name):
        file = tmp_path / "theirs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    return make


@pytest.mark.parametrize("name", ["processor.py", "processor/__init__.py"])
def test_a_program_that_finds_another_processor_is_told_so_before_that_is_run(theirs, tmp_path, name):
    file = theirs(name)
    file.write_text("raise SystemExit('it was run')")
    result = run("-c", "from freshet_serving import Processor", cwd=tmp_path, path=[tmp_path / "theirs"])

    line = f"ImportError: 'processor' is a package of Freshet's, and here the name is taken by {file}: rename that, or"
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(line)


def test_a_script_beside_its_own_serving_is_told_so(theirs):
    file = theirs("serving.py")
    script = file.with_name("ask.py")
    script.write_text("from freshet_serving import Client\n")

    result = run(str(script), cwd=ROOT)

    assert f"the name is taken by {file}" in result.stderr.splitlines()[-1]


def test_names_that_a_program_does_not_need_may_be_taken(theirs, tmp_path):
    for name in ("models/__init__.py", "compiler.py", "serving.py"):
        theirs(name)
    result = run("-c", "from freshet_serving import Processor", cwd=tmp_path / "theirs")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("name", ["serving.py", "processor/__init__.py", "compiler/__init__.py", "models/__init__.py"])
@pytest.mark.parametrize("way", ["PYTHONPATH", "the folder it is started in"])
def test_the_command_says_in_one_line_who_has_the_name(theirs, tmp_path, name, way):
    file = theirs(name)
    folder = tmp_path / "theirs"
    path, cwd = ([folder], tmp_path) if way == "PYTHONPATH" else ([], folder)

    result = run("-m", "freshet_serving", "train", "--config", "none.toml", cwd=cwd, path=path)

    taken = name.removesuffix(".py").partition("/")[0]
    assert result.returncode == 2
    assert result.stderr.startswith("freshet: ")
    assert f"; {taken!r} is a package of Freshet's, and here the name is taken by {file}: rename" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_command_runs_beside_names_that_it_does_not_need(theirs):
    folder = theirs("models/__init__.py").parents[1]
    result = run("-m", "freshet_serving", "serve", "--repository", "r", "--workers", "-1", cwd=folder)
    assert result.stderr == "freshet: workers: 0 (what is best here) to 256 wanted, got -1\n"
