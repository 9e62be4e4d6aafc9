import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from loadtest.bench.foreign_models import catalogue
from loadtest.bench.foreign_models.catalogue import OWN, TREES

LISTED = catalogue.entries()
ALL = [entry for listed in catalogue.LISTS for entry in catalogue.entries(listed)]
FEWEST, ZOO = 5, 15


def test_list_has_eighty_models_of_every_family():
    families = Counter(entry.family for entry in LISTED)
    assert len({entry.name for entry in LISTED}) == len(LISTED) == 80
    assert families.pop("zoo") == ZOO
    assert len(families) == 11
    assert min(families.values()) >= FEWEST


def test_names_differ_and_aims_are_within_the_lists():
    assert len({entry.name for entry in ALL}) == len(ALL)
    assert all(0 < catalogue.AIMS[listed] <= len(catalogue.entries(listed)) for listed in catalogue.LISTS)


@pytest.mark.parametrize("builder", sorted({entry.builder for entry in ALL}))
def test_every_model_has_a_builder(builder):
    path = Path(catalogue.__file__).parent / "builders" / f"{builder}.py"
    tree = ast.parse(path.read_text())
    tables = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODELS"
    ]
    built = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    built |= {ast.literal_eval(key) for table in tables for key in table.keys}
    assert {entry.name for entry in ALL if entry.builder == builder} <= built


def test_every_environment_is_made():
    assert {entry.environment for entry in LISTED} == {catalogue.OWN, *catalogue.PACKAGES}


class Pip:
    """Stands for subprocess: keeps the commands, and fails where a package is to be missing."""

    CalledProcessError, TimeoutExpired = subprocess.CalledProcessError, subprocess.TimeoutExpired

    def __init__(self, missing=""):
        self.commands, self.missing = [], missing

    def run(self, command, **_):
        self.commands.append(command)
        if self.missing in command:
            raise self.CalledProcessError(1, command, stderr=f"notice\nERROR: no {self.missing}\n")


@pytest.fixture
def create(monkeypatch):
    monkeypatch.setattr(catalogue.venv, "create", lambda home, with_pip: home.mkdir(parents=True, exist_ok=True))


def test_own_environment_is_this_one(tmp_path):
    assert catalogue.python_of(tmp_path, OWN) == Path(sys.executable)


def test_environment_is_made_once(tmp_path, monkeypatch, create):
    pip = Pip()
    monkeypatch.setattr(catalogue, "subprocess", pip)
    assert catalogue.python_of(tmp_path, TREES) == tmp_path / TREES / "bin" / "python"
    assert ["--no-deps" in command for command in pip.commands] == [False, True]
    catalogue.python_of(tmp_path, TREES)
    assert len(pip.commands) == 2


def test_missing_package_is_the_reason_and_is_tried_again(tmp_path, monkeypatch, create):
    pip = Pip("xgboost")
    monkeypatch.setattr(catalogue, "subprocess", pip)
    for _ in range(2):
        with pytest.raises(catalogue.NoEnvironment, match="pip cannot make trees: ERROR: no xgboost"):
            catalogue.python_of(tmp_path, TREES)
    assert len(pip.commands) == 4
