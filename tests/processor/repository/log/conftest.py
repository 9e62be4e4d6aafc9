"""The version whose log most of these tests write."""

import pytest

from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import write_package


@pytest.fixture
def version(tmp_path):
    write_package(tmp_path, users=range(6))
    return Repository(tmp_path).version("small", 1)
