"""SIGTERM under load on real servers; `make -C loadtest endings` does the same 50 times."""

import pytest

from tests.programs.endings import LAYOUTS, rounds

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_request_is_lost_that_was_sent_before_the_server_said_that_it_ends(tmp_path, layout):
    (seen,) = rounds(tmp_path, LAYOUTS[layout], 1)
    assert seen.lost == []
    assert all(seen.answered.values())
    assert seen.told["by a reply"]
