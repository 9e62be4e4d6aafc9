"""Who may use the admin port, asked of all its routes."""

import pytest

from tests.serving.extensions.admin.fakes import Client


def test_every_route_requires_the_configured_token():
    client = Client(token="s3cret", host="0.0.0.0", base="http://freshet.example:8502")
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"},
    ):
        reply = client("GET", "/admin/models", headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "s3cret" not in reply.text
    assert client("GET", "/admin/openapi.json").status_code == 401
    assert client("GET", "/admin/models", headers={"authorization": "Bearer s3cret"}).status_code == 200
    assert client("GET", "/admin/health").status_code == 200
    assert client("GET", "/").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1:8502", "evil.example@127.0.0.1"]
)
def test_without_a_token_a_rebindable_host_name_is_refused(host):
    reply = Client()("GET", "/admin/models", headers={"host": host})
    assert (reply.status_code, list(reply.json())) == (403, ["error"])


@pytest.mark.parametrize("host", ["localhost:8502", "127.0.0.1", "[::1]:8502", "LOCALHOST"])
def test_without_a_token_loopback_names_are_accepted(host):
    assert Client()("GET", "/admin/models", headers={"host": host}).status_code == 200


def test_cross_site_browser_requests_are_refused():
    for token in ("", "s3cret"):
        client = Client(token=token)
        headers = {"authorization": f"Bearer {token}"}
        own = client("GET", "/admin/models", headers={**headers, "origin": "http://127.0.0.1:8502"})
        assert own.status_code == 200
        for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1:8502.evil.example"):
            reply = client("POST", "/admin/models/ctr/versions/1/load", headers={**headers, "origin": origin})
            assert reply.status_code == 403
        assert client.processor.calls == []


def test_two_origins_are_refused_although_one_is_the_own():
    client = Client()
    headers = [("origin", "http://evil.example"), ("origin", "http://127.0.0.1:8502")]
    for sent in (headers, headers[::-1]):
        reply = client("POST", "/admin/models/ctr/versions/1/load", headers=sent)
        assert reply.status_code == 403
        assert "origin" in reply.json()["error"]
    assert client.processor.calls == []


def test_cross_site_change_is_refused_without_an_origin_header():
    client = Client()
    reply = client("POST", "/admin/models/ctr/versions/1/load", headers={"sec-fetch-site": "cross-site"})
    assert (reply.status_code, client.processor.calls) == (403, [])
    assert client("GET", "/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("given", ["", " ", " s3", " s3cret2", " s3cret s3cret", " S3CRET"])
def test_partial_or_extended_token_is_refused(given):
    client = Client(token="s3cret", host="0.0.0.0", base="http://freshet.example:8502")
    assert client("GET", "/admin/models", headers={"authorization": f"Bearer{given}"}).status_code == 401
