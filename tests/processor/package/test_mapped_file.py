"""A mapped file that changes under its version: what is noticed, by how much effort, and what is let pass."""

import os

import pytest

from processor.errors import Corrupt
from processor.package import mapped_file
from processor.package.mapped_file import BYTES, CHANGES, SIZES, MappedFile
from processor.package.tensors import crc32

DATA = bytes(range(256)) * 64
LONG_AGO_NS = 1_600_000_000 * 10**9


@pytest.fixture
def path(tmp_path):
    (tmp_path / "table").write_bytes(DATA)
    os.utime(tmp_path / "table", ns=(LONG_AGO_NS, LONG_AGO_NS))
    return tmp_path / "table"


@pytest.fixture
def mapped(path):
    return MappedFile.of(path, "tables/t", crc32(DATA), None)


def efforts(mapped):
    return [mapped.damage(effort) for effort in (SIZES, CHANGES, BYTES)]


def overwrite(path, data):
    with open(path, "r+b") as file:
        file.write(data)


def test_a_file_that_is_as_it_was_is_sound(mapped):
    assert efforts(mapped) == ["", "", ""]


def test_a_file_that_was_cut_short_is_told_by_its_size_and_never_touched(path, mapped):
    os.truncate(path, 100)
    why = f"was cut short while it is served: {len(DATA)} bytes wanted, got 100"
    assert efforts(mapped) == [why, why, why]


def test_a_file_that_was_overwritten_in_place_is_told_once_its_bytes_are_read(path, mapped):
    overwrite(path, b"other")
    why = "was overwritten while it is served: does not match its checksum"
    assert efforts(mapped) == ["", why, why]


def test_bytes_that_changed_behind_an_old_date_are_told_by_who_reads_all(path, mapped):
    overwrite(path, b"other")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert efforts(mapped)[:2] == ["", ""]
    assert mapped.damage(BYTES).startswith("was overwritten")


def test_a_file_that_was_touched_or_rewritten_as_it_was_goes_on_and_is_read_once(path, mapped, monkeypatch):
    overwrite(path, DATA[:100])
    os.utime(path)
    assert mapped.damage(CHANGES) == ""
    monkeypatch.setattr(mapped_file, "file_crc32", lambda *_: pytest.fail("read again"))
    assert mapped.damage(CHANGES) == ""


@pytest.mark.parametrize("change", ["removed", "replaced", "linked", "mode"])
def test_what_does_not_touch_the_mapped_bytes_is_not_even_read(path, mapped, monkeypatch, change):
    monkeypatch.setattr(mapped_file, "file_crc32", lambda *_: pytest.fail("read again"))
    if change == "removed":
        path.unlink()
    elif change == "replaced":
        path.with_name("new").write_bytes(b"short")
        os.replace(path.with_name("new"), path)
    elif change == "linked":
        os.link(path, path.with_name("backup"))
    else:
        path.chmod(0o400)
    assert mapped.damage(CHANGES) == ""


def test_a_page_that_the_disk_cannot_read_is_told_by_who_reads_all(mapped, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(mapped_file, "file_crc32", fail)
    assert efforts(mapped) == ["", "", "cannot be read any more: Input/output error"]


def test_a_file_that_is_cut_short_while_it_is_read_is_told_too(path, mapped, monkeypatch):
    checksum = mapped_file.file_crc32

    def cut(*arguments):
        os.truncate(path, 100)
        return checksum(*arguments)

    monkeypatch.setattr(mapped_file, "file_crc32", cut)
    assert mapped.damage(BYTES) == "was cut short while it is served"


def test_a_file_that_is_not_what_was_verified_or_no_file_is_not_mapped(path, mapped):
    overwrite(path, b"other")
    with pytest.raises(Corrupt, match="tables/t: was changed while it was read"):
        MappedFile.of(path, "tables/t", mapped.crc32, mapped.seen)
    path.write_bytes(b"")
    with pytest.raises(Corrupt, match="tables/t: the file is empty"):
        MappedFile.of(path, "tables/t", mapped.crc32, None)
    path.unlink()
    with pytest.raises(Corrupt, match="tables/t: cannot be read: No such file"):
        MappedFile.of(path, "tables/t", mapped.crc32, None)
