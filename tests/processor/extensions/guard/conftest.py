"""A guarded version, and the stream of its deltas."""

import pytest

from tests.support.guarded import Stream, write_guarded


@pytest.fixture
def stream(tmp_path):
    write_guarded(tmp_path)
    return Stream()
