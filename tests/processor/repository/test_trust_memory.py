"""What was trusted is remembered across restarts, only grows, and is forgotten when a person says so."""

import pytest

from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.repository import TrustMemory, default_memory, trust_memory


@pytest.fixture
def memory(tmp_path):
    return TrustMemory(tmp_path / "memory")


def test_newest_record_is_remembered_by_the_next_process(memory):
    memory.note_record("ctr", 3, 17, "ab" * 32)
    memory.note_record("ctr", 3, 12, "cd" * 32)
    known = TrustMemory(memory.folder).of("ctr")
    assert (known.versions[3].number, known.versions[3].record) == (17, "ab" * 32)
    assert TrustMemory(memory.folder).of("other").versions == {}


def test_two_processes_sharing_a_folder_merge_by_the_larger_number(memory):
    other = TrustMemory(memory.folder)
    memory.note_record("ctr", 3, 17, "ab" * 32)
    other.note_version("ctr", 4, "root", 0, "m")
    other.note_record("ctr", 3, 18, "cd" * 32)
    memory.note_record("ctr", 3, 17, "ab" * 32)
    known = memory.of("ctr")
    assert (known.newest, known.versions[3].number, sorted(known.versions)) == (4, 18, [3, 4])


def test_older_edition_changed_manifest_and_older_serial_are_refused(memory):
    memory.check_manifest("ctr", 3, "root", 0, "m0")
    memory.note_version("ctr", 3, "root", 2, "m2")
    memory.check_manifest("ctr", 3, "root", 2, "m2")
    memory.check_manifest("ctr", 3, "root", 3, "m3")
    for root, edition, digest in (("root", 1, "m1"), ("root", 2, "else"), ("else", 9, "m9")):
        with pytest.raises(Corrupt, match="`freshet keys accept` resets the trusted state"):
            memory.check_manifest("ctr", 3, root, edition, digest)
    memory.note_serial("ctr", "labels.json", 4)
    memory.check_serial("ctr", "labels.json", 4)
    with pytest.raises(Corrupt, match=r"labels\.json: expected serial 4 or newer as trusted here before, got 3"):
        memory.check_serial("ctr", "labels.json", 3)


def test_forget_removes_all_versions_of_a_model(memory):
    memory.note_record("ctr", 3, 17, "ab" * 32)
    assert memory.forget("ctr")
    assert not memory.forget("ctr")
    assert memory.of("ctr").versions == {}


def test_unreadable_or_unwritable_memory_is_an_error(memory, tmp_path):
    (memory.folder / "ctr.json").write_bytes(b"{")
    with pytest.raises(NotReady, match="the saved state of 'ctr' cannot be read"):
        memory.of("ctr")
    with pytest.raises(NotReady):
        memory.note_record("ctr", 1, 1, "")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInput, match="trust_memory: the folder cannot be written"):
        TrustMemory(tmp_path / "file")
    for path in memory.folder.iterdir():
        path.unlink()
    memory.folder.rmdir()
    with pytest.raises(NotReady, match="cannot be saved"):
        memory.note_record("ctr", 1, 1, "")


def test_memory_file_stays_small_for_many_versions(memory, monkeypatch):
    monkeypatch.setattr(trust_memory, "MOST_VERSIONS", 3)
    for version in range(1, 6):
        memory.note_version("ctr", version, "root", 0, "m")
    assert sorted(memory.of("ctr").versions) == [3, 4, 5]
    assert memory.of("ctr").newest == 5


def test_every_repository_has_its_own_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = default_memory("s3://bucket/one"), default_memory("s3://bucket/other")
    assert one != other
    assert one.parent == tmp_path / "freshet" / "trust"
    assert default_memory(str(tmp_path)) == default_memory(f"{tmp_path}/.")
