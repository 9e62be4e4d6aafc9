"""Folders are listed whenever a reader asks, and nobody waits for what has not come."""

import pytest

from freshet_serving.models.streams import followed_source, growing_folder


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(followed_source, "POLL_S", 0.0)
    monkeypatch.setattr(growing_folder, "LOOK_S", 0.0)
    monkeypatch.setattr(growing_folder, "LOOK_SHARE", 0)
