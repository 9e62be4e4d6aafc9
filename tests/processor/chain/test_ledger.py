"""A chain on disk: written by several, followed by others, adopted into, replaced under their eyes."""

import contextlib
import dataclasses
import errno
import os
import threading
from pathlib import Path

import pytest

from freshet_serving.processor.chain import ledger as ledger_module
from freshet_serving.processor.chain.chain_record import ChainRecord, record_name, sha256
from freshet_serving.processor.chain.ledger import Ledger
from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, Diverged, NotFound, NotReady
from freshet_serving.processor.package import atomic
from freshet_serving.processor.package import place as place_module
from freshet_serving.processor.package.delta import Delta, write_delta
from freshet_serving.processor.package.repository import Repository
from tests.packages import make_delta, write_package


@pytest.fixture
def version(tmp_path):
    write_package(tmp_path, users=range(6))
    return Repository(tmp_path).version("small", 1)


def drop(version, step, **changes):
    path = version.folder / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, [step], **changes))
    return path


def records(version):
    paths = sorted((version.folder / "chain").glob("*.json"))
    return [ChainRecord.from_bytes(path.read_bytes(), n) for n, path in enumerate(paths, start=1)]


def refuse_to_write(path, number=errno.EROFS):
    raise OSError(number, "read-only: /secret")


def snapshot_at(ledger, step):
    """A record of a snapshot whose files nobody looks at."""
    ledger.snapshot(ledger.history.on_line(step), f"snapshots/{step}-ab/snapshot.json", "ab" * 32, 9)


def test_a_file_stays_where_nobody_can_know_whether_its_record_stands(version, monkeypatch):
    ledger = Ledger.of(version, whole=True)
    whole = place_module.exclusive_file

    @contextlib.contextmanager
    def written_and_then_out_of_descriptors(path):
        with whole(path) as file:
            yield file
        monkeypatch.setattr(Ledger, "_read", out_of_descriptors)
        raise OSError(errno.EMFILE, "too many open files")

    def out_of_descriptors(self, number):
        raise NotReady("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(place_module, "exclusive_file", written_and_then_out_of_descriptors)
        with pytest.raises(NotReady, match="cannot be written"):
            ledger.publish(make_delta(1, [1]))
    monkeypatch.undo()
    again = Ledger.of(version, whole=True)
    assert (again.history.head.step, again.read_delta(again.history.head).step) == (1, 1)


def test_a_delta_that_is_published_is_a_file_and_its_record(version):
    ledger, delta = Ledger.of(version), make_delta(1, [1])
    link = ledger.publish(delta)
    (record,) = records(version)
    path = version.folder / "deltas" / "1.safetensors"
    assert (record.kind, record.step, record.file, record.at) == (
        "delta",
        1,
        "deltas/1.safetensors",
        delta.published_at,
    )
    assert (record.sha256, record.nbytes) == (sha256(path.read_bytes()), path.stat().st_size)
    assert Ledger.of(version).history.head == link
    assert ledger.read_delta(link).tables["user"].keys.tolist() == [1]
    assert ledger.path_of(link) == path.resolve()


def test_an_upload_is_kept_byte_for_byte_and_becomes_part_of_the_chain_only_by_its_record(version, tmp_path):
    write_delta(tmp_path / "made", delta := make_delta(1, [1]))
    data = (tmp_path / "made").read_bytes()
    ledger = Ledger.of(version)
    kept = ledger.keep(delta, data)
    assert kept.path.read_bytes() == data
    assert Ledger.of(version).history.head.step == 0, "nobody adopts it"
    link = ledger.commit(delta, kept)
    assert Ledger.of(version).history.head == link
    ledger.forget(kept)
    assert kept.path.exists(), "what is part of the chain is not taken back"


def test_what_was_kept_and_not_committed_is_taken_back(version, tmp_path):
    write_delta(tmp_path / "made", delta := make_delta(1, [1]))
    ledger = Ledger.of(version)
    kept = ledger.keep(delta, (tmp_path / "made").read_bytes())
    ledger.forget(kept)
    assert list((version.folder / "deltas").iterdir()) == []


def test_each_record_names_the_one_before_it_from_the_manifest_on(version):
    ledger = Ledger.of(version)
    for step in (1, 2):
        ledger.publish(make_delta(step, [step]))
    ledger.rollback(1, "labels were late")
    ledger.hold("look at it")
    ledger.release()
    kinds = [record.kind for record in records(version)]
    assert kinds == ["delta", "delta", "rollback", "hold", "release"]
    assert [r.reason for r in records(version)][2:4] == ["labels were late", "look at it"]
    names = [version.folder / record_name(n) for n in range(1, 6)]
    for before, after in zip(names, records(version)[1:]):
        assert after.previous == sha256(before.read_bytes())


def test_what_was_dropped_is_adopted_and_two_who_adopt_write_the_same(version):
    for step in (1, 2, 4):
        drop(version, step)
    first = Ledger.of(version)
    assert [link.step for link in first.history.line()] == [0, 1, 2]
    written = [(version.folder / record_name(n)).read_bytes() for n in (1, 2)]
    for n in (1, 2):
        (version.folder / record_name(n)).unlink()
    Ledger.of(version)
    assert [(version.folder / record_name(n)).read_bytes() for n in (1, 2)] == written


def test_a_repository_of_the_first_format_gets_its_records_in_its_order(version):
    drop(version, 1)
    drop(version, 5, parent=0, compacted=True)
    drop(version, 6)
    line = Ledger.of(version).history.line()
    assert [(link.step, link.record.parent_step) for link in line[1:]] == [(1, 0), (5, 1), (6, 5)]


@pytest.mark.parametrize(
    ("step", "changes", "error", "message"),
    [
        (2, {}, Conflict, "continues step 1, the served generation is 1.0"),
        (1, dict(version=2), Conflict, "for version 2, this is version 1"),
    ],
)
def test_what_does_not_continue_the_chain_is_no_part_of_it(version, step, changes, error, message):
    ledger = Ledger.of(version)
    with pytest.raises(error, match=message):
        ledger.publish(make_delta(step, [1], **changes))
    assert not (version.folder / "chain").exists()
    assert list((version.folder / "deltas").iterdir()) == []


def test_a_file_under_a_wrong_name_or_of_wrong_shape_is_not_adopted(version):
    ledger = Ledger.of(version)
    path = version.folder / "deltas" / "1.safetensors"
    write_delta(path, make_delta(2, [1], parent=0))
    with pytest.raises(BadInput, match="step 1 wanted by its file name, got 2"):
        ledger.adopt(path)
    write_delta(path, make_delta(1, [1, 1]))
    with pytest.raises(BadInput, match="more than once"):
        ledger.adopt(path)
    path.write_bytes(b"not a delta")
    with pytest.raises(Corrupt):
        ledger.adopt(path)
    assert ledger.history.number == 0


def test_after_a_rollback_the_next_step_is_a_new_one_on_the_old_parent(version):
    ledger = Ledger.of(version)
    for step in range(1, 8):
        ledger.publish(make_delta(step, [step]))
    ledger.rollback(4)
    with pytest.raises(Conflict, match="step 5 is used already; the next one is 8"):
        ledger.publish(make_delta(5, [5], tag=50))
    link = ledger.publish(make_delta(8, [5], parent=4))
    assert (link.step, link.record.parent_step) == (8, 4)
    assert [one.step for one in ledger.history.undone()] == [5, 6, 7]
    with pytest.raises(NotFound, match=r"1\.6 is not a generation of model 'small' to go back to"):
        ledger.rollback(6)


def test_a_step_before_a_snapshot_is_still_used_for_whoever_begins_there(version):
    ledger = Ledger.of(version)
    deltas = {step: make_delta(step, [step]) for step in (1, 2, 3)}
    for delta in deltas.values():
        ledger.publish(delta)
    ledger.rollback(1)
    ledger.publish(make_delta(4, [4], parent=1))
    snapshot_at(ledger, 4)
    ledger.rollback(1)
    other = Ledger.of(version)
    with pytest.raises(Conflict, match="step 2 is used already"):
        other.publish(make_delta(2, [9], tag=9))
    assert other.publish(deltas[2]).digest == ledger.history.known(2).digest


def test_who_begins_at_a_snapshot_reads_what_follows_it_and_can_reach_back(version, monkeypatch):
    ledger = Ledger.of(version)
    for step in range(1, 30):
        ledger.publish(make_delta(step, [step]))
        if step == 25:
            snapshot_at(ledger, 24)
    opened, read = [], Ledger._read
    monkeypatch.setattr(Ledger, "_read", lambda self, number: opened.append(number) or read(self, number))
    other = Ledger.of(version)
    assert other.history.head == ledger.history.head
    assert [link.step for link in other.history.line()] == [*range(24, 30)]
    assert min(opened) == 24
    other.reach_back()
    assert [link.step for link in other.history.line()] == [*range(30)]
    assert other.rollback(3).step == 3


def test_what_was_adopted_without_being_written_is_so_still_once_the_whole_chain_was_read(version, monkeypatch):
    ledger = Ledger.of(version)
    for step in range(1, 5):
        ledger.publish(make_delta(step, [step]))
    snapshot_at(ledger, 4)
    drop(version, 5)
    with monkeypatch.context() as patched:
        patched.setattr(place_module, "exclusive_file", refuse_to_write)
        other = Ledger.of(version)
        head = other.history.head
        other.reach_back()
        assert (head.step, other.history.head, other.written) == (5, head, False)
    ledger.adopt_all()
    other.look()
    assert (other.history.head, ledger.history.head) == (head, head)
    assert other.written


def test_who_publishes_knows_what_others_have_published_since_it_looked(version):
    ledger, other = Ledger.of(version), Ledger.of(version)
    ledger.publish(make_delta(1, [1]))
    assert other.publish(make_delta(2, [2])).step == 2


def test_a_rollback_beyond_the_snapshot_is_followed_by_who_began_there(version):
    ledger = Ledger.of(version)
    for step in range(1, 6):
        ledger.publish(make_delta(step, [step]))
    snapshot_at(ledger, 4)
    other = Ledger.of(version)
    ledger.rollback(2)
    assert [record.kind for record in other.look()] == ["rollback"]
    assert other.history.head == ledger.history.head
    assert Ledger.of(version).history.head == ledger.history.head


def test_a_gate_before_the_snapshot_is_followed_by_who_began_there(version):
    ledger = Ledger.of(version)
    for step in range(1, 6):
        ledger.publish(make_delta(step, [step]))
    snapshot_at(ledger, 4)
    other = Ledger.of(version)
    ledger.hold("1.3 held", ledger.history.on_line(2))
    assert [record.kind for record in other.look()] == ["hold"]
    assert other.history.target == ledger.history.target
    assert Ledger.of(version).history.target.step == 2


def test_of_several_who_hold_the_first_is_enough(version):
    one, other = Ledger.of(version), Ledger.of(version)
    for step in (1, 2, 3):
        one.publish(make_delta(step, [step]))
    one.hold("1.3 held", one.history.on_line(2))
    other.look()
    other.hold("1.3 held, too", other.history.on_line(2))
    other.hold("everything")
    assert [record.reason for record in records(version)][3:] == ["1.3 held"]
    other.hold("1.2 held", other.history.on_line(1))
    one.look()
    assert one.history.target.step == 1


def test_what_was_undone_meanwhile_is_not_held(version):
    ledger, other = Ledger.of(version), Ledger.of(version)
    for step in (1, 2, 3):
        ledger.publish(make_delta(step, [step]))
    other.look()
    before = other.history.on_line(2)
    ledger.rollback(1)
    other.hold("1.3 held", before)
    assert other.history.gate is None


def test_of_two_writers_one_wins_and_the_other_decides_anew(version, monkeypatch):
    one, other = Ledger.of(version), Ledger.of(version)
    real, lost = place_module.exclusive_file, []

    def beaten(path):
        if path.parent.name == "chain" and not lost:
            lost.append(path)
            other.publish(make_delta(1, [9], tag=9))
        return real(path)

    monkeypatch.setattr(place_module, "exclusive_file", beaten)
    with pytest.raises(Conflict, match="step 1 is not ahead"):
        one.publish(make_delta(1, [1]))
    assert [r.kind for r in records(version)] == ["delta"]
    assert one.history.head == other.history.head
    assert len(list((version.folder / "deltas").iterdir())) == 1


def test_a_delta_that_another_adopted_between_its_file_and_its_record_is_published(version, monkeypatch):
    one, real = Ledger.of(version), place_module.exclusive_file

    def adopted(path):
        if path.parent.name == "chain":
            monkeypatch.setattr(place_module, "exclusive_file", real)
            Ledger.of(version)
        return real(path)

    monkeypatch.setattr(place_module, "exclusive_file", adopted)
    assert one.publish(make_delta(1, [1])).step == 1
    assert [r.kind for r in records(version)] == ["delta"]


def test_many_writers_at_once_leave_one_chain(version):
    failures = []

    def write(seed):
        ledger = Ledger.of(version)
        for n in range(6):
            while True:
                ledger.look()
                head, top = ledger.history.head.step, ledger.history.top
                try:
                    if head > 2 and (seed + n) % 4 == 0:
                        ledger.rollback(head - 1 if ledger.history.on_line(head - 1) else 0)
                    else:
                        ledger.publish(make_delta(top + 1, [n], parent=head, tag=seed))
                    break
                except (Conflict, NotFound):
                    continue
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    history = Ledger.of(version).history
    assert history.number == len(records(version)) >= 18
    named = {link.record.file for link in history.links.values() if link.record}
    assert {f"deltas/{p.name}" for p in (version.folder / "deltas").iterdir()} == named


def test_without_hard_links_a_record_is_created_exclusively_all_the_same(version, monkeypatch):
    def none(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(atomic.os, "link", none)
    ledger = Ledger.of(version)
    for step in (1, 2):
        ledger.publish(make_delta(step, [step]))
    path = version.folder / record_name(3)
    path.write_bytes(b"")
    assert ledger.look() == [], "somebody is about to write it"
    monkeypatch.setattr(ledger_module, "TRY_AGAIN_S", 0.0)
    with pytest.raises(NotReady, match="others are writing"):
        ledger.publish(make_delta(3, [3]))
    os.utime(path, (1, 1))
    with pytest.raises(NotReady, match="record 3: the file is empty; if nobody"):
        ledger.look()
    path.unlink()
    assert ledger.publish(make_delta(3, [3])).step == 3


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_files_are_adopted_in_memory(version, monkeypatch, number):
    drop(version, 1)
    writable = place_module.exclusive_file
    monkeypatch.setattr(place_module, "exclusive_file", lambda path: refuse_to_write(path, number))
    ledger = Ledger.of(version)
    assert (ledger.history.head.step, ledger.written) == (1, False)
    with pytest.raises(NotReady, match="the repository cannot be written") as refused:
        ledger.rollback(0)
    assert "secret" not in str(refused.value)
    assert not list((version.folder / "chain").iterdir())

    # Somebody who can write adopts it too: the same record, which this one knows already.
    monkeypatch.setattr(place_module, "exclusive_file", writable)
    other = Ledger.of(version)
    other.publish(make_delta(2, [2]))
    assert [record.step for record in ledger.look()] == [1, 2]
    assert (ledger.history.head, ledger.written) == (other.history.head, True)


def test_a_full_disk_is_said_and_leaves_nothing_behind(version, monkeypatch):
    ledger = Ledger.of(version)

    def full(fd):
        raise OSError(errno.ENOSPC, "no space: /secret")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(NotReady, match="the repository cannot be written"):
        ledger.publish(make_delta(1, [1]))
    monkeypatch.undo()
    assert list((version.folder / "deltas").iterdir()) == []
    assert ledger.publish(make_delta(1, [1])).step == 1


@pytest.fixture
def watched(version):
    ledger = Ledger.of(version)
    for step in range(1, 5):
        ledger.publish(make_delta(step, [step]))
    return ledger


def test_a_record_that_does_not_continue_the_one_before_it_is_told(version, watched):
    data = (version.folder / record_name(4)).read_bytes()
    (version.folder / record_name(5)).write_bytes(data.replace(b'"number":4', b'"number":5'))
    with pytest.raises(Diverged, match="record 5: does not continue record 4"):
        watched.look()


def test_a_delta_whose_file_is_another_one_is_not_read(version, watched):
    link = watched.history.on_line(2)
    path = Path(watched.path_of(link))
    write_delta(path, make_delta(2, [2], tag=7))
    with pytest.raises(Diverged, match="delta 2: the file is not the one that record 2 names"):
        watched.read_delta(link)
    path.unlink()
    with pytest.raises(Diverged, match="delta 2: the file that record 2 names is not there"):
        watched.read_delta(link)


def test_a_file_that_another_has_kept_is_not_taken_back_by_who_found_it_there(version, tmp_path):
    write_delta(tmp_path / "made", delta := make_delta(1, [1]))
    data, one, other = (tmp_path / "made").read_bytes(), Ledger.of(version), Ledger.of(version)
    first, second = one.keep(delta, data), other.keep(delta, data)
    assert (first.path, first.ours, second.ours) == (second.path, True, False)
    other.forget(second)
    assert one.read_delta(one.commit(delta, first)).step == 1


@pytest.mark.parametrize("published_at", [1.7e12, -1.0])
def test_a_delta_whose_record_nobody_could_read_is_not_published(version, published_at):
    ledger = Ledger.of(version)
    bad = dataclasses.replace(make_delta(1, [1]), published_at=published_at)
    with pytest.raises(BadInput, match="published_at: expected seconds since 1970, got "):
        ledger.publish(bad)
    # Nor by way of a file's bytes that passed no check of a delta.
    kept = ledger.keep(make_delta(1, [1]), b"bytes")
    with pytest.raises(BadInput, match="record 1: at, reason or top out of bounds"):
        ledger.commit(bad, kept)
    assert records(version) == []
    assert ledger.history.number == 0
    assert list((version.folder / "deltas").iterdir()) == []
    ledger.publish(make_delta(1, [1]))
    assert Ledger.of(version, whole=True).history.head.step == 1


def test_a_step_far_ahead_is_refused_and_a_gap_is_not(version):
    ledger = Ledger.of(version)
    ledger.publish(make_delta(1, [1]))
    drop(version, 10**18 - 1, parent=1)
    again = Ledger.of(version)
    assert again.history.head.step == 1
    with pytest.raises(BadInput, match=f"step: expected at most 1000001, the newest is 1, got {10**18 - 1}"):
        again.adopt(version.folder / "deltas" / f"{10**18 - 1}.safetensors")
    again.publish(make_delta(1_000_001, [1], parent=1))
    assert Ledger.of(version, whole=True).history.head.step == 1_000_001


def test_a_dropped_file_with_times_in_milliseconds_is_not_adopted(version, monkeypatch):
    with monkeypatch.context() as unchecked:
        unchecked.setattr(Delta, "check_manifest", lambda self: None)
        path = version.folder / "deltas" / "1.safetensors"
        write_delta(path, dataclasses.replace(make_delta(1, [1]), published_at=1.7e12))
    ledger = Ledger.of(version)
    assert ledger.history.number == 0
    with pytest.raises(Corrupt, match=r"published_at: expected seconds since 1970, got 1700000000000.0; milliseconds"):
        ledger.adopt(path)
    ledger.publish(make_delta(1, [1]))
    assert Ledger.of(version, whole=True).history.head.step == 1


def test_a_record_that_names_no_snapshot_is_refused_by_every_reader(version):
    ledger = Ledger.of(version, whole=True)
    ledger.publish(make_delta(1, [1]))
    ledger.publish(make_delta(2, [2]))
    path = version.folder / record_name(2)
    made = dataclasses.replace(ChainRecord.from_bytes(path.read_bytes(), 2), snapshot=10**9)
    path.write_bytes(made.to_bytes())
    follower = Ledger(version)
    with contextlib.suppress(Diverged):
        follower.begin_at_snapshot()
    for reader in (follower.look, lambda: Ledger.of(version), lambda: Ledger.of(version, whole=True)):
        with pytest.raises(Diverged, match="record"):
            reader()
    assert follower.history.number == 1


@pytest.mark.parametrize("reason", ["\x1b[2J", "a\u202eb", "line\nserved: 1.99"])
def test_a_reason_that_does_not_print_is_refused_by_every_way_in(version, reason):
    ledger = Ledger.of(version, whole=True)
    ledger.publish(make_delta(1, [1]))
    for way in (lambda: ledger.rollback(0, reason), lambda: ledger.hold(reason), lambda: ledger.release(reason)):
        with pytest.raises((BadInput, Conflict), match=r"reason: |not held"):
            way()
    assert ledger.history.number == 1


def test_what_was_known_stays_known_where_the_chain_before_it_cannot_be_read(version):
    whole = Ledger.of(version, whole=True)
    for step in range(1, 6):
        whole.publish(make_delta(step, [step]))
    snapshot_at(whole, 4)
    part = Ledger.of(version)
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
