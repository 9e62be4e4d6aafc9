"""A chain on disk: written by several, followed by others, adopted into, replaced under their eyes."""

import contextlib
import dataclasses
import errno
import os
from pathlib import Path

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, NotFound, NotReady
from freshet_serving.processor.package import Delta, parse_delta, sha256, whole_files, write_delta
from freshet_serving.processor.repository import storage as storage_module
from freshet_serving.processor.repository.log import change_log as ledger_module
from freshet_serving.processor.repository.log.chain_record import ChainRecord, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.processor.repository.log.damaged import chain_of, snapshot_at
from tests.support.packages import delta_bytes, make_delta
from tests.support.waiting import at_once


def drop(version, step, **changes):
    path = version.folder / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, [step], **changes))
    return path


def records(version):
    paths = sorted((version.folder / "chain").glob("*.json"))
    return [ChainRecord.from_bytes(path.read_bytes(), n) for n, path in enumerate(paths, start=1)]


def refuse_to_write(path, number=errno.EROFS):
    raise OSError(number, "read-only: /secret")


def written(change_log):
    return (change_log.folder / record_name(change_log.history.number)).exists()


def test_file_stays_when_its_record_state_is_unknown(version, monkeypatch):
    change_log = ChangeLog.of(version, whole=True)
    whole = storage_module.exclusive_file

    @contextlib.contextmanager
    def written_and_then_out_of_descriptors(path):
        with whole(path) as file:
            yield file
        monkeypatch.setattr(ChangeLog, "_read", out_of_descriptors)
        raise OSError(errno.EMFILE, "too many open files")

    def out_of_descriptors(self, number):
        raise NotReady("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(storage_module, "exclusive_file", written_and_then_out_of_descriptors)
        with pytest.raises(NotReady, match="cannot be written"):
            change_log.publish(make_delta(1, [1]))
    monkeypatch.undo()
    again = ChangeLog.of(version, whole=True)
    assert (again.history.head.step, again.read_delta(again.history.head).step) == (1, 1)


def test_published_delta_is_a_file_and_its_record(version):
    change_log, delta = ChangeLog.of(version), make_delta(1, [1])
    link = change_log.publish(delta)
    (record,) = records(version)
    path = version.folder / "deltas" / "1.safetensors"
    assert (record.kind, record.step, record.file, record.at) == (
        "delta",
        1,
        "deltas/1.safetensors",
        delta.published_at,
    )
    assert (record.sha256, record.nbytes) == (sha256(path.read_bytes()), path.stat().st_size)
    assert ChangeLog.of(version).history.head == link
    assert change_log.read_delta(link).tables["user"].keys.tolist() == [1]
    assert change_log.path_of(link) == path.resolve()


@pytest.fixture
def upload(version):
    """A change log, a delta whose file it has kept, and that file."""
    change_log, delta = ChangeLog.of(version), make_delta(1, [1])
    return change_log, delta, change_log.keep(delta, delta_bytes(1, [1]))


def test_upload_joins_the_change_log_only_by_its_record(version, upload):
    change_log, delta, kept = upload
    assert parse_delta(kept.path.read_bytes()).step == 1
    assert ChangeLog.of(version).history.head.step == 0, "nobody adopts it"
    link = change_log.commit(delta, kept)
    assert ChangeLog.of(version).history.head == link
    change_log.forget(kept)
    assert kept.path.exists(), "what is part of the chain is not taken back"


def hidden(version):
    return list((version.folder / "chain").glob(".*"))


def test_prepared_record_counts_only_once_it_is_committed(version, upload, monkeypatch):
    change_log, delta, kept = upload
    change_log.prepare(delta, kept)
    assert ChangeLog.of(version).history.head.step == 0
    assert len(hidden(version)) == 1
    monkeypatch.setattr(storage_module, "exclusive_file", refuse_to_write)
    link = change_log.commit(delta, kept)
    assert ChangeLog.of(version).history.head == link
    assert hidden(version) == []


def test_record_is_made_anew_if_another_writer_was_faster(version, upload):
    change_log, delta, kept = upload
    change_log.prepare(delta, kept)
    ChangeLog.of(version).hold("elsewhere")
    link = change_log.commit(delta, kept)
    assert [record.kind for record in records(version)] == ["hold", "delta"]
    assert ChangeLog.of(version).history.head == link
    assert hidden(version) == []


@pytest.mark.parametrize("prepared", [True, False])
def test_forgotten_delta_leaves_no_file_and_no_prepared_record(version, upload, prepared):
    change_log, delta, kept = upload
    if prepared:
        change_log.prepare(delta, kept)
    change_log.forget(kept)
    assert hidden(version) == records(version) == list((version.folder / "deltas").iterdir()) == []


def test_record_that_cannot_be_prepared_is_created_by_its_commit(version, upload, monkeypatch):
    change_log, delta, kept = upload
    with monkeypatch.context() as patch:
        patch.setattr(whole_files.os, "fsync", lambda fd: refuse_to_write(fd, errno.ENOSPC))
        change_log.prepare(delta, kept)
    assert hidden(version) == []
    assert change_log.commit(delta, kept).step == 1


def test_each_record_names_its_predecessor_from_the_manifest_on(version):
    change_log = chain_of(version, 2)
    change_log.rollback(1, "labels were late")
    change_log.hold("look at it")
    change_log.release()
    kinds = [record.kind for record in records(version)]
    assert kinds == ["delta", "delta", "rollback", "hold", "release"]
    assert [r.reason for r in records(version)][2:4] == ["labels were late", "look at it"]
    names = [version.folder / record_name(n) for n in range(1, 6)]
    for before, after in zip(names, records(version)[1:]):
        assert after.previous == sha256(before.read_bytes())


def test_concurrent_adoption_of_dropped_files_writes_equal_records(version):
    for step in (1, 2, 4):
        drop(version, step)
    first = ChangeLog.of(version)
    assert [link.step for link in first.history.line()] == [0, 1, 2]
    written = [(version.folder / record_name(n)).read_bytes() for n in (1, 2)]
    for n in (1, 2):
        (version.folder / record_name(n)).unlink()
    ChangeLog.of(version)
    assert [(version.folder / record_name(n)).read_bytes() for n in (1, 2)] == written


def test_repository_of_the_first_format_gets_records_in_order(version):
    drop(version, 1)
    drop(version, 5, parent=0, compacted=True)
    drop(version, 6)
    line = ChangeLog.of(version).history.line()
    assert [(link.step, link.record.parent_step) for link in line[1:]] == [(1, 0), (5, 1), (6, 5)]


@pytest.mark.parametrize(
    ("step", "changes", "error", "message"),
    [
        (2, {}, Conflict, "continues step 1, the served generation is 1.0"),
        (1, dict(version=2), Conflict, "is for version 2, but this is version 1"),
        (1, dict(model="other"), BadInput, "expected model 'small', got 'other'"),
    ],
)
def test_file_that_does_not_continue_the_change_log_is_ignored(version, step, changes, error, message):
    change_log = ChangeLog.of(version)
    with pytest.raises(error, match=message):
        change_log.publish(dataclasses.replace(make_delta(step, [1]), **changes))
    assert not (version.folder / "chain").exists()
    assert list((version.folder / "deltas").iterdir()) == []


def test_misnamed_or_malformed_file_is_not_adopted(version):
    change_log = ChangeLog.of(version)
    path = version.folder / "deltas" / "1.safetensors"
    write_delta(path, make_delta(2, [1], parent=0))
    with pytest.raises(BadInput, match="expected step 1 by its file name, got 2"):
        change_log.adopt(path)
    write_delta(path, make_delta(1, [1, 1]))
    with pytest.raises(BadInput, match="more than once"):
        change_log.adopt(path)
    path.write_bytes(b"not a delta")
    with pytest.raises(Corrupt):
        change_log.adopt(path)
    assert change_log.history.number == 0


def test_step_after_a_rollback_is_new_on_the_old_parent(version):
    change_log = chain_of(version, 7)
    change_log.rollback(4)
    with pytest.raises(Conflict, match="step 5 is already used; the next one is 8"):
        change_log.publish(make_delta(5, [5], tag=50))
    link = change_log.publish(make_delta(8, [5], parent=4))
    assert (link.step, link.record.parent_step) == (8, 4)
    assert [one.step for one in change_log.history.undone()] == [5, 6, 7]
    with pytest.raises(NotFound, match=r"generation 1\.6 of model 'small' does not exist"):
        change_log.rollback(6)


def test_step_before_a_snapshot_is_never_reused_by_later_readers(version):
    change_log = ChangeLog.of(version)
    deltas = {step: make_delta(step, [step]) for step in (1, 2, 3)}
    for delta in deltas.values():
        change_log.publish(delta)
    change_log.rollback(1)
    change_log.publish(make_delta(4, [4], parent=1))
    snapshot_at(change_log, 4)
    change_log.rollback(1)
    other = ChangeLog.of(version)
    with pytest.raises(Conflict, match="step 2 is already used"):
        other.publish(make_delta(2, [9], tag=9))
    assert other.publish(deltas[2]).digest == change_log.history.known(2).digest


def test_reader_starting_at_a_snapshot_can_reach_back(version, monkeypatch):
    change_log = ChangeLog.of(version)
    for step in range(1, 30):
        change_log.publish(make_delta(step, [step]))
        if step == 25:
            snapshot_at(change_log, 24)
    opened, read = [], ChangeLog._read
    monkeypatch.setattr(ChangeLog, "_read", lambda self, number: opened.append(number) or read(self, number))
    other = ChangeLog.of(version)
    assert other.history.head == change_log.history.head
    assert [link.step for link in other.history.line()] == [*range(24, 30)]
    assert min(opened) == 24
    other.reach_back()
    assert [link.step for link in other.history.line()] == [*range(30)]
    assert other.rollback(3).step == 3


def test_unwritten_adoption_stays_unwritten_after_reading_the_whole_log(version, monkeypatch):
    change_log = chain_of(version, 4)
    snapshot_at(change_log, 4)
    drop(version, 5)
    with monkeypatch.context() as patched:
        patched.setattr(storage_module, "exclusive_file", refuse_to_write)
        other = ChangeLog.of(version)
        head = other.history.head
        other.reach_back()
        assert (head.step, other.history.head, written(other)) == (5, head, False)
    change_log.adopt_all()
    other.look()
    assert (other.history.head, change_log.history.head) == (head, head)
    assert written(other)


def test_publisher_sees_deltas_published_by_other_writers(version):
    change_log, other = ChangeLog.of(version), ChangeLog.of(version)
    change_log.publish(make_delta(1, [1]))
    assert other.publish(make_delta(2, [2])).step == 2


@pytest.mark.parametrize("kind", ["rollback", "hold"])
def test_change_before_the_snapshot_reaches_readers_that_began_there(version, kind):
    change_log = chain_of(version, 5)
    snapshot_at(change_log, 4)
    other = ChangeLog.of(version)
    change_log.rollback(2) if kind == "rollback" else change_log.hold("1.3 held", change_log.history.on_line(2))
    assert [record.kind for record in other.look()] == [kind]
    for reader in (other, ChangeLog.of(version)):
        assert reader.history.head == change_log.history.head
        assert reader.history.target == change_log.history.target
    assert change_log.history.target.step == 2


def test_first_of_several_holds_at_a_step_suffices(version):
    one, other = chain_of(version, 3), ChangeLog.of(version)
    one.hold("1.3 held", one.history.on_line(2))
    other.look()
    other.hold("1.3 held, too", other.history.on_line(2))
    other.hold("everything")
    assert [record.reason for record in records(version)][3:] == ["1.3 held"]
    other.hold("1.2 held", other.history.on_line(1))
    one.look()
    assert one.history.target.step == 1


def test_hold_of_an_undone_step_is_ignored(version):
    change_log, other = chain_of(version, 3), ChangeLog.of(version)
    before = other.history.on_line(2)
    change_log.rollback(1)
    other.hold("1.3 held", before)
    assert other.history.gate is None


def test_losing_writer_of_a_record_decides_again(version, monkeypatch):
    one, other = ChangeLog.of(version), ChangeLog.of(version)
    real, lost = storage_module.exclusive_file, []

    def beaten(path):
        if path.parent.name == "chain" and not lost:
            lost.append(path)
            other.publish(make_delta(1, [9], tag=9))
        return real(path)

    monkeypatch.setattr(storage_module, "exclusive_file", beaten)
    with pytest.raises(Conflict, match="step 1 is not ahead"):
        one.publish(make_delta(1, [1]))
    assert [r.kind for r in records(version)] == ["delta"]
    assert one.history.head == other.history.head
    assert len(list((version.folder / "deltas").iterdir())) == 1


def test_delta_adopted_before_its_own_record_counts_as_published(version, monkeypatch):
    one, real = ChangeLog.of(version), storage_module.exclusive_file

    def adopted(path):
        if path.parent.name == "chain":
            monkeypatch.setattr(storage_module, "exclusive_file", real)
            ChangeLog.of(version)
        return real(path)

    monkeypatch.setattr(storage_module, "exclusive_file", adopted)
    assert one.publish(make_delta(1, [1])).step == 1
    assert [r.kind for r in records(version)] == ["delta"]


def test_concurrent_writers_leave_one_change_log(version):
    failures = []

    def write(seed):
        change_log = ChangeLog.of(version)
        for n in range(6):
            while True:
                change_log.look()
                head, top = change_log.history.head.step, change_log.history.top
                try:
                    if head > 2 and (seed + n) % 4 == 0:
                        change_log.rollback(head - 1 if change_log.history.on_line(head - 1) else 0)
                    else:
                        change_log.publish(make_delta(top + 1, [n], parent=head, tag=seed))
                    break
                except (Conflict, NotFound):
                    continue
                except Exception as error:
                    failures.append(error)
                    return

    at_once(write, range(4))
    assert failures == []
    history = ChangeLog.of(version).history
    assert history.number == len(records(version)) >= 18
    named = {link.record.file for link in history.links.values() if link.record}
    assert {f"deltas/{p.name}" for p in (version.folder / "deltas").iterdir()} == named


def test_record_is_created_exclusively_without_hard_links(version, monkeypatch):
    def none(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(whole_files.os, "link", none)
    change_log = chain_of(version, 2)
    path = version.folder / record_name(3)
    path.write_bytes(b"")
    assert change_log.look() == [], "somebody is about to write it"
    monkeypatch.setattr(ledger_module, "TRY_AGAIN_S", 0.0)
    with pytest.raises(NotReady, match="other writers write"):
        change_log.publish(make_delta(3, [3]))
    os.utime(path, (1, 1))
    with pytest.raises(NotReady, match="record 3: the file is empty; if no process"):
        change_log.look()
    path.unlink()
    assert change_log.publish(make_delta(3, [3])).step == 3


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_read_only_repository_adopts_files_in_memory(version, monkeypatch, number):
    drop(version, 1)
    writable = storage_module.exclusive_file
    monkeypatch.setattr(storage_module, "exclusive_file", lambda path: refuse_to_write(path, number))
    change_log = ChangeLog.of(version)
    assert (change_log.history.head.step, written(change_log)) == (1, False)
    with pytest.raises(NotReady, match="the repository cannot be written") as refused:
        change_log.rollback(0)
    assert "secret" not in str(refused.value)
    assert not list((version.folder / "chain").iterdir())

    # Somebody who can write adopts it too: the same record, which this one knows already.
    monkeypatch.setattr(storage_module, "exclusive_file", writable)
    other = ChangeLog.of(version)
    other.publish(make_delta(2, [2]))
    assert [record.step for record in change_log.look()] == [1, 2]
    assert (change_log.history.head, written(change_log)) == (other.history.head, True)


def test_full_disk_is_reported_and_leaves_nothing_behind(version, monkeypatch):
    change_log = ChangeLog.of(version)

    def full(fd):
        raise OSError(errno.ENOSPC, "no space: /secret")

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(NotReady, match="the repository cannot be written"):
        change_log.publish(make_delta(1, [1]))
    monkeypatch.undo()
    assert list((version.folder / "deltas").iterdir()) == []
    assert change_log.publish(make_delta(1, [1])).step == 1


@pytest.fixture
def watched(version):
    return chain_of(version, 4)


def test_record_that_does_not_continue_its_predecessor_is_reported(version, watched):
    data = (version.folder / record_name(4)).read_bytes()
    (version.folder / record_name(5)).write_bytes(data.replace(b'"number":4', b'"number":5'))
    with pytest.raises(Diverged, match="record 5: does not continue record 4"):
        watched.look()


def test_delta_whose_file_was_replaced_is_not_read(version, watched):
    link = watched.history.on_line(2)
    path = Path(watched.path_of(link))
    write_delta(path, make_delta(2, [2], tag=7))
    with pytest.raises(Diverged, match="delta 2: the file does not match record 2"):
        watched.read_delta(link)
    path.unlink()
    with pytest.raises(Diverged, match="delta 2: the file that record 2 names does not exist"):
        watched.read_delta(link)


def test_forget_keeps_a_file_that_another_writer_kept(version, upload):
    one, delta, first = upload
    other = ChangeLog.of(version)
    second = other.keep(delta, first.path.read_bytes())
    assert (first.path, first.ours, second.ours) == (second.path, True, False)
    other.forget(second)
    assert one.read_delta(one.commit(delta, first)).step == 1


@pytest.mark.parametrize("published_at", [1.7e12, -1.0])
def test_delta_with_an_unreadable_record_is_not_published(version, published_at):
    change_log = ChangeLog.of(version)
    bad = dataclasses.replace(make_delta(1, [1]), published_at=published_at)
    with pytest.raises(BadInput, match="published_at: expected seconds since 1970, got "):
        change_log.publish(bad)
    # Nor by way of a file's bytes that passed no check of a delta.
    kept = change_log.keep(make_delta(1, [1]), b"bytes")
    with pytest.raises(BadInput, match="record 1: at, reason or top out of bounds"):
        change_log.commit(bad, kept)
    assert records(version) == []
    assert change_log.history.number == 0
    assert list((version.folder / "deltas").iterdir()) == []
    change_log.publish(make_delta(1, [1]))
    assert ChangeLog.of(version, whole=True).history.head.step == 1


def test_step_far_ahead_is_refused_and_a_gap_is_allowed(version):
    change_log = ChangeLog.of(version)
    change_log.publish(make_delta(1, [1]))
    drop(version, 10**18 - 1, parent=1)
    again = ChangeLog.of(version)
    assert again.history.head.step == 1
    with pytest.raises(BadInput, match=f"step: expected at most 1000001, the newest is 1, got {10**18 - 1}"):
        again.adopt(version.folder / "deltas" / f"{10**18 - 1}.safetensors")
    again.publish(make_delta(1_000_001, [1], parent=1))
    assert ChangeLog.of(version, whole=True).history.head.step == 1_000_001


def test_dropped_file_with_millisecond_times_is_not_adopted(version, monkeypatch):
    with monkeypatch.context() as unchecked:
        unchecked.setattr(Delta, "check_manifest", lambda self: None)
        path = version.folder / "deltas" / "1.safetensors"
        write_delta(path, dataclasses.replace(make_delta(1, [1]), published_at=1.7e12))
    change_log = ChangeLog.of(version)
    assert change_log.history.number == 0
    with pytest.raises(Corrupt, match=r"published_at: expected seconds since 1970, got 1700000000000.0; milliseconds"):
        change_log.adopt(path)
    change_log.publish(make_delta(1, [1]))
    assert ChangeLog.of(version, whole=True).history.head.step == 1


def test_record_that_names_no_snapshot_is_refused_by_every_reader(version):
    chain_of(version, 2)
    path = version.folder / record_name(2)
    made = dataclasses.replace(ChainRecord.from_bytes(path.read_bytes(), 2), snapshot=10**9)
    path.write_bytes(made.to_bytes())
    follower = ChangeLog(version)
    with contextlib.suppress(Diverged):
        follower.begin_at_snapshot()
    for reader in (follower.look, lambda: ChangeLog.of(version), lambda: ChangeLog.of(version, whole=True)):
        with pytest.raises(Diverged, match="record"):
            reader()
    assert follower.history.number == 1


@pytest.mark.parametrize("reason", ["\x1b[2J", "a\u202eb", "line\nserved: 1.99"])
def test_unprintable_reason_is_refused_by_every_operation(version, reason):
    change_log = chain_of(version, 1)
    for refused in (lambda: change_log.rollback(0, reason), lambda: change_log.hold(reason)):
        with pytest.raises(BadInput, match=r"reason: "):
            refused()
    with pytest.raises((BadInput, Conflict), match=r"reason: |not held"):
        change_log.release(reason)
    assert change_log.history.number == 1


def test_known_records_stay_known_when_earlier_ones_are_unreadable(version):
    whole = chain_of(version, 5)
    snapshot_at(whole, 4)
    part = ChangeLog.of(version)
    assert part.history.base.step == 4
    (version.folder / record_name(2)).write_bytes(b"{}")
    with pytest.raises(Diverged, match="record 2: "):
        part.reach_back()
    assert (part.history.head.step, part.history.number) == (5, 6)
    # Nor does a rollback that leads behind the snapshot cut what is known.
    back = whole.history.next("rollback", whole.history.on_line(3), at=1.7e9)
    (version.folder / record_name(7)).write_bytes(back.to_bytes())
    with pytest.raises(Diverged, match="record 2: "):
        part.look()
    assert (part.history.head.step, part.history.number) == (5, 6)
