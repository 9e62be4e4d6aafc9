"""Repairs as readers meet them: what one is, when it holds, and what looking for one costs."""

import dataclasses

import pytest

from freshet_serving.processor.errors import Conflict, Corrupt, Diverged, NotReady, SigningKeyRequired
from freshet_serving.processor.repository.log import repair as repair_module
from freshet_serving.processor.repository.log.chain_record import REPAIR, record_bytes, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.damage import find_damage, repair
from freshet_serving.processor.repository.log.re_signing import re_sign
from freshet_serving.processor.repository.log.repair import (
    NO_FILE,
    RepairWatch,
    find_repair,
    parsed_repair,
    read_record,
)
from freshet_serving.processor.repository.model_repository import Repository
from tests.processor.repository.log.damaged import damaged_chain
from tests.support.packages import make_delta, write_package
from tests.support.signing import reads, writes


def take_all(record, data):
    """Refuses no repair."""


def refuse_all(record, data):
    raise Conflict("another chain's")


def test_repair_is_found_after_all_records_that_it_sets_aside(version):
    damaged_chain(version, good=2, behind=2)
    assert find_repair(version.storage, 3, take_all) is None
    made = repair(ChangeLog(version), 3)
    assert find_repair(version.storage, 3, take_all) == made
    assert find_repair(version.storage, 4, take_all) is None
    assert find_repair(version.storage, 3, refuse_all) is None


@pytest.mark.parametrize(
    "change", [dict(sha256="00" * 32), dict(since=4), dict(previous="00" * 32), dict(top=1), dict(top=10**9)]
)
def test_repair_of_a_different_log_is_itself_set_aside(version, change):
    damaged_chain(version, good=2, behind=2)
    made = repair(ChangeLog(version), 3)
    path = version.folder / record_name(made.number)
    path.write_bytes(dataclasses.replace(made, **change).to_bytes())
    with pytest.raises(Diverged, match="record 3: "):
        ChangeLog(version).look()
    again = repair(ChangeLog(version), 3)
    assert (again.number, again.since) == (made.number + 1, 3)
    assert ChangeLog.of(version, whole=True).history.head.step == 2


def test_invalid_repair_record_is_not_parsed_as_a_repair(version):
    damaged_chain(version, good=2, behind=2)
    made = repair(ChangeLog(version), 3)
    assert parsed_repair(made.to_bytes(), made.number) == made
    assert parsed_repair(made.to_bytes(), made.number + 1) is None
    assert parsed_repair(made.to_bytes()[:-2], made.number) is None
    assert parsed_repair((version.folder / record_name(1)).read_bytes(), 1) is None
    with pytest.raises(Corrupt, match="the first of the records that it sets aside"):
        type(made).from_bytes(dataclasses.replace(made, since=made.number).to_bytes(), made.number)


def test_unreadable_record_file_differs_from_a_missing_one(version):
    (version.folder / "chain").mkdir()
    assert record_bytes(version.storage, 1) is None
    assert read_record(version.storage, 1) is None
    (version.folder / record_name(1)).mkdir()
    with pytest.raises(Corrupt, match="expected a regular file"):
        record_bytes(version.storage, 1)
    assert read_record(version.storage, 1) == NO_FILE


def test_new_repair_is_reported_once_and_found_with_one_read(version, monkeypatch):
    damaged_chain(version, good=2, behind=2)
    news, asked = RepairWatch(version.storage), []
    assert not news.come(2)
    monkeypatch.setattr(
        repair_module, "record_bytes", lambda storage, number: asked.append(number) or record_bytes(storage, number)
    )
    assert not news.come(2)
    assert asked == [6]
    repair(ChangeLog(version), 3)
    assert news.come(2)
    assert not news.come(2)


def signed_version(root, keyring):
    return Repository(root).with_keys(keyring).version("small", 1)


def test_repair_is_signed_when_records_are_signed(tmp_path):
    write_package(tmp_path, users=range(6), keyring=writes())
    change_log = ChangeLog.of(signed_version(tmp_path, writes()))
    change_log.publish(make_delta(1, [1]))
    change_log.publish(make_delta(2, [2]))
    server = ChangeLog(signed_version(tmp_path, reads(memory=tmp_path / "memory")))
    server.look()
    server.remember()
    (tmp_path / "small" / "1" / record_name(2)).write_bytes(b"{}")
    for stranger in (reads(), writes("stranger")):
        with pytest.raises((SigningKeyRequired, Corrupt)):
            repair(ChangeLog(signed_version(tmp_path, stranger)), 2)
    # A repair that nobody has signed, by somebody who asks for no signatures, is none.
    bare = ChangeLog(Repository(tmp_path).version("small", 1))
    damage = find_damage(bare)
    forged = bare.history.next(
        REPAIR, bare.history.head, number=3, since=2, top=damage.top, sha256=damage.sha256, at=1.7e9
    )
    (tmp_path / "small" / "1" / record_name(3)).write_bytes(forged.to_bytes())
    with pytest.raises(Diverged, match="record 2"):
        ChangeLog(signed_version(tmp_path, reads())).look()
    made = repair(ChangeLog(signed_version(tmp_path, writes())), 2)
    assert (made.number, made.key) == (4, change_log.history.head.record.key)
    again = ChangeLog(signed_version(tmp_path, reads()))
    again.look()
    assert again.history.head.step == 1


def test_signed_repair_may_set_aside_records_that_a_server_trusted(tmp_path):
    write_package(tmp_path, users=range(6), keyring=writes())
    change_log = ChangeLog.of(signed_version(tmp_path, writes()))
    for step in (1, 2, 3):
        change_log.publish(make_delta(step, [step]))
    keyring = reads(memory=tmp_path / "memory")
    server = ChangeLog(signed_version(tmp_path, keyring))
    server.look()
    server.remember()
    (tmp_path / "small" / "1" / record_name(2)).write_bytes(b"{}")
    repair(ChangeLog(signed_version(tmp_path, writes())), 2)
    # It restarts: record 3, which it remembers, is set aside.
    again = ChangeLog(signed_version(tmp_path, keyring))
    again.recall()
    again.look()
    again.remember()
    assert (again.history.head.step, again.history.number) == (1, 4)
    once_more = ChangeLog(signed_version(tmp_path, keyring))
    once_more.recall()
    (tmp_path / "small" / "1" / record_name(4)).unlink()
    with pytest.raises(Corrupt, match="record 4: expected the one that was trusted here before"):
        ChangeLog(signed_version(tmp_path, keyring)).recall()


def test_newly_signed_manifest_approves_the_log_around_a_repair(tmp_path):
    write_package(tmp_path, users=range(6))
    version = Repository(tmp_path).version("small", 1)
    damaged_chain(version, good=2, behind=2)
    repair(ChangeLog(version), 3)
    ChangeLog.of(version).publish(make_delta(5, [1], parent=2))
    re_sign(Repository(tmp_path).with_keys(writes()), "small", 1, unsigned=True)
    change_log = ChangeLog(signed_version(tmp_path, reads()))
    change_log.look()
    assert (change_log.history.head.step, change_log.history.number) == (5, 7)


@pytest.mark.parametrize("what", ["file", "loop"])
def test_invalid_record_folder_is_retryable(version, what):
    chain = version.folder / "chain"
    chain.write_bytes(b"") if what == "file" else chain.symlink_to("chain")
    with pytest.raises(NotReady, match="record 1: cannot be read"):
        ChangeLog(version).look()
    assert not RepairWatch(version.storage).come(0)
    with pytest.raises(NotReady):
        find_repair(version.storage, 1, take_all)
