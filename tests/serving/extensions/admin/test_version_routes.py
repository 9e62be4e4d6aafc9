"""Decisions about versions through the admin port: listed, released, rejected, and noted in the audit trail."""

import pytest

from tests.serving.extensions.admin.fakes import Client

VERSIONS = "/admin/models/ctr/versions"


def test_versions_are_listed_with_what_was_decided():
    listed = Client()("GET", VERSIONS).json()
    assert listed["model"] == "ctr"
    assert [(one["version"], one["state"]) for one in listed["versions"]] == [(4, "withdrawn"), (3, "available")]


def test_versions_are_released_and_rejected():
    client = Client()
    released = client("POST", f"{VERSIONS}/4/release", json={"reason": "checked"}).json()
    assert released == {"model": "ctr", "version": 4, "events": ["ctr 4.0 loaded"]}
    assert client("POST", f"{VERSIONS}/4/reject", json={}).json()["events"] == []
    assert client.processor.calls == [("release_version", "ctr", 4, "checked"), ("reject_version", "ctr", 4, "")]
    trail = [entry["what"] for entry in client("GET", "/admin/audit").json()["entries"]]
    assert trail == ["reject 'ctr' version 4", "release 'ctr' version 4: 'checked'"]


@pytest.mark.parametrize("body", [{"reason": 1}, {"reason": "x" * 501}, {"version": 4}, []])
def test_body_that_is_no_decision_is_refused(body):
    client = Client()
    assert client("POST", f"{VERSIONS}/4/release", json=body).status_code == 400
    assert client.processor.calls == []
