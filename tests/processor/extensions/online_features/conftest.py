"""A redis-server for the length of a test."""

import pytest

from tests.processor.extensions.remote_rows.fakes import RedisServer


@pytest.fixture
def server():
    server = RedisServer().start()
    yield server
    server.close()
