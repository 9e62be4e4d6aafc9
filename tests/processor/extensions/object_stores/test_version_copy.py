"""Files of a mirror: whole under their names, and known by their etags only for as long as nobody else writes them."""

import pytest

from freshet_serving.processor.errors import Corrupt, NotReady
from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore
from freshet_serving.processor.extensions.object_stores.object_store import ObjectContent
from freshet_serving.processor.extensions.object_stores.version_copy import EtagCache, VersionCopy


@pytest.fixture
def copy(bucket, tmp_path):
    return VersionCopy(CountedStore(bucket, lambda: 0.0), tmp_path / "small" / "1", "small/1")


def left(copy):
    return sorted(path.name for path in copy.folder.rglob("*") if path.is_file())


def test_etag_is_known_until_the_file_is_written_by_others(tmp_path):
    known, path = EtagCache(), tmp_path / "labels.json"
    assert known.etag(path) == ""
    known.put(path, ObjectContent(b"{}", "one"))
    assert (path.read_bytes(), known.etag(path)) == (b"{}", "one")
    path.write_bytes(b"{")
    assert known.etag(path) == ""
    known.put(path, ObjectContent(b"{}", "one"))
    assert (path.read_bytes(), known.etag(path)) == (b"{}", "one")
    path.unlink()
    assert known.etag(path) == ""


def test_put_keeps_an_existing_file_unless_overwriting(copy):
    copy.put("chain/a.json", b"1")
    copy.put("chain/a.json", b"2")
    assert (copy.folder / "chain/a.json").read_bytes() == b"1"
    copy.put("chain/a.json", b"2", anew=True)
    assert (copy.folder / "chain/a.json").read_bytes() == b"2"


def test_download_replaces_the_existing_file_and_leaves_nothing_else(bucket, copy):
    bucket.objects["small/1/tables/user"] = b"rows"
    copy.put("tables/user", b"damaged")
    assert copy.download("tables/user", 4)
    assert (copy.folder / "tables/user").read_bytes() == b"rows"
    assert not copy.download("tables/none", 4)
    with pytest.raises(Corrupt):
        copy.download("tables/user", 3)
    bucket.down = True
    with pytest.raises(NotReady):
        copy.download("tables/user", 4)
    assert left(copy) == ["user"]


def test_staged_file_has_no_name_until_it_is_assigned(bucket, copy):
    bucket.objects["small/1/deltas/1"] = b"delta"
    aside = copy.aside("deltas/1", 5)
    assert aside.name.startswith(".")
    copy.name(aside, "deltas/1")
    aside.unlink()
    assert (copy.folder / "deltas/1").read_bytes() == b"delta"
    assert left(copy) == ["1"]
