"""A running server for the commands that talk to one."""

import pytest

from freshet_serving.serving.commands.admin_client import TOKEN_VARIABLE
from tests.serving.commands.running import admin_port


@pytest.fixture(scope="module")
def served():
    with admin_port() as served:
        yield served


@pytest.fixture
def admin(served, monkeypatch):
    """The address of an admin port whose token commands have, and the calls of its fake processor."""
    address, processor = served
    processor.calls.clear()
    monkeypatch.setenv(TOKEN_VARIABLE, "t")
    return address, processor
