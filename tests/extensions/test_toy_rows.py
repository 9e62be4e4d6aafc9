"""A row store of its own is a new folder and no other file: installed its rows are served, removed it is refused."""

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.remote_rows.push import push
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.remote_rows import RemoteConfig
from freshet_serving.processor.tables.row_store import open_store
from tests.processor.extensions.remote_rows.processors import USERS, assert_scores, processor
from tests.support.counters import counted
from tests.support.extensions import install
from tests.support.packages import write_package

ASKED = [0, 7, 1999, 2000, -5]


@pytest.fixture
def url(tmp_path):
    """The address of an empty folder."""
    folder = tmp_path / "rows"
    folder.mkdir()
    return f"toyrows://{folder}"


def test_table_is_served_from_the_folder(monkeypatch, tmp_path, url):
    package = write_package(tmp_path / "repository", users=USERS)
    with install(monkeypatch, tmp_path, "toy_rows"):
        pushed = push(VersionReader(package), [], open_store(url, 1.0, SystemClock()))
        assert {table.table for table in pushed} == {"user", "tag"}
        with processor(tmp_path / "repository", url) as engine:
            assert_scores(engine, ASKED)
            (table_file,) = (tmp_path / "repository").rglob("user.safetensors")
            table_file.unlink()
            assert_scores(engine, [1, 2, 3])
            assert counted(engine.host.model("small").pick().replicas.remote)["lost"] == 0


def test_folder_that_does_not_exist_is_refused(monkeypatch, tmp_path, url):
    refused = pytest.raises(BadInput, match=r"^remote.url: expected toyrows:// and the path of a folder$")
    with install(monkeypatch, tmp_path, "toy_rows"), refused:
        open_store(f"{url}/none", 1.0, SystemClock())


def test_removed_toy_is_refused_by_its_scheme(url):
    with pytest.raises(BadInput, match=r"^remote.url: expected one of .*, got toyrows://: no extension has it$"):
        RemoteConfig(url, ["small/*"])
