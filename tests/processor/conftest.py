"""Fixtures of the engine's tests; a file whose repository is another one has its own."""

import os

import pytest

from tests.processor.engines import USERS, processors
from tests.support.packages import write_package


@pytest.fixture(autouse=True)
def disk_is_not_waited_for(monkeypatch):
    """fsync() checks its descriptor and returns: processes are killed here, machines are not."""
    monkeypatch.setattr(os, "fsync", lambda file: os.fstat(file if isinstance(file, int) else file.fileno()))


@pytest.fixture
def root(tmp_path):
    """A repository with one version of model "small"."""
    write_package(tmp_path / "repository", users=USERS)
    return tmp_path / "repository"


@pytest.fixture
def open_processor(root):
    """build(**config): a processor on `root`, closed at the end."""
    with processors(root) as build:
        yield build
