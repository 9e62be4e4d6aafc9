"""What stories of several servers share."""

import pytest

from tests.support.object_server import ObjectServer


@pytest.fixture
def store(monkeypatch):
    """An S3 server, which this process's environment leads to."""
    with ObjectServer() as store:
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        yield store
