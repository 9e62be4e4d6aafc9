"""Switches extensions off in this process, as FRESHET_EXTENSIONS does when a process starts, installs toys, and marks
tests of the core that need an extension."""

from __future__ import annotations

import importlib.util
import pkgutil
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from freshet_serving.processor import extensions as of_engine
from freshet_serving.processor.ports import ENGINE, NONE, ONLY
from freshet_serving.serving import extensions as of_server
from freshet_serving.serving.ports import SERVER


def there(name: str) -> bool:
    """Return whether an extension lies in this tree: `make core-alone` has none."""
    return any(importlib.util.find_spec(f"{package.__name__}.{name}") for package in (of_engine, of_server))


def needs(*names: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test of the core where an extension that it uses is not there."""
    missing = [name for name in names if not there(name)]
    return pytest.mark.skipif(bool(missing), reason=f"needs extensions: {', '.join(missing)}")


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave out extensions of the engine and of the server by their names; all others stay."""
    folders = {m.name for package in (of_engine, of_server) for m in pkgutil.iter_modules(package.__path__) if m.ispkg}
    monkeypatch.setenv(ONLY, ",".join(sorted(folders - set(names))) or NONE)
    for extensions in (ENGINE, SERVER):
        monkeypatch.setattr(extensions, "_known", None)


@contextmanager
def install(monkeypatch: pytest.MonkeyPatch, folder: Path, toy: str) -> Iterator[None]:
    """Install a toy of tests/extensions beside the engine's extensions for the time of a test, in an empty folder."""
    shutil.copytree(
        Path(__file__).parents[1] / "extensions" / toy,
        folder / "installed" / toy,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    monkeypatch.setattr(of_engine, "__path__", [*of_engine.__path__, str(folder / "installed")])
    monkeypatch.setattr(ENGINE, "_known", None)
    yield
    name = f"{of_engine.__name__}.{toy}"
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]


@pytest.fixture
def without_extensions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that leaves out extensions, by their names, until the test ends."""
    return lambda *names: without(monkeypatch, *names)
