"""Decisions about versions: created once, read by all, bound to one content, and never those of a stranger."""

import errno
import os
import threading

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, NotReady, SigningKeyRequired
from freshet_serving.processor.repository import WITHDRAWN, Repository
from freshet_serving.processor.repository import version_records as records_module
from freshet_serving.processor.repository.log.chain_record import HOLD, RELEASE, root_hash
from freshet_serving.processor.repository.version_record import WITHDRAW, VersionRecord, record_file
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import Server, opened, publish
from tests.support.packages import write_package
from tests.support.signing import reads, writes
from tests.support.waiting import at_once

THIS, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def root(tmp_path):
    (tmp_path / "repository" / "small").mkdir(parents=True)
    return tmp_path / "repository"


def records_of(root, keyring=None):
    repository = Repository(root)
    return (repository.with_keys(keyring) if keyring else repository).version_records("small")


def place(root, version=2, number=1):
    path = root / "small" / WITHDRAWN / record_file(version, number)
    path.parent.mkdir(exist_ok=True)
    return path


def test_newest_record_of_a_version_stands(root):
    records = records_of(root)
    assert records.standing(2, THIS) is None
    assert records.all() == []
    records.add(2, THIS, HOLD, "scores moved", "gate")
    records.add(2, THIS, RELEASE, by="ann")
    records.add(3, OTHER, WITHDRAW)
    for reader in (records, records_of(root)):
        assert [(one.version, one.number, one.action) for one in reader.all()] == [
            (2, 1, HOLD), (2, 2, RELEASE), (3, 1, WITHDRAW)
        ]  # fmt: skip
        assert not reader.standing(2, THIS).binds
        assert reader.standing(3, OTHER).binds
        assert reader.versions() == {2, 3}
    assert records.all()[0].describe() == "held by gate: scores moved"


def test_file_in_the_place_of_the_folder_counts_as_no_records(root, caplog):
    (root / "small" / WITHDRAWN).write_bytes(b"")
    records = records_of(root)
    for _ in range(2):
        assert records.standing(2, THIS) is None
        records._watch.again()
    assert [record.message for record in caplog.records] == [
        "small: expected a folder named 'withdrawn', got a file: versions are served as if nothing was decided about "
        "them; remove the file"
    ]
    with pytest.raises(NotReady, match="the repository cannot be written"):
        records.add(2, THIS, HOLD)
    (root / "small" / WITHDRAWN).unlink()
    records.add(2, THIS, HOLD)
    assert records.standing(2, THIS).binds


def test_record_of_other_content_does_not_stand(root):
    records = records_of(root)
    records.add(2, THIS, WITHDRAW)
    assert records.standing(2, OTHER) is None
    records.add(2, OTHER, HOLD)
    assert records.standing(2, THIS).action == WITHDRAW
    assert records.standing(2, OTHER).action == HOLD


def test_slower_of_two_writers_decides_anew(root):
    first, second = records_of(root), records_of(root)
    assert first.all() == second.all() == []
    first.add(2, THIS, RELEASE)
    with pytest.raises(Conflict, match="recorded at the same time"):
        second.add(2, THIS, WITHDRAW)
    assert second.standing(2, THIS).action == RELEASE
    second.add(2, THIS, WITHDRAW)
    assert first.standing(2, THIS).action == WITHDRAW


def test_threads_that_write_at_once_get_a_number_each(root):
    won, barrier = [], threading.Barrier(4)

    def write(_):
        records = records_of(root)
        barrier.wait()
        try:
            won.append(records.add(2, THIS, HOLD).number)
        except Conflict:
            records.all()

    at_once(write, range(4))
    written = [one.number for one in records_of(root).all()]
    assert sorted(won) == written == list(range(1, len(written) + 1))


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 9000, b"\xff" * 20_000, b'{"format": "freshet-version-record/1"}'])
def test_invalid_file_keeps_its_number_and_says_nothing(root, caplog, data):
    records = records_of(root)
    records.add(2, THIS, HOLD)
    place(root, number=2).write_bytes(data)
    assert records.standing(2, THIS).action == HOLD
    assert records.add(2, THIS, RELEASE).number == 3
    assert records_of(root).standing(2, THIS).action == RELEASE
    assert caplog.text.count("ignoring a version record of small: ") == 2


def test_stray_names_use_up_no_number(root):
    for name in ("2-9999.json", "02-1.json", "2-1.json.tmp", ".2-1.json", "2-10000.json", "2-0.json"):
        place(root).with_name(name).write_bytes(b"x")
    records = records_of(root)
    assert records.all() == []
    assert records.add(2, THIS, HOLD).number == 1


def test_pipe_in_place_of_a_record_is_not_waited_for(root):
    os.mkfifo(place(root))
    assert records_of(root).all() == []


def test_torn_record_is_read_once_it_is_whole(root):
    """On a file system without links a name is given before its bytes are written."""
    records, record = records_of(root), VersionRecord("small", 2, 1, HOLD, THIS)
    place(root).write_bytes(b"")
    assert records.standing(2, THIS) is None
    place(root).write_bytes(record.to_bytes())
    assert records.standing(2, THIS) == record


def test_unchanged_folder_is_not_listed_again(root, monkeypatch):
    records = records_of(root)
    records.add(2, THIS, HOLD)
    os.utime(root / "small" / WITHDRAWN, (1_600_000_000, 1_600_000_000))
    before = records.revision
    monkeypatch.setattr(records_module.os, "scandir", None)
    assert records.standing(2, THIS).action == HOLD
    assert records.revision == before


def test_folder_that_cannot_be_read_is_not_an_empty_one(root, monkeypatch):
    place(root)

    def refuse(folder):
        raise PermissionError(errno.EACCES, "no", str(folder))

    monkeypatch.setattr(records_module.os, "scandir", refuse)
    with pytest.raises(NotReady, match="version records: cannot be read: Permission denied"):
        records_of(root).all()


def test_reasons_that_no_record_can_carry_are_refused(root):
    records = records_of(root)
    for reason, by in (("x" * 501, ""), ("a\nb", ""), ("", "y" * 65)):
        with pytest.raises(BadInput):
            records.add(2, THIS, HOLD, reason, by)
    with pytest.raises(BadInput, match="action"):
        records.add(2, THIS, "keep")
    assert not (root / "small" / WITHDRAWN).exists()


def test_signed_decision_is_taken_of_a_trusted_key_alone(root, caplog):
    records_of(root, writes()).add(2, THIS, HOLD)
    assert records_of(root, reads()).standing(2, THIS).action == HOLD
    assert records_of(root).standing(2, THIS).action == HOLD
    assert records_of(root, reads("stranger")).standing(2, THIS) is None
    unsigned = VersionRecord("small", 2, 2, RELEASE, THIS)
    place(root, number=2).write_bytes(unsigned.to_bytes())
    copied = place(root, number=1).read_bytes().replace(b'"number":1', b'"number":3')
    place(root, number=3).write_bytes(copied)
    assert records_of(root, reads()).standing(2, THIS).number == 1
    assert "expected a signature by key" in caplog.text


def test_process_without_the_key_decides_nothing_of_signed_records(root):
    with pytest.raises(SigningKeyRequired):
        records_of(root, reads()).add(2, THIS, HOLD)
    records_of(root, writes()).add(2, THIS, HOLD)
    unsigned = records_of(root)
    assert unsigned.all()
    with pytest.raises(SigningKeyRequired):
        unsigned.add(2, THIS, RELEASE)


def test_decisions_survive_a_change_of_keys(root):
    records = records_of(root, writes())
    records.add(2, THIS, HOLD, "scores moved", "gate")
    records.add(3, OTHER, HOLD)
    records.add(3, OTHER, RELEASE)
    for _ in range(2):
        Repository(root).with_keys(writes("next", trusts=["first"])).re_sign_kept("small")
    renewed = records_of(root, reads("next"))
    assert renewed.standing(2, THIS).describe() == "held by gate: scores moved"
    assert renewed.standing(3, OTHER).action == RELEASE
    assert [one.number for one in renewed.all()] == [2, 3]


def test_unsigned_decisions_are_signed_on_request(root):
    records_of(root).add(2, THIS, WITHDRAW)
    Repository(root).with_keys(writes()).re_sign_kept("small")
    assert records_of(root, reads()).all() == []
    Repository(root).with_keys(writes()).re_sign_kept("small", unsigned=True)
    assert records_of(root, reads()).standing(2, THIS).action == WITHDRAW


def test_repository_finds_what_stands_for_the_content_of_each_version(tmp_path):
    for version in (1, 2):
        write_package(tmp_path, version, users=range(2 + version))
    repository = Repository(tmp_path)
    manifest = root_hash(repository.version("small", 2).root_manifest)
    assert repository.root_of("small", 2) == manifest
    assert repository.root_of("small", 9) == ""
    repository.version_records("small").add(2, manifest, WITHDRAW)
    repository.version_records("small").add(1, OTHER, WITHDRAW)
    standing = repository.standing("small", [1, 2, 3])
    assert {number: record.action for number, record in standing.items()} == {2: WITHDRAW}


# Object stores


@pytest.fixture
def bucket():
    return Bucket()


def test_records_reach_every_mirror_of_a_store(bucket, tmp_path):
    trainer = opened(bucket, tmp_path / "trainer")
    for version in (1, 2):
        publish(trainer, tmp_path, version)
    server = Server(bucket, tmp_path / "server")
    server.load(2)
    server.beat()
    manifest = trainer.root_of("small", 2)
    assert server.repository.standing("small", [1, 2]) == {}
    trainer.version_records("small").add(2, manifest, WITHDRAW, "bad night", "ann")
    server.beat()
    assert server.repository.standing("small", [1, 2])[2].why == "bad night"
    server.repository.version_records("small").add(2, manifest, RELEASE)
    assert trainer.standing("small", [1, 2])[2].action == RELEASE
    new = opened(bucket, tmp_path / "new")
    assert new.standing("small", new.versions("small"))[2].action == RELEASE


def test_writer_that_is_late_in_a_store_reads_what_won(bucket, tmp_path):
    first, second = (opened(bucket, tmp_path / name) for name in ("first", "second"))
    publish(first, tmp_path)
    slow = second.version_records("small")
    first.version_records("small").add(1, THIS, RELEASE)
    with pytest.raises(Conflict):
        slow.add(1, THIS, WITHDRAW)
    assert slow.standing(1, THIS).action == RELEASE
    assert slow.add(1, THIS, WITHDRAW).number == 2


def test_version_appears_in_a_mirror_after_its_records(bucket, tmp_path):
    trainer = opened(bucket, tmp_path / "trainer")
    publish(trainer, tmp_path, 2)
    trainer.version_records("small").add(2, trainer.root_of("small", 2), HOLD)
    server = opened(bucket, tmp_path / "server")
    bucket.calls.clear()
    assert server.versions("small") == [2]
    asked = [key for _, key in bucket.calls]
    assert asked.index("small/withdrawn/2-1.json") < asked.index("small/2/model.json")
    bucket.calls.clear()
    assert server.versions("small") == [2]
    assert [call for call, key in bucket.calls if WITHDRAWN in key] == ["keys"]


def test_no_version_appears_while_its_records_cannot_be_listed(bucket, tmp_path):
    trainer = opened(bucket, tmp_path / "trainer")
    publish(trainer, tmp_path, 1)
    trainer.version_records("small").add(1, THIS, HOLD)

    def fault(call, key):
        if call == "keys" and WITHDRAWN in key:
            raise NotReady("no answer")

    bucket.fault = fault
    with pytest.raises(NotReady):
        opened(bucket, tmp_path / "server").versions("small")


def test_record_too_large_keeps_its_number_in_a_mirror(bucket, tmp_path):
    trainer = opened(bucket, tmp_path / "trainer")
    publish(trainer, tmp_path)
    bucket.objects["small/withdrawn/1-1.json"] = b"x" * 9000
    records = trainer.version_records("small")
    assert records.all() == []
    assert records.add(1, THIS, HOLD).number == 2
    del bucket.objects["small/withdrawn/1-1.json"], bucket.objects["small/withdrawn/1-2.json"]
    assert trainer.version_records("small").all() == []


def test_record_that_a_server_adds_during_a_listing_stays(bucket, tmp_path, monkeypatch):
    """A listing from before the rollback took its record away, and the server went on to the withdrawn version."""
    server = opened(bucket, tmp_path / "server")
    publish(server, tmp_path, 1)
    records = server.version_records("small")
    listed = bucket.keys

    def keys(prefix):
        before = listed(prefix)
        monkeypatch.undo()
        if prefix.endswith(f"{WITHDRAWN}/"):
            records.add(1, THIS, WITHDRAW)
        return before

    assert records.standing(1, THIS) is None
    monkeypatch.setattr(bucket, "keys", keys)
    server.mirror.listing.records("small")
    assert records.standing(1, THIS).action == WITHDRAW
