"""Which requests are taken for another site's, by what a browser says of them."""

import pytest

from freshet_serving.serving.http import origin_checks

OWN = [
    {},
    {b"origin": b"http://localhost:8501"},
    {b"origin": b"https://LOCALHOST:8501", b"sec-fetch-site": b"same-origin"},
    {b"sec-fetch-site": b"none"},
]
OTHERS = [
    {b"origin": b"http://evil.example"},
    {b"origin": b"null"},
    {b"origin": b""},
    {b"origin": b"http://localhost:8502"},
    {b"origin": b"http://localhost:8501.evil.example"},
    {b"origin": b"http://localhost:8501", b"sec-fetch-site": b"cross-site"},
    {b"sec-fetch-site": b"same-site"},
    {b"sec-fetch-site": b""},
]


@pytest.mark.parametrize("headers", OWN)
def test_same_site_and_non_browser_requests_are_accepted(headers):
    assert origin_checks.cross_site_refusal({b"host": b"localhost:8501", **headers}, changes=True) == ""


@pytest.mark.parametrize("headers", OTHERS)
def test_cross_site_page_request_is_refused(headers):
    headers = {b"host": b"localhost:8501", **headers}
    assert origin_checks.cross_site_refusal(headers, changes=True).endswith("requests from other sites are refused")
    assert origin_checks.from_browser(headers)


def test_link_from_a_different_site_may_be_followed():
    assert (
        origin_checks.cross_site_refusal({b"host": b"localhost:8502", b"sec-fetch-site": b"cross-site"}, changes=False)
        == ""
    )


@pytest.mark.parametrize(
    "host", [b"localhost:1", b"127.0.0.1", b"127.1.2.3:80", b"[::1]:8501", b"LocalHost", b"box:8501"]
)
def test_names_of_this_machine_are_same_site(host):
    assert origin_checks.rebinding_refusal({b"host": host}, own_name="box") == ""


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example", b"", b"[", b"10.0.0.1:8501",
        b"0.0.0.0:8501", b"\xff", b"localhost@evil.example", b"evil.example#@localhost",
        b"evil.example/localhost", b"2130706434", b"evil.example@localhost", b"evil.example@127.0.0.1",
    ],
)  # fmt: skip
def test_rebindable_names_are_refused(host):
    assert origin_checks.rebinding_refusal({b"host": host}) == "host: expected this server's own name"
    assert origin_checks.rebinding_refusal({}) == "host: expected this server's own name"


@pytest.mark.parametrize("name", [b"host", b"origin", b"sec-fetch-site", b"authorization"])
def test_repeated_header_that_decides_about_access_is_refused(name):
    once = [(b"host", b"a"), (b"origin", b"b"), (b"sec-fetch-site", b"c"), (b"authorization", b"d"), (b"accept", b"e")]
    assert origin_checks.repeated_refusal([*once, (b"accept", b"f")]) == ""
    refusal = origin_checks.repeated_refusal([*once, (name, b"http://localhost:8502")])
    assert refusal == f"{name.decode()}: expected at most once, got 2 times"
