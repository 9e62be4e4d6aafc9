"""The console's files: fixed names, fixed types, nothing inline, nothing from elsewhere."""

import re

import pytest

from freshet_serving.serving.extensions.admin.console_files import FILES, HEADERS, INDEX, ConsoleFiles
from tests.serving.extensions.admin.fakes import Client

MAX_NBYTES = 150_000


@pytest.fixture(scope="module")
def client():
    return Client()


def test_page_is_served_at_the_root_under_a_strict_policy(client):
    reply = client("GET", "/")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = reply.headers["content-security-policy"]
    assert "'unsafe-inline'" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_its_content_type_and_etag(client, name):
    reply = client("GET", f"/console/{name}")
    wanted = "text/css" if name.endswith(".css") else "text/javascript"
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, wanted)
    assert reply.headers["cache-control"] == "no-cache"
    again = client("GET", f"/console/{name}", headers={"if-none-match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client("GET", f"/console/{name}", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "..%2fapi.py", "%2e%2e/api.py", "../api.py", "index.js", "", "x" * 5000, "app.js/", "app.js%00", ".",
        "console.css ",
    ],
)  # fmt: skip
def test_unknown_file_name_is_not_found(client, path):
    reply = client("GET", f"/console/{path}")
    assert reply.status_code in (404, 307)
    assert b"import" not in reply.content
    assert client("POST", "/console/app.js").status_code == 405


def test_console_files_refer_only_to_each_other():
    folder = ConsoleFiles()._files
    assert folder.keys() == {INDEX, *FILES}
    for name, file in folder.items():
        text = file.data.decode()
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= set(FILES), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, name
    index = folder[INDEX].data.decode()
    assert not re.search(r"<style|<script(?! type=\"module\" src=)|\son\w+=|style=", index)


def test_page_is_small():
    assert ConsoleFiles().nbytes < MAX_NBYTES


def test_page_needs_no_token_but_its_data_requests_do():
    client = Client(token="s3cret")
    assert client("GET", "/").status_code == 200
    assert client("GET", "/console/app.js").status_code == 200
    of_a_model = [f"models/ctr/{view}" for view in ("timeline", "tables", "canaries", "signature")]
    for path in ("live", "audit", *of_a_model):
        assert client("GET", f"/admin/{path}").status_code == 401
    assert client("POST", "/admin/models/ctr/try").status_code == 401
    assert client("GET", "/console/../admin/models").status_code == 401


def test_policy_forbids_html_built_from_strings():
    assert "require-trusted-types-for 'script'" in HEADERS["content-security-policy"]
