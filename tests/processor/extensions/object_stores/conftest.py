"""Fixtures of the tests of object stores."""

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import opened, publish


@pytest.fixture
def bucket():
    """An object store in memory."""
    return Bucket()


@pytest.fixture
def trainer(bucket, tmp_path):
    """Who publishes into it: the chain of version 1 of model "small"."""
    return ChangeLog.of(publish(opened(bucket, tmp_path / "trainer"), tmp_path, users=range(20)))
