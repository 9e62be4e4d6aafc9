"""Fixtures of the engine's tests; a file whose repository is another one has its own."""

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.processor.engines import USERS, processors
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import opened, publish
from tests.support.packages import write_package


@pytest.fixture
def root(tmp_path):
    """A repository with one version of model "small"."""
    write_package(tmp_path / "repository", users=USERS)
    return tmp_path / "repository"


@pytest.fixture
def bucket():
    """An object store in memory."""
    return Bucket()


@pytest.fixture
def trainer(bucket, tmp_path):
    """Who publishes into it: the chain of version 1 of model "small"."""
    return ChangeLog.of(publish(opened(bucket, tmp_path / "trainer"), tmp_path, users=range(20)))


@pytest.fixture
def open_processor(root):
    """build(**config): a processor on `root`, closed at the end."""
    with processors(root) as build:
        yield build
