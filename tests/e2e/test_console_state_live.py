"""The console's view of user states in a browser: hits and misses of a live server, and no view without states."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Client
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_erase_live import CANDIDATES, LENGTH, OTHER, USER, metric, request_of
from tests.models.zoo.sequence_models import make_batch, make_trainer, publish
from tests.support import console_pages
from tests.support.console_pages import SIZES, overflowing, page_of
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(console_pages.missing()), reason=console_pages.missing()),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    trainer = make_trainer("sasrec", LENGTH, units=32, layers=2)
    trainer.learn(make_batch(64, (LENGTH,)))
    publish(trainer, folder := tmp_path_factory.mktemp("state"), (1, CANDIDATES))
    return folder


@pytest.fixture(scope="module")
def opened():
    with console_pages.browser() as one:
        yield one


def test_hits_and_causes_of_misses_are_shown(opened, repository, tmp_path):
    with LiveServer(repository, *ALONE, "--user-state-mb", "8", log=tmp_path / "serve.log") as live:
        with Client(live.address()) as client:
            for user in (USER, OTHER, USER, USER):
                client.predict("m", request_of(user))
        until(lambda: metric(live, "freshet_model_user_state_hits_total") == 2)
        for size in SIZES:
            with page_of(opened, live.address("admin"), size) as page:
                page.goto(f"{page.address}/#/models/m/timeline")
                page.get_by_role("link", name="User state").click()
                page.wait_for_selector("table tbody tr")
                cells = page.locator("table tbody tr").first.locator("td").all_inner_texts()
                assert (cells[0], cells[1]) == ("1.0", "4")
                assert "50" in cells[2]
                assert "FLOPs" in cells[6]
                assert "users are told by user" in page.inner_text("body")
                assert overflowing(page) == []
                assert page.troubles == []


def test_server_without_states_has_no_view(opened, repository, tmp_path):
    with (
        LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as live,
        page_of(opened, live.address("admin"), next(iter(SIZES))) as page,
    ):
        page.goto(f"{page.address}/#/models/m/timeline")
        page.get_by_role("link", name="Tables").wait_for()
        assert page.get_by_role("link", name="User state").count() == 0
        page.goto(f"{page.address}/#/models/m/state")
        page.wait_for_selector(".soft")
        assert "Nothing of users is kept" in page.inner_text("body")
