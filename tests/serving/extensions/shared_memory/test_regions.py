import os

import pytest

from freshet_serving.processor.errors import BadInput, NotFound, TooLarge
from freshet_serving.serving.codecs.kserve_header import RegionSpan
from freshet_serving.serving.extensions.shared_memory import regions as system_regions
from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions
from tests.support.descriptors import fds_of


@pytest.fixture
def regions(tmp_path, monkeypatch):
    monkeypatch.setattr(system_regions, "FOLDER", f"{tmp_path}/")
    (tmp_path / "in").write_bytes(b"0123456789abcdef")
    made = SystemRegions()
    made.register("a", "/in", 4, 8)
    yield made
    made.unregister()


def test_span_is_read_and_written_inside_its_region(regions, tmp_path):
    assert regions.read(RegionSpan("a", 0, 8)) == b"456789ab"
    assert regions.read(RegionSpan("a", 6, 2)) == b"ab"
    regions.write(RegionSpan("a", 2, 4), b"XY")
    assert (tmp_path / "in").read_bytes() == b"012345XY89abcdef"
    with pytest.raises(BadInput, match="expected at most the region's 8 bytes, got 9"):
        regions.read(RegionSpan("a", 1, 8))
    with pytest.raises(BadInput, match="expected at most the region's 8 bytes, got 16"):
        regions.write(RegionSpan("a", 8, 8), b"12345678")


@pytest.mark.parametrize("key", ["", "/", "..", "/../x", "a/b", "/a.b", "/a b", "x" * 200, "a\0b", "//a"])
def test_region_key_is_a_single_name(regions, key):
    with pytest.raises(BadInput, match="key: expected letters"):
        regions.register("b", key, 0, 8)


def test_region_must_lie_inside_a_regular_object(regions, tmp_path):
    with pytest.raises(BadInput, match="expected at most the object's 16 bytes, got 17"):
        regions.register("b", "in", 9, 8)
    with pytest.raises(BadInput, match="byte_size: expected above 0"):
        regions.register("b", "in", 0, 0)
    with pytest.raises(BadInput, match="byte_size: expected above 0"):
        regions.register("b", "in", -1, 8)
    with pytest.raises(BadInput, match="already registered"):
        regions.register("a", "in", 0, 8)
    with pytest.raises(NotFound, match="shared memory object 'other' does not exist"):
        regions.register("b", "other", 0, 8)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for key in ("folder", "link", "fifo"):
        with pytest.raises(NotFound):
            regions.register("b", key, 0, 8)


def test_shrunken_object_gives_a_short_read_error(regions, tmp_path):
    os.truncate(tmp_path / "in", 6)
    with pytest.raises(BadInput, match="expected 8 bytes, got 2"):
        regions.read(RegionSpan("a", 0, 8))
    with pytest.raises(BadInput, match="cannot be written"):
        regions.write(RegionSpan("a", 0, 8), b"x")


def test_read_only_object_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(system_regions, "FOLDER", f"{tmp_path}/")
    (tmp_path / "in").write_bytes(b"01234567")
    refuse = os.open

    def open_(path, flags):
        if flags & os.O_RDWR:
            raise PermissionError
        return refuse(path, flags)

    monkeypatch.setattr(os, "open", open_)
    regions = SystemRegions()
    regions.register("a", "in", 0, 8)
    assert regions.read(RegionSpan("a", 0, 8)) == b"01234567"
    with pytest.raises(BadInput, match="cannot be written"):
        regions.write(RegionSpan("a", 0, 8), b"x")
    regions.unregister("a")


def test_status_lists_registered_regions(regions, tmp_path):
    about = {"name": "a", "key": "/in", "offset": 4, "byte_size": 8}
    assert regions.status() == regions.status("a") == [about]
    with pytest.raises(NotFound, match="'b' is not registered"):
        regions.status("b")
    regions.unregister("b")
    assert fds_of(tmp_path / "in") == 1
    regions.unregister()
    assert regions.status() == []
    assert fds_of(tmp_path / "in") == 0
    with pytest.raises(BadInput, match="is not registered"):
        regions.read(RegionSpan("a", 0, 1))


def test_number_of_regions_is_limited(regions, monkeypatch):
    monkeypatch.setattr(system_regions, "MAX_REGIONS", 1)
    with pytest.raises(TooLarge):
        regions.register("b", "in", 0, 8)
    with pytest.raises(BadInput, match="name: expected 1 to"):
        regions.register("", "in", 0, 8)
