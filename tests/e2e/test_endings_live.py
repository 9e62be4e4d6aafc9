"""SIGTERM under load on real servers; `make -C loadtest endings` does the same 50 times."""

import pytest

from tests.programs.endings import LAYOUTS, rounds

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_request_sent_before_the_close_announcement_is_lost(tmp_path, layout):
    (seen,) = rounds(tmp_path, LAYOUTS[layout], 1)
    assert seen.lost == []
    assert all(seen.answered.values())
    assert seen.told["by a reply"]
