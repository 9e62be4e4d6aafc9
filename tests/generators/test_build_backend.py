"""A wheel is built with compiled kernels where they can be compiled, and without them where they cannot."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
build_meta = pytest.importorskip("setuptools.build_meta", reason="building a wheel needs setuptools")

from generators import build_backend  # noqa: E402


@pytest.fixture
def steps(monkeypatch):
    """The commands that are run before setuptools builds."""
    monkeypatch.chdir(ROOT)
    commands = []
    monkeypatch.setattr(build_backend.subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(build_meta, "build_wheel", lambda *folders: f"{len(commands)}.whl")
    monkeypatch.setattr(build_meta, "get_requires_for_build_wheel", lambda settings: ["wheel"])
    return commands


def test_kernels_are_compiled_before_the_wheel_is_built(steps):
    assert build_backend.build_wheel("out") == "1.whl"
    assert steps == [[sys.executable, "-m", "freshet_serving.processor.kernels"]]


def test_wheel_is_built_without_kernels_where_numba_is_missing(steps, monkeypatch, capsys):
    monkeypatch.setattr(build_backend, "find_spec", lambda library: None if library == "numba" else object())
    assert build_backend.build_wheel("out") == "0.whl"
    assert "kernels are not compiled" in capsys.readouterr().err


def test_wheel_needs_the_compilers_that_it_pins(steps):
    needed = build_backend.get_requires_for_build_wheel()
    assert needed[0] == "wheel"
    assert {line.partition("=")[0].partition(">")[0] for line in needed[1:]} == set(build_backend.COMPILERS)
    assert [line for line in needed if line.startswith(("numba", "llvmlite")) and "==" not in line] == []


def test_source_distributions_and_editable_installs_are_those_of_setuptools():
    for hook in ("build_sdist", "build_editable", "get_requires_for_build_editable"):
        assert getattr(build_backend, hook) is getattr(build_meta, hook)
