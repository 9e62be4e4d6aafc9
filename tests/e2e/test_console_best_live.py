"""The console's view of the best items in a browser: filters, items with their columns, and the same call."""

import json
import re
import shlex

import pytest

from tests.e2e.servers import ALONE, LiveServer
from tests.support import console_pages
from tests.support.console_pages import SIZES, overflowing, page_of
from tests.support.plain_filters import passes
from tests.support.ranked import MODEL, columns_of, write_ranked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(console_pages.missing()), reason=console_pages.missing()),
]
ITEMS = range(200)
RECORDS = [dict(zip(columns_of(ITEMS, 0), row)) for row in zip(*columns_of(ITEMS, 0).values())]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    write_ranked(folder / "repository", ITEMS, recorded=ITEMS)
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as one:
        yield one


@pytest.fixture(scope="module")
def opened():
    with console_pages.browser() as one:
        yield one


@pytest.fixture
def page(request, opened, server):
    with page_of(opened, server.address("admin"), getattr(request, "param", "desktop")) as one:
        one.goto(f"{one.address}/#/models/{MODEL}/timeline")
        one.get_by_role("link", name="Best items").click()
        one.wait_for_selector(".filters")
        yield one
        assert one.troubles == []


def listed(page):
    page.get_by_role("button", name="Find").click()
    page.wait_for_selector(".result tbody tr, .result .problem, .result .facts + p")
    rows = page.locator(".result tbody tr")
    return [rows.nth(n).locator("td").all_inner_texts() for n in range(rows.count())]


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_filters_hold_and_the_columns_are_shown(page):
    page.get_by_label("history.item").fill("[[3, 5]]")
    page.get_by_label("price, number").select_option("range")
    page.get_by_label("price from").fill("4")
    page.get_by_label("category, text").select_option("not")
    page.get_by_label("category values").fill("a, b")
    page.get_by_label("stock, number").select_option("in")
    page.get_by_label("stock values").fill("1, 2")
    page.get_by_label("Number of items").fill("200")
    rows, wanted = listed(page), {"price": [4, None], "category": {"not": ["a", "b"]}, "stock": {"in": [1, 2]}}
    assert {int(row[1]) for row in rows} == {n for n in ITEMS if passes(wanted, RECORDS[n])} - {3, 5}
    for row in rows:
        record = RECORDS[int(row[1])]
        assert (float(row[3]), row[4]) == (record["price"], str(record["stock"]))
    assert "1.0" in page.inner_text(".result .facts")
    assert overflowing(page) == []


def test_shown_call_sends_what_the_view_sends(page, server):
    page.get_by_label("tags, list of texts").select_option("in")
    page.get_by_label("tags values").fill("t1, null")
    rows = listed(page)
    curl, python = page.locator(".lines code").all_inner_texts()
    words = shlex.split(curl)
    path, head, body = words[2], words[4], words[6]
    name, value = head.split(": ")
    status, _, data = server.request("POST", re.sub(r"^http://[^/]*", "", path), body, {name: value})
    assert status == 200, data
    assert [int(row[1]) for row in rows] == json.loads(data)["outputs"]["item_ids"][0]
    assert 'filters = {"tags": ["t1", "null"]}' in python
    compile(python, "shown", "exec")


def test_items_are_ranked_by_another_source(page):
    page.get_by_label("Ranked by").select_option("like")
    assert page.inner_text(".lines .problem").startswith("like: expected a number")
    page.get_by_label("Like item").fill("3")
    page.get_by_label("Number of items").fill("200")
    assert {int(row[1]) for row in listed(page)} == set(ITEMS) - {3}
    curl, python = page.locator(".lines code").all_inner_texts()
    assert '{"inputs": {"like": [3]}}' in curl
    assert "user=user, k=200, like=3)" in python
    page.get_by_role("button", name="Reset").click()
    # Hidden while nothing of a user is asked for.
    page.get_by_label("history.item").wait_for()
    assert page.get_by_label("Ranked by").input_value() == "model"


def test_wrong_values_are_said_before_or_by_the_server(page):
    page.get_by_label("price, number").select_option("range")
    page.get_by_label("price to").fill("cheap")
    assert page.inner_text(".lines .problem") == "price: expected a number, got cheap"
    page.get_by_label("price to").fill("1e999")
    page.get_by_role("button", name="Find").click()
    page.wait_for_selector(".result .problem")
    assert page.inner_text(".result .problem").startswith("400: filter")
    # The browser reports the reply too.
    assert [trouble for trouble in page.troubles if "400" not in trouble] == []
    page.troubles.clear()
