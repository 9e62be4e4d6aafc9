import json
import re
import tomllib
from importlib import resources
from pathlib import Path

from freshet_serving.serving.http import pages
from freshet_serving.serving.http.paths import parse
from tests.serving.extensions.admin.fakes import Client
from tests.serving.fakes import send
from tests.serving.http.data_app import serve


def test_root_page_describes_the_server_and_its_links():
    app, _, _, _ = serve()
    reply = send(app, "GET", "/").json()
    assert (reply["name"], reply["version"], reply["ready"]) == ("freshet", "9", True)
    for where in reply["where"].values():
        method, path = where.split()
        assert parse(path.format(model="m").encode()).method == method


def test_openapi_page_is_small_and_loads_only_its_document():
    app, _, _, _ = serve()
    data, admin = send(app, "GET", "/docs"), Client()("GET", "/docs")
    assert data.headers["content-type"] == admin.headers["content-type"] == "text/html; charset=utf-8"
    for reply, url in ((data, "/openapi.json"), (admin, "/admin/openapi.json")):
        text = reply.body.decode() if reply is data else reply.text
        assert len(text) < 20_000
        assert f'"{url}"' in text
        assert pages.OPENAPI_URL not in text
        assert not re.search(r"(?:src|href)=|https?://|import ", text)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert json.loads(send(app, "GET", "/openapi.json").body)["paths"]["/docs"]


def test_admin_docs_page_needs_no_token_but_its_document_does():
    client = Client(token="t")
    assert client("GET", "/docs").status_code == 200
    assert client("GET", "/admin/openapi.json").status_code == 401


def test_pages_are_part_of_the_package():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["freshet_serving.serving"]
    root = resources.files("freshet_serving.serving")
    for page in Path(str(root)).rglob("*.html"):
        assert any(page.relative_to(str(root)).match(pattern) for pattern in patterns), page
