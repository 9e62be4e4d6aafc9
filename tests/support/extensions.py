"""Switches extensions off in this process, as FRESHET_EXTENSIONS does when a process starts."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable

import pytest

from freshet_serving.processor import extensions as of_engine
from freshet_serving.processor.ports import ENGINE, NONE, ONLY
from freshet_serving.serving import extensions as of_server
from freshet_serving.serving.ports import SERVER


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave out extensions of the engine and of the server by their names; all others stay."""
    folders = {m.name for package in (of_engine, of_server) for m in pkgutil.iter_modules(package.__path__) if m.ispkg}
    monkeypatch.setenv(ONLY, ",".join(sorted(folders - set(names))) or NONE)
    for known in (ENGINE, SERVER):
        monkeypatch.setattr(known, "_known", None)


@pytest.fixture
def without_extensions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that leaves out extensions, by their names, until the test ends."""
    return lambda *names: without(monkeypatch, *names)
