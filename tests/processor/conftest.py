"""Fixtures of the engine's tests; a file whose repository is another one has its own."""

import pytest

from tests.processor.engines import USERS, processors
from tests.support.packages import write_package


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
