"""Repairs as readers meet them: what one is, when it holds, and what looking for one costs."""

import dataclasses

import pytest

from freshet_serving.processor.chain import repair as repair_module
from freshet_serving.processor.chain.chain_record import REPAIR, record_name
from freshet_serving.processor.chain.damage import find_damage, repair
from freshet_serving.processor.chain.ledger import Ledger
from freshet_serving.processor.chain.repair import NO_FILE, Marks, NewRepairs, find_repair, parsed_repair, record_bytes
from freshet_serving.processor.chain.resigning import resign
from freshet_serving.processor.errors import Conflict, Corrupt, Diverged, KeyWanted, NotReady
from freshet_serving.processor.package.repository import Repository
from tests.packages import make_delta, write_package
from tests.processor.chain.damaged import damaged_chain
from tests.signing import reads, writes


@pytest.fixture
def version(tmp_path):
    write_package(tmp_path, users=range(6))
    return Repository(tmp_path).version("small", 1)


def take_all(record, data):
    """Refuses no repair."""


def refuse_all(record, data):
    raise Conflict("another chain's")


def test_a_repair_is_found_behind_all_that_it_sets_aside(version):
    damaged_chain(version, good=2, behind=2)
    assert find_repair(version.place, 3, take_all) is None
    made = repair(Ledger(version), 3)
    assert find_repair(version.place, 3, take_all) == made
    assert find_repair(version.place, 4, take_all) is None
    assert find_repair(version.place, 3, refuse_all) is None


@pytest.mark.parametrize(
    "change", [dict(sha256="00" * 32), dict(since=4), dict(previous="00" * 32), dict(top=1), dict(top=10**9)]
)
def test_a_repair_that_is_not_of_this_chain_is_one_more_record_to_set_aside(version, change):
    damaged_chain(version, good=2, behind=2)
    made = repair(Ledger(version), 3)
    path = version.folder / record_name(made.number)
    path.write_bytes(dataclasses.replace(made, **change).to_bytes())
    with pytest.raises(Diverged, match="record 3: "):
        Ledger(version).look()
    again = repair(Ledger(version), 3)
    assert (again.number, again.since) == (made.number + 1, 3)
    assert Ledger.of(version, whole=True).history.head.step == 2


def test_what_is_no_repair_is_told_from_one(version):
    damaged_chain(version, good=2, behind=2)
    made = repair(Ledger(version), 3)
    assert parsed_repair(made.to_bytes(), made.number) == made
    assert parsed_repair(made.to_bytes(), made.number + 1) is None
    assert parsed_repair(made.to_bytes()[:-2], made.number) is None
    assert parsed_repair((version.folder / record_name(1)).read_bytes(), 1) is None
    with pytest.raises(Corrupt, match="the first of the records that it sets aside wanted"):
        type(made).from_bytes(dataclasses.replace(made, since=made.number).to_bytes(), made.number)


def test_bytes_are_those_of_the_file_and_nothing_is_told_from_no_file(version):
    (version.folder / "chain").mkdir()
    assert record_bytes(version.place, 1) is None
    assert Marks().read(version.place, 1) is None
    (version.folder / record_name(1)).mkdir()
    with pytest.raises(Corrupt, match="a regular file wanted"):
        record_bytes(version.place, 1)
    assert Marks().read(version.place, 1) == NO_FILE


def test_a_new_repair_is_told_once_and_looking_for_one_costs_one_look(version, monkeypatch):
    damaged_chain(version, good=2, behind=2)
    news, asked = NewRepairs(version.place), []
    assert not news.come(2)
    monkeypatch.setattr(
        repair_module, "record_bytes", lambda place, number: asked.append(number) or record_bytes(place, number)
    )
    assert not news.come(2)
    assert asked == [6]
    repair(Ledger(version), 3)
    assert news.come(2)
    assert not news.come(2)


def signed_version(root, keyring):
    return Repository(root).with_keys(keyring).version("small", 1)


def test_a_repair_is_signed_where_records_are(tmp_path):
    write_package(tmp_path, users=range(6), keyring=writes())
    ledger = Ledger.of(signed_version(tmp_path, writes()))
    ledger.publish(make_delta(1, [1]))
    ledger.publish(make_delta(2, [2]))
    server = Ledger(signed_version(tmp_path, reads(memory=tmp_path / "memory")))
    server.look()
    server.remember()
    (tmp_path / "small" / "1" / record_name(2)).write_bytes(b"{}")
    for stranger in (reads(), writes("stranger")):
        with pytest.raises((KeyWanted, Corrupt)):
            repair(Ledger(signed_version(tmp_path, stranger)), 2)
    # A repair that nobody has signed, by somebody who asks for no signatures, is none.
    bare = Ledger(Repository(tmp_path).version("small", 1))
    damage = find_damage(bare)
    forged = bare.history.next(
        REPAIR, bare.history.head, number=3, since=2, top=damage.top, sha256=damage.sha256, at=1.7e9
    )
    (tmp_path / "small" / "1" / record_name(3)).write_bytes(forged.to_bytes())
    with pytest.raises(Diverged, match="record 2"):
        Ledger(signed_version(tmp_path, reads())).look()
    made = repair(Ledger(signed_version(tmp_path, writes())), 2)
    assert (made.number, made.key) == (4, ledger.history.head.record.key)
    again = Ledger(signed_version(tmp_path, reads()))
    again.look()
    assert again.history.head.step == 1


def test_what_a_server_has_trusted_may_be_set_aside_by_a_signed_repair(tmp_path):
    write_package(tmp_path, users=range(6), keyring=writes())
    ledger = Ledger.of(signed_version(tmp_path, writes()))
    for step in (1, 2, 3):
        ledger.publish(make_delta(step, [step]))
    keyring = reads(memory=tmp_path / "memory")
    server = Ledger(signed_version(tmp_path, keyring))
    server.look()
    server.remember()
    (tmp_path / "small" / "1" / record_name(2)).write_bytes(b"{}")
    repair(Ledger(signed_version(tmp_path, writes())), 2)
    # It restarts: record 3, which it remembers, is set aside.
    again = Ledger(signed_version(tmp_path, keyring))
    again.recall()
    again.look()
    again.remember()
    assert (again.history.head.step, again.history.number) == (1, 4)
    once_more = Ledger(signed_version(tmp_path, keyring))
    once_more.recall()
    (tmp_path / "small" / "1" / record_name(4)).unlink()
    with pytest.raises(Corrupt, match="record 4: the one that was trusted here wanted"):
        Ledger(signed_version(tmp_path, keyring)).recall()


def test_a_manifest_that_is_signed_anew_vouches_for_a_chain_around_what_is_set_aside(tmp_path):
    write_package(tmp_path, users=range(6))
    version = Repository(tmp_path).version("small", 1)
    damaged_chain(version, good=2, behind=2)
    repair(Ledger(version), 3)
    Ledger.of(version).publish(make_delta(5, [1], parent=2))
    resign(Repository(tmp_path).with_keys(writes()), "small", 1, unsigned=True)
    ledger = Ledger(signed_version(tmp_path, reads()))
    ledger.look()
    assert (ledger.history.head.step, ledger.history.number) == (5, 7)


@pytest.mark.parametrize("what", ["file", "loop"])
def test_a_folder_of_records_that_is_none_keeps_nobody_for_good(version, what):
    chain = version.folder / "chain"
    chain.write_bytes(b"") if what == "file" else chain.symlink_to("chain")
    with pytest.raises(NotReady, match="record 1: cannot be read"):
        Ledger(version).look()
    assert not NewRepairs(version.place).come(0)
    with pytest.raises(NotReady):
        find_repair(version.place, 1, take_all)
