import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.foreign_models import venvs
from loadtest.bench.foreign_models.catalogue import OWN, TREES


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
    monkeypatch.setattr(venvs.venv, "create", lambda home, with_pip: home.mkdir(parents=True, exist_ok=True))


def test_own_environment_is_this_one(tmp_path):
    assert venvs.python_of(tmp_path, OWN) == Path(sys.executable)


def test_environment_is_made_once(tmp_path, monkeypatch, create):
    pip = Pip()
    monkeypatch.setattr(venvs, "subprocess", pip)
    assert venvs.python_of(tmp_path, TREES) == tmp_path / TREES / "bin" / "python"
    assert ["--no-deps" in command for command in pip.commands] == [False, True]
    venvs.python_of(tmp_path, TREES)
    assert len(pip.commands) == 2


def test_missing_package_is_the_reason_and_is_tried_again(tmp_path, monkeypatch, create):
    pip = Pip("xgboost")
    monkeypatch.setattr(venvs, "subprocess", pip)
    for _ in range(2):
        with pytest.raises(venvs.NoEnvironment, match="pip cannot make trees: ERROR: no xgboost"):
            venvs.python_of(tmp_path, TREES)
    assert len(pip.commands) == 4
