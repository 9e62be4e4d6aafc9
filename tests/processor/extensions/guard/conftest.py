"""A guarded version, the stream of its deltas, and a model that has been fed good ones."""

import pytest

from tests.processor.extensions.guard.fed import feed, opened
from tests.support.guarded import Stream, write_guarded


@pytest.fixture
def stream(tmp_path):
    write_guarded(tmp_path)
    return Stream()


@pytest.fixture
def model(tmp_path, stream):
    """The model at 1.GOOD, asked for rows."""
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    return model
