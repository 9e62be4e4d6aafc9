"""A mapped file that changes under its version: what is noticed, by how much effort, and what is let pass."""

import os
import threading

import pytest

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package.tensors import crc32
from freshet_serving.processor.repository import mapped_file
from freshet_serving.processor.repository.mapped_file import BYTES, CHANGES, SIZES, MappedFile
from tests.support.leases import unleased
from tests.support.waiting import GIVE_UP_S

DATA = bytes(range(256)) * 64
LONG_AGO_NS = 1_600_000_000 * 10**9


@pytest.fixture
def path(tmp_path):
    (tmp_path / "table").write_bytes(DATA)
    os.utime(tmp_path / "table", ns=(LONG_AGO_NS, LONG_AGO_NS))
    return tmp_path / "table"


@pytest.fixture
def mapped(path):
    """The file as it is mapped where there are no leases."""
    with unleased(path):
        return MappedFile.of(path, "tables/t", crc32(DATA), None)


def efforts(mapped):
    return [mapped.damage(effort) for effort in (SIZES, CHANGES, BYTES)]


def overwrite(path, data):
    with open(path, "r+b") as file:
        file.write(data)


def change_aside(change):
    """A thread that is about to be done with a change of a file."""
    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "change",
    [lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b"other"), lambda path: overwrite(path, b"x")],
    ids=["cut short", "written anew", "overwritten"],
)
def test_writer_of_a_mapped_file_waits_until_it_is_unmapped(path, change):
    mapped = MappedFile.of(path, "tables/t", crc32(DATA), None)
    if not mapped.leased:
        pytest.skip("no leases on this file system")
    assert efforts(mapped) == ["", "", ""]
    assert not mapped_file.is_written_to(path)
    writer, why = change_aside(lambda: change(path)), "is about to be written while it is served"
    while not mapped.damage(SIZES):
        assert writer.is_alive()
    assert [told.partition(";")[0] for told in efforts(mapped)] == [why] * 3
    assert mapped_file.is_written_to(path)
    assert (writer.is_alive(), path.read_bytes(), bytes(mapped.array)) == (True, DATA, DATA)
    del mapped
    writer.join(GIVE_UP_S)
    assert (writer.is_alive(), path.read_bytes() == DATA) == (False, False)
    assert not mapped_file.is_written_to(path)


def test_changes_that_spare_a_mapped_file_never_wait(path):
    mapped = MappedFile.of(path, "tables/t", crc32(DATA), None)
    os.link(path, path.with_name("backup"))
    path.chmod(0o600)
    os.utime(path)
    assert path.read_bytes() == DATA
    replace(path)
    path.unlink()
    assert efforts(mapped) == ["", "", ""]


def test_file_already_open_for_writing_is_mapped_without_a_lease(path):
    with open(path, "r+b") as writer:
        mapped = MappedFile.of(path, "tables/t", crc32(DATA), None)
        assert (mapped.leased, mapped_file.is_written_to(path)) == (False, True)
        writer.truncate(100)
    assert mapped.damage(SIZES).startswith("was truncated")


def test_writer_meeting_a_new_lease_causes_no_signal(path):
    """SIGIO, which comes of leases by default, would end this very process."""
    ended = threading.Event()

    def write():
        while not ended.is_set():
            os.close(os.open(path, os.O_WRONLY))

    writer = change_aside(write)
    for _ in range(5000):
        mapped_file.is_written_to(path)
    ended.set()
    writer.join(GIVE_UP_S)
    assert not writer.is_alive()


def test_missing_or_irregular_file_is_not_being_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert [mapped_file.is_written_to(tmp_path / name) for name in ("none", "pipe", ".")] == [False] * 3


def test_truncated_file_is_detected_by_its_size_without_access(path, mapped):
    os.truncate(path, 100)
    why = f"was truncated while being served: expected {len(DATA)} bytes, got 100"
    assert efforts(mapped) == [why, why, why]


def test_overwritten_file_is_detected_when_its_bytes_are_read(path, mapped):
    overwrite(path, b"other")
    why = "was overwritten while being served: does not match its checksum"
    assert efforts(mapped) == ["", why, why]


def test_bytes_changed_behind_an_old_date_need_full_reads(path, mapped):
    overwrite(path, b"other")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert efforts(mapped)[:2] == ["", ""]
    assert mapped.damage(BYTES).startswith("was overwritten")


def test_touched_but_equal_file_stays_sound_and_is_read_once(path, mapped, monkeypatch):
    assert efforts(mapped) == ["", "", ""]
    overwrite(path, DATA[:100])
    os.utime(path)
    assert mapped.damage(CHANGES) == ""
    monkeypatch.setattr(mapped_file, "file_crc32", lambda *_: pytest.fail("read again"))
    assert mapped.damage(CHANGES) == ""


def replace(path):
    path.with_name("new").write_bytes(b"short")
    os.replace(path.with_name("new"), path)


@pytest.mark.parametrize(
    "change",
    [os.unlink, replace, lambda path: os.link(path, path.with_name("backup")), lambda path: path.chmod(0o400)],
    ids=["removed", "replaced", "linked", "mode"],
)
def test_changes_that_spare_the_mapped_bytes_cause_no_read(path, mapped, monkeypatch, change):
    monkeypatch.setattr(mapped_file, "file_crc32", lambda *_: pytest.fail("read again"))
    change(path)
    assert mapped.damage(CHANGES) == ""


def test_unreadable_page_is_found_by_a_full_read(mapped, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(mapped_file, "file_crc32", fail)
    assert efforts(mapped) == ["", "", "can no longer be read: Input/output error"]


def test_file_truncated_while_being_read_is_detected(path, mapped, monkeypatch):
    checksum = mapped_file.file_crc32

    def cut(*arguments):
        os.truncate(path, 100)
        return checksum(*arguments)

    monkeypatch.setattr(mapped_file, "file_crc32", cut)
    assert mapped.damage(BYTES) == "was truncated while being served"


def test_file_that_changed_since_verification_is_not_mapped(path, mapped):
    overwrite(path, b"other")
    with pytest.raises(Corrupt, match="tables/t: changed while it was read"):
        MappedFile.of(path, "tables/t", mapped.crc32, mapped.seen)
    path.write_bytes(b"")
    with pytest.raises(Corrupt, match="tables/t: the file is empty"):
        MappedFile.of(path, "tables/t", mapped.crc32, None)
    path.unlink()
    with pytest.raises(Corrupt, match="tables/t: cannot be read: No such file"):
        MappedFile.of(path, "tables/t", mapped.crc32, None)
