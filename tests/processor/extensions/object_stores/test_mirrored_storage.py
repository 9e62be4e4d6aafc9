"""A version in an object store, written and read through its mirror, with faults at every call."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Conflict, Corrupt, Diverged, NotReady, SigningKeyRequired
from freshet_serving.processor.package import new_key, write_delta
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.chain_record import record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.log.re_signing import re_sign
from freshet_serving.processor.tables.compaction import compact
from tests.processor.extensions.object_stores.bucket import Bucket, Killed
from tests.processor.extensions.object_stores.sides import opened, publish
from tests.support.packages import make_delta


@pytest.fixture
def version(bucket, tmp_path):
    return publish(opened(bucket, tmp_path / "one"), tmp_path, users=range(20))


def other(bucket, tmp_path, name="two"):
    return opened(bucket, tmp_path / name).version("small")


def digest(version):
    """Of what a version serves, all of it read."""
    change_log = ChangeLog.of(version)
    return VersionContents(version, change_log, change_log.history.head).link.digest


def patrol_all(change_log):
    for _ in range(4):
        change_log.scrub()


def agree(bucket, folder):
    """What lies in a mirror of the chain, lies in the bucket just so."""
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name in ("chain", "deltas") and not path.name.endswith(".tmp"):
            key = path.relative_to(folder.parent.parent).as_posix()
            assert bucket.objects.get(key) == path.read_bytes(), key


def test_published_version_is_read_by_another_mirror(bucket, version, tmp_path):
    ChangeLog.of(version).publish(make_delta(1, [1, 2]))
    theirs = other(bucket, tmp_path)
    assert digest(theirs) == digest(version)
    theirs.verify()
    assert (theirs.folder / "deltas" / "1.safetensors").read_bytes() == bucket.objects["small/1/deltas/1.safetensors"]


def test_version_is_committed_only_once(bucket, version, tmp_path):
    with pytest.raises(Conflict, match="already exists"):
        publish(opened(bucket, tmp_path / "two"), tmp_path)
    assert "small/1/.claim" not in bucket.objects


def test_version_claimed_by_another_writer_is_refused_and_own_resumed(bucket, tmp_path):
    def killed(call, key):
        if call == "create" and key.endswith("model.json"):
            raise Killed

    bucket.fault = killed
    with pytest.raises(Killed):
        publish(opened(bucket, tmp_path / "one"), tmp_path)
    bucket.fault = lambda call, key: None
    with pytest.raises(Conflict, match="is being published"):
        publish(opened(bucket, tmp_path / "two"), tmp_path)
    assert publish(opened(bucket, tmp_path / "one"), tmp_path).manifest.version == 1


def test_losing_writer_of_a_record_number_decides_again(bucket, version, tmp_path):
    mine, theirs = ChangeLog.of(version), ChangeLog.of(other(bucket, tmp_path))
    mine.publish(make_delta(1, [1]))
    with pytest.raises(Conflict):
        theirs.publish(make_delta(1, [2]))
    theirs.publish(make_delta(2, [2]))
    mine.look()
    assert mine.history.head == theirs.history.head


def test_outage_is_not_ready_and_shows_no_partial_state(bucket, version, tmp_path):
    change_log = ChangeLog.of(version)
    bucket.down = True
    with pytest.raises(NotReady, match="cannot be reached"):
        change_log.publish(make_delta(1, [1]))
    bucket.down = False
    assert "small/1/chain/0000000001.json" not in bucket.objects
    change_log.publish(make_delta(1, [1]))
    agree(bucket, version.folder)


def test_dropped_file_is_adopted(bucket, version, tmp_path):
    write_delta(tmp_path / "dropped", make_delta(1, [1]))
    bucket.objects["small/1/deltas/1.safetensors"] = (tmp_path / "dropped").read_bytes()
    assert ChangeLog.of(other(bucket, tmp_path)).history.head.step == 1
    assert "small/1/chain/0000000001.json" in bucket.objects


def test_snapshot_is_uploaded_before_its_record_and_read_at_start(bucket, version, tmp_path):
    change_log = ChangeLog.of(version)
    for step in (1, 2, 3):
        change_log.publish(make_delta(step, [step]))
    compact(version, change_log)
    change_log.publish(make_delta(4, [4]))
    theirs = opened(bucket, tmp_path / "two")
    theirs.models()
    bucket.calls.clear()
    theirs.prepare("small", 1)
    asked = {key for call, key in bucket.calls if call in ("get", "download")}
    assert not asked & {f"small/1/{record_name(n)}" for n in (1, 2)}
    assert not asked & {f"small/1/deltas/{n}.safetensors" for n in (1, 2, 3)}
    assert digest(theirs.reader("small", 1)) == digest(version)


def test_damaged_mirror_file_is_downloaded_again(bucket, version, tmp_path):
    ChangeLog.of(version).publish(make_delta(1, [1]))
    theirs = other(bucket, tmp_path)
    theirs.verify()
    before = digest(theirs)
    for path in [*theirs.folder.glob("tables/*"), theirs.folder / "deltas" / "1.safetensors"]:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    again = other(bucket, tmp_path)
    again.verify()
    assert digest(again) == before
    agree(bucket, again.folder)


def test_files_from_an_earlier_version_of_that_number_are_replaced(bucket, version, tmp_path):
    ChangeLog.of(other(bucket, tmp_path)).publish(make_delta(1, [1]))
    version.storage.end()
    assert bucket.objects.keys() <= {".hint"}
    publish(opened(bucket, tmp_path / "three"), tmp_path, users=range(7))
    theirs = other(bucket, tmp_path)
    theirs.verify()
    assert ChangeLog.of(theirs).history.number == 0


def test_records_missing_from_the_store_are_not_trusted(bucket, version, tmp_path):
    ChangeLog.of(version).publish(make_delta(1, [1]))
    theirs = other(bucket, tmp_path)
    digest(theirs)
    for name in ("chain/0000000001.json", "deltas/1.safetensors"):
        del bucket.objects[f"small/1/{name}"]
    assert ChangeLog.of(other(bucket, tmp_path)).history.number == 0
    assert "small/1/chain/0000000001.json" not in bucket.objects


def test_record_replaced_in_the_store_is_reported_by_the_log(bucket, version, tmp_path):
    ChangeLog.of(version).publish(make_delta(1, [1]))
    theirs = opened(bucket, tmp_path / "two")
    theirs.prepare("small", 1)
    change_log = ChangeLog.of(theirs.reader("small", 1))
    storage = theirs.storage("small", 1)
    storage.followed = True
    good = bucket.objects["small/1/chain/0000000001.json"]
    for change in (
        lambda: bucket.objects.update({"small/1/chain/0000000001.json": b"{}"}),
        lambda: bucket.objects.pop("small/1/chain/0000000001.json"),
    ):
        change()
        storage.scrub()
        with pytest.raises(Diverged):
            patrol_all(change_log)
        bucket.objects["small/1/chain/0000000001.json"] = good
        storage.scrub()
        patrol_all(change_log)


def test_replaced_delta_is_reported_and_an_evicted_one_is_not(bucket, version, tmp_path):
    ChangeLog.of(version).publish(make_delta(1, [1]))
    theirs = opened(bucket, tmp_path / "two")
    theirs.prepare("small", 1)
    storage, reader = theirs.storage("small", 1), theirs.reader("small", 1)
    change_log = ChangeLog.of(reader)
    change_log.read_delta(change_log.history.head)
    storage.followed = True
    storage.scrub()
    (reader.folder / "deltas" / "1.safetensors").unlink()
    storage.scrub()
    patrol_all(change_log)
    change_log.read_delta(change_log.history.head)
    good = bucket.objects["small/1/deltas/1.safetensors"]
    bucket.objects["small/1/deltas/1.safetensors"] = good[:-1] + b"?"
    storage.scrub()
    with pytest.raises(Diverged):
        patrol_all(change_log)
    bucket.objects["small/1/deltas/1.safetensors"] = good
    storage.scrub()
    patrol_all(change_log)


class Faults:
    """Faults by the number of a call: an outage before it, one after it, or the end of the process."""

    def __init__(self, at):
        self.at, self.calls = dict(at), 0

    def __call__(self, call, key):
        self.calls += 1
        kind = self.at.pop(self.calls, "")
        if kind == "out":
            raise NotReady("repository: the object store cannot be reached: no connection")
        if kind == "kill":
            raise Killed


FAULTS = st.lists(st.tuples(st.integers(1, 90), st.sampled_from(["out", "kill"])), max_size=5)
MOVES = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["publish", "rollback", "fold", "start"])), max_size=9)


@settings(max_examples=30, deadline=None)
@given(moves=MOVES, faults=FAULTS)
def test_no_acknowledged_record_is_lost_under_random_faults(tmp_path_factory, moves, faults):
    tmp_path, bucket = tmp_path_factory.mktemp("mirrors"), Bucket()
    publish(opened(bucket, tmp_path / "0"), tmp_path, users=range(5))
    folders, ledgers, versions = [tmp_path / "0", tmp_path / "1"], [None, None], [None, None]
    acknowledged = {}
    bucket.fault = Faults(faults)
    for who, move in moves:
        try:
            if ledgers[who] is None or move == "start":
                versions[who] = opened(bucket, folders[who]).version("small")
                ledgers[who] = ChangeLog.of(versions[who])
            change_log = ledgers[who]
            change_log.look()
            history = change_log.history
            if move == "publish":
                link = change_log.publish(
                    make_delta(history.top + 1, [history.top + 1, who], parent=history.head.step, tag=who)
                )
                acknowledged[link.record.number] = link.record
            elif move == "rollback" and history.head.parent:
                change_log.rollback(history.links[history.head.parent].step)
            elif move == "fold":
                compact(versions[who], change_log)
        except (NotReady, Conflict):
            pass
        except Killed:
            ledgers[who] = None
        for folder in folders:
            if (folder / "small").exists():
                agree_records(bucket, folder)
    bucket.fault = lambda call, key: None
    ends = set()
    for folder in (*folders, tmp_path / "fresh"):
        version = opened(bucket, folder).version("small")
        change_log = ChangeLog.of(version, whole=True)
        ends.add((VersionContents(version, change_log, change_log.history.head).link.digest, change_log.history.number))
        known = {record.number: record for record in change_log.records()}
        assert all(known[number] == record for number, record in acknowledged.items())
        version.verify()
    assert len(ends) == 1


def agree_records(bucket, folder):
    for path in (folder / "small").rglob("chain/*.json"):
        assert bucket.objects[path.relative_to(folder).as_posix()] == path.read_bytes()


@pytest.fixture
def keys(tmp_path):
    """Of who publishes, and of who serves and remembers."""
    private, public, _ = new_key(str(tmp_path / "prod"))
    return Keyring.of(private), Keyring.of(trust=[public], memory=str(tmp_path / "memory"))


def test_truncated_log_is_detected_by_an_empty_mirror(bucket, keys, tmp_path):
    ours, theirs = keys
    published = publish(opened(bucket, tmp_path / "one").with_keys(ours), tmp_path, users=range(20))
    ChangeLog.of(published).publish(make_delta(1, [1]))

    def follow(name):
        change_log = ChangeLog(opened(bucket, tmp_path / name, serving=True).with_keys(theirs).version("small", 1))
        change_log.look()
        change_log.recall()
        change_log.remember()
        return change_log

    assert follow("server").history.number == 1
    record = bucket.objects.pop("small/1/" + record_name(1))
    with pytest.raises(
        Corrupt, match="record 1: expected the one that was trusted here before, got a change log that ends before"
    ):
        follow("empty")
    bucket.objects["small/1/" + record_name(1)] = record
    bucket.fault = lambda call, key: _away(key)
    with pytest.raises(NotReady):
        follow("manifest alone")
    bucket.fault = lambda call, key: None
    assert follow("empty").history.number == 1


def _away(key):
    if "/chain/" in key:
        raise NotReady("repository: the object store cannot be reached: no answer in time")


def test_trusting_reader_refuses_an_unsigned_bucket(bucket, keys, tmp_path):
    publish(opened(bucket, tmp_path / "one"), tmp_path, users=range(20))
    with pytest.raises(Corrupt, match=r"manifest: expected a signature by key .*, got none"):
        opened(bucket, tmp_path / "server").with_keys(keys[1]).version("small")
    with pytest.raises(SigningKeyRequired):
        publish(opened(bucket, tmp_path / "one").with_keys(keys[1]), tmp_path, version=2)


def test_unsigned_bucket_is_signed_in_place(bucket, keys, tmp_path):
    ours, theirs = keys
    ChangeLog.of(publish(opened(bucket, tmp_path / "one"), tmp_path, users=range(20))).publish(make_delta(1, [1]))
    owner = opened(bucket, tmp_path / "owner")
    owner.keep_labels("small", {"stable": 1})
    made = re_sign(owner.with_keys(ours), "small", 1, unsigned=True)
    owner.re_sign_kept("small", unsigned=True)
    assert made.vouched.number == 1
    server = opened(bucket, tmp_path / "server", serving=True).with_keys(theirs)
    server.prepare("small", 1)
    version = server.version("small", 1)
    version.verify()
    assert ChangeLog.of(version).history.head.step == 1
    assert server.labels("small") == {"stable": 1}
