"""Every command, program and file of README and the tutorials, in order, as the reader of a page meets them."""

import shutil

import pytest

from tests.e2e.servers import free_port
from tests.programs.snippets import PAGES, RUN, run, snippets

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tensorflow,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
TOLD = [page for page in PAGES if any(block.kind in RUN and not block.not_run for block in snippets(page))]
# The tutorials take minutes: `make -C loadtest snippets` runs them.
MARKED = [page if page.stem == "README" else pytest.param(page, marks=pytest.mark.campaign) for page in TOLD]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.stem)
def test_commands_on_a_page_do_what_the_page_says(page, tmp_path):
    run(page, tmp_path, free_port)
