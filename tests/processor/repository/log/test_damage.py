"""What ends a chain, and the repair that lets it go on: what is cut, what is not, races, restarts, signatures."""

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Conflict, Diverged, NotReady
from freshet_serving.processor.package.whole_files import sha256
from freshet_serving.processor.repository.log import damage as damage_module
from freshet_serving.processor.repository.log.chain_record import REPAIR, ChainRecord, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.damage import find_damage, repair
from freshet_serving.processor.repository.log.repair import RecordsDigest
from freshet_serving.processor.repository.model_repository import Repository
from tests.processor.repository.log.damaged import (
    MILLISECONDS,
    chain_of,
    damaged_chain,
    delta_record,
    snapshot_at,
    write_unchecked,
)
from tests.support.packages import make_delta, write_package
from tests.support.waiting import at_once


def files(version):
    return {path.name: path.read_bytes() for path in (version.folder / "chain").glob("*.json")}


def test_change_log_ended_by_a_millisecond_time_is_repaired(version):
    damaged_chain(version, good=3, behind=2)
    before = files(version)
    with pytest.raises(Diverged, match="record 4: at, reason or top out of bounds"):
        ChangeLog.of(version, whole=True)
    change_log = ChangeLog(version)
    damage = find_damage(change_log)
    assert (damage.first, damage.last, damage.cut) == (4, 6, (None, "delta 1.5", "rollback 1.3"))
    record = repair(change_log, 4, "a time in milliseconds")
    assert (record.kind, record.number, record.since, record.step, record.top) == (REPAIR, 7, 4, 3, 5)
    again = ChangeLog.of(version, whole=True)
    assert (again.history.head.step, again.history.number, again.history.top) == (3, 7, 5)
    # The steps of what was cut are used: a name has one content.
    link = again.publish(make_delta(6, [1], parent=3))
    assert ChangeLog.of(version, whole=True).history.head.digest == link.digest
    assert {name: data for name, data in files(version).items() if name in before} == before


def test_sound_change_log_needs_no_repair(version):
    chain_of(version, 1)
    assert find_damage(ChangeLog(version)) is None
    assert repair(ChangeLog(version), 1) is None
    assert list(files(version)) == ["0000000001.json"]


def test_sound_record_cannot_be_cut_by_its_number(version):
    damaged_chain(version, good=3)
    assert repair(ChangeLog(version), 3) is None
    assert repair(ChangeLog(version), 5) is None
    assert len(files(version)) == 6


def test_readers_refuse_a_repair_of_a_sound_record(version):
    change_log = chain_of(version, 3)
    # As a tool would write it that asks no reader whether record 2 is sound.
    history, marks = ChangeLog(version).history, RecordsDigest()
    first = (version.folder / record_name(1)).read_bytes()
    history.take(ChainRecord.from_bytes(first, 1), sha256(first))
    for number in (2, 3):
        marks.add(number, (version.folder / record_name(number)).read_bytes())
    forged = history.next(REPAIR, history.head, number=4, since=2, top=3, sha256=marks.digest(), at=1.0)
    (version.folder / record_name(4)).write_bytes(forged.to_bytes())
    for reader in (ChangeLog(version), change_log):
        with pytest.raises(Diverged, match="record 4: does not continue record 3"):
            reader.look()
        assert reader.history.head.step == 3
        with pytest.raises(Diverged):
            reader.look()


def test_file_restored_after_a_repair_ends_the_log(version):
    chain_of(version, 3)
    path = version.folder / record_name(2)
    sound = path.read_bytes()
    path.write_bytes(sound[:-9])
    repair(ChangeLog(version), 2)
    assert ChangeLog.of(version, whole=True).history.head.step == 1
    path.write_bytes(sound)
    with pytest.raises(Diverged, match="record 4: does not continue record 3"):
        ChangeLog.of(version, whole=True)
    path.write_bytes(sound[:-8])
    with pytest.raises(Diverged, match="record 2: expected a JSON object"):
        ChangeLog.of(version, whole=True)


def test_reader_of_cut_records_goes_back_on_its_next_look(version):
    change_log = chain_of(version, 3)
    (version.folder / record_name(2)).write_bytes(b"{}")
    repair(ChangeLog(version), 2)
    assert [record.kind for record in change_log.look()] == [REPAIR]
    assert (change_log.history.head.step, change_log.history.number, change_log.history.top) == (1, 4, 3)
    for _ in range(6):
        change_log.scrub()
    with pytest.raises(Conflict, match="continues step 3"):
        change_log.publish(make_delta(4, [1]))
    change_log.publish(make_delta(4, [1], parent=1))
    assert ChangeLog.of(version, whole=True).history.newest == change_log.history.newest


def test_repair_and_append_never_share_a_number(version, monkeypatch):
    writer = damaged_chain(version, good=2, behind=2)
    change_log, create, came = ChangeLog(version), ChangeLog.create, []

    def create_later(self, record, in_memory=False):
        if record.kind == REPAIR and not came:
            # The server that wrote the bad record is at work still.
            came.append(write_unchecked(version, writer, delta_record(version, writer, 6)))
        return create(self, record, in_memory)

    monkeypatch.setattr(ChangeLog, "create", create_later)
    record = repair(change_log, 3)
    assert (came[0].number, record.number, record.top) == (6, 7, 6)
    assert ChangeLog.of(version, whole=True).history.head.step == 2


def test_concurrent_repairs_make_one_repair(version):
    damaged_chain(version)
    made, ready = [], threading.Barrier(6)

    def run(_):
        change_log = ChangeLog(version)
        ready.wait()
        made.append(repair(change_log, 4))

    at_once(run, range(6))
    assert len([record for record in made if record is not None]) == 1
    kinds = [record.kind for record in ChangeLog(version).records()]
    assert kinds == ["delta"] * 3 + ["repair"]


def test_change_log_can_be_repaired_repeatedly(version):
    damaged_chain(version, good=2, behind=0)
    repair(ChangeLog(version), 3)
    change_log = ChangeLog.of(version, whole=True)
    change_log.publish(make_delta(4, [1], parent=2))
    write_unchecked(version, change_log, delta_record(version, change_log, 5, at=MILLISECONDS))
    repair(ChangeLog(version), 6)
    # A repair may be damaged itself.
    (version.folder / record_name(4)).write_bytes(b"")
    os.utime(version.folder / record_name(4), (1, 1))
    assert find_damage(ChangeLog(version)).first == 3
    repair(ChangeLog(version), 3)
    again = ChangeLog.of(version, whole=True)
    assert (again.history.head.step, again.history.number, again.history.top) == (2, 8, 5)


@pytest.mark.parametrize("what", ["folder", "large", "empty", "pipe", "link to nothing"])
def test_malformed_record_file_is_set_aside_too(version, what):
    chain_of(version, 1)
    path = version.folder / record_name(2)
    if what == "folder":
        path.mkdir()
    elif what == "large":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif what == "empty":
        path.touch()
        os.utime(path, (1, 1))
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nothing")
        (version.folder / record_name(3)).write_bytes(b"{}")
    damage = find_damage(ChangeLog(version))
    if what == "link to nothing":
        assert damage is None
        return
    assert damage.first == 2
    assert repair(ChangeLog(version), 2).number == 3
    again = ChangeLog.of(version, whole=True)
    assert again.history.head.step == 1
    # What lies there may have had a step, and does not tell it.
    again.publish(make_delta(3, [1], parent=1))
    assert ChangeLog.of(version, whole=True).history.head.step == 3


def test_record_being_written_is_not_damage(version):
    ChangeLog.of(version).publish(make_delta(1, [1]))
    (version.folder / record_name(2)).touch()
    with pytest.raises(NotReady, match="record 2: another process may be writing it; try again in a minute"):
        find_damage(ChangeLog(version))


def test_damage_before_the_snapshot_is_not_cut(version):
    change_log = chain_of(version, 5)
    snapshot_at(change_log, 4)
    (version.folder / record_name(2)).write_bytes(b"{}")
    assert find_damage(ChangeLog(version)) is None
    # Neither where the newest record is damaged besides, which is what a start reads first.
    change_log.publish(make_delta(6, [1]))
    (version.folder / record_name(7)).write_bytes(b"{}")
    damage = find_damage(ChangeLog(version))
    assert (damage.first, damage.last) == (7, 7)
    assert repair(ChangeLog(version), 7).number == 8
    again = ChangeLog(version)
    again.begin_at_snapshot()
    again.look()
    assert (again.history.head.step, again.history.number) == (5, 8)


def test_repair_reason_must_be_printable(version):
    damaged_chain(version)
    with pytest.raises(BadInput, match="reason"):
        repair(ChangeLog(version), 4, "line\nserved: 1.99")
    assert len(files(version)) == 6


@settings(max_examples=20, deadline=None)
@given(
    back=st.lists(st.booleans(), min_size=2, max_size=6),
    where=st.floats(0, 1, exclude_max=True),
    at=st.floats(0, 1, exclude_max=True),
    put=st.binary(max_size=4),
    gone=st.integers(1, 9),
)
def test_repair_keeps_everything_before_the_damage(tmp_path_factory, back, where, at, put, gone):
    """Damages one record by any change, repairs the chain and goes on: what comes before is kept, every reader agrees,
    and no step is used twice. back: which records are rollbacks."""
    folder = tmp_path_factory.mktemp("repository")
    write_package(folder, users=range(6))
    version = Repository(folder).version("small", 1)
    change_log = ChangeLog.of(version, whole=True)
    served = [change_log.history.head]
    for step, undo in enumerate(back):
        if undo and len(served) > 1 and served[-1].step:
            change_log.rollback(change_log.history.links[served[-1].parent].step)
        else:
            change_log.publish(make_delta(change_log.history.top + 1, [step % 6], parent=change_log.history.head.step))
        served.append(change_log.history.head)
    top, number = change_log.history.top, 1 + int(where * change_log.history.number)
    path = version.folder / record_name(number)
    sound = path.read_bytes()
    place = int(at * len(sound))
    path.write_bytes((sound[:place] + put + sound[place + gone :]) or b"x")
    damage = find_damage(ChangeLog(version))
    if damage is None or damage.first != number:
        # It is a record still, though another one: what follows it does not continue it.
        ChainRecord.from_bytes(path.read_bytes(), number)
        assert damage is None or damage.first == number + 1
        return
    assert repair(ChangeLog(version), number).number == damage.last + 1
    fresh = ChangeLog.of(version, whole=True)
    assert fresh.history.head.digest == served[number - 1].digest
    change_log.look()
    assert change_log.history.newest == fresh.history.newest
    assert fresh.history.top >= top
    fresh.publish(make_delta(fresh.history.top + 1, [0], parent=fresh.history.head.step))
    change_log.look()
    assert change_log.history.head.digest == fresh.history.head.digest
    assert find_damage(ChangeLog(version)) is None


def test_reader_stopped_within_a_cut_range_takes_the_repair(version):
    chain_of(version, 3)
    (version.folder / record_name(4)).write_bytes(b"{}")
    reader = ChangeLog(version)
    with pytest.raises(Diverged, match="record 4"):
        reader.look()
    # Then a record is damaged that it has read, and what is cut begins there.
    (version.folder / record_name(2)).write_bytes(b"{}")
    assert repair(ChangeLog(version), 2).number == 5
    # The repair itself is damaged before it is seen, or what it sets aside, and all of it cut once more.
    (version.folder / record_name(3)).write_bytes(b"{}")
    with pytest.raises(Diverged):
        reader.look()
    assert reader.history.head.step == 3
    assert repair(ChangeLog(version), 2).number == 6
    assert [record.number for record in reader.look()] == [6]
    assert (reader.history.head.step, reader.history.newest) == (1, ChangeLog.of(version, whole=True).history.newest)


def test_unknown_steps_of_cut_records_are_never_reused(version):
    chain_of(version, 4)
    for number in (2, 4):
        (version.folder / record_name(number)).write_bytes(b"not a record")
    # As where the files of deltas are not at hand: record 3 tells of step 3, record 4 may have used another.
    for path in (version.folder / "deltas").iterdir():
        path.unlink()
    assert find_damage(ChangeLog(version)).top == 4


def test_repair_made_during_assessment_is_not_cut(version, monkeypatch):
    damaged_chain(version, good=3, behind=2)
    mine, assess, came = ChangeLog(version), damage_module.assess, []

    def assess_later(*args):
        if not came:
            came.append(None)
            came.append(repair(ChangeLog(version), 4))
        return assess(*args)

    monkeypatch.setattr(damage_module, "assess", assess_later)
    assert repair(mine, 4) is None
    assert came[-1].number == 7
    assert len(files(version)) == 7
    assert ChangeLog.of(version, whole=True).history.number == 7
