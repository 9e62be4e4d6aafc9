"""A version on disk, and a redis-server that its tables can be pushed to."""

import pytest

from freshet_serving.processor.repository.version import VersionReader
from tests.processor.extensions.remote_rows.fakes import RedisServer
from tests.processor.extensions.remote_rows.processors import USERS
from tests.support.packages import write_package


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    write_package(root, users=USERS)
    return root


@pytest.fixture(scope="module")
def reader(root):
    return VersionReader(root / "small" / "1")


@pytest.fixture
def server():
    server = RedisServer().start()
    yield server
    server.close()
