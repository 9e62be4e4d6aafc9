"""A served model whose repository is the mirror of a bucket: what keeps one version from coming keeps nothing else."""

import errno
import json
import shutil

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package import new_key, write_delta
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.damage import repair
from freshet_serving.processor.repository.log.re_signing import re_sign
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.extensions.object_stores.sides import opened, publish
from tests.support.packages import connect, make_delta
from tests.support.waiting import until


class Replica:
    """A model that is served from a mirror, beat by beat."""

    def __init__(self, bucket, folder, keyring=NO_KEYS):
        self.clock = FakeClock()
        self.repository = opened(bucket, folder, self.clock.now_s, serving=True).with_keys(keyring)
        load = lambda files: ServedVersion(files, 4, self.clock)  # noqa: E731
        self.model = ServedModel("small", self.repository, load, connect, self.clock, policy=ModelPolicy())
        self.repository.models()
        self.model.poll()
        self.repository.mirror.following = True

    def go(self, beats=20, s=0.3):
        """What polls have said meanwhile."""
        said, mirror = [], self.repository.mirror
        for _ in range(beats):
            self.clock.advance(s)
            mirror.beat()
            if mirror.listing_due():
                mirror.list_all()
            said += self.model.poll()
            until(lambda: all(p.done for p in mirror._preparing.values()))
        return said

    @property
    def generation(self):
        return str(self.model.pick().generation)

    def errors(self):
        return {status.version: status.error for status in self.model.routes.status() if status.error}


@pytest.fixture
def replica(bucket, trainer, tmp_path):
    return Replica(bucket, tmp_path / "server")


def test_version_without_disk_space_loads_once_there_is_some(bucket, replica, tmp_path):
    publish(opened(bucket, tmp_path / "trainer"), tmp_path, version=2, users=range(20))

    def full(call, key):
        if call == "download" and "/2/" in key:
            raise OSError(errno.ENOSPC, "No space left on device", "/a/path/of/ours/user.safetensors")

    bucket.fault = full
    said = replica.go()
    assert replica.generation == "1.0"
    assert said
    assert all("waits" in line and "ours" not in line for line in said)
    bucket.fault = lambda call, key: None
    replica.go(60, 1.0)
    assert (replica.generation, replica.errors()) == ("2.0", {})


@pytest.mark.parametrize("poison", ["files", "notes"])
def test_version_with_an_undownloadable_manifest_is_refused_once(bucket, trainer, tmp_path, poison):
    manifest = json.loads(bucket.objects["small/1/model.json"]) | {"version": 9}
    if poison == "files":
        manifest["files"] |= {name: {"nbytes": 1, "crc32": "00000000"} for name in ("zzz", "zzz/a")}
        bucket.objects |= {"small/9/zzz": b"x", "small/9/zzz/a": b"x"}
    text = json.dumps(manifest)
    if poison == "notes":
        text = text.replace('"notes": {', '"notes": {"deep": ' + '{"a": ' * 700 + "1" + "}" * 700 + ", ").replace(
            ", }", "}"
        )
    bucket.objects["small/9/model.json"] = text.encode()
    for key, data in list(bucket.objects.items()):
        if key.startswith("small/1/") and key != "small/1/model.json":
            bucket.objects.setdefault(key.replace("/1/", "/9/", 1), data)
    replica = Replica(bucket, tmp_path / "server")
    assert replica.generation == "1.0"
    said = replica.go(100, 1.0)
    assert [line for line in said if "9" in line] == []
    assert list(replica.errors()) == [9]
    trainer.publish(make_delta(1, [1]))
    replica.go(3)
    assert replica.generation == "1.1"


def test_diverged_replica_is_checked_as_long_as_it_is_served(bucket, trainer, replica):
    trainer.publish(make_delta(1, [1]))
    trainer.publish(make_delta(2, [2]))
    replica.go()
    assert replica.generation == "1.2"
    key = "small/1/chain/0000000002.json"
    good = bucket.objects[key]
    bucket.objects[key] = good.replace(b'"number":2', b'"number":3')
    replica.go(60, 3.0)
    assert replica.model.chain(1).state == "DIVERGED"
    bucket.objects[key] = good
    replica.go(60, 3.0)
    assert (replica.model.chain(1).state, replica.generation) == ("CURRENT", "1.2")


def test_record_with_a_lost_reply_keeps_its_file(bucket, trainer, replica, tmp_path):
    from freshet_serving.processor.errors import NotReady

    def lost(call, key):
        if call == "create!" and "/chain/" in key:
            bucket.fault = lambda call, key: None
            raise NotReady("repository: the object store cannot be reached: no answer in time")

    delta = make_delta(1, [1])
    write_delta(tmp_path / "d", delta)
    bucket.fault = lost
    with pytest.raises(FreshetError):
        replica.model.apply_bytes((tmp_path / "d").read_bytes())
    replica.go()
    assert replica.generation == "1.1"
    other = ChangeLog.of(opened(bucket, tmp_path / "other").version("small"))
    assert other.read_delta(other.history.head).step == 1


def test_version_republished_under_its_number_is_loaded_on_request(bucket, trainer, replica, tmp_path):
    for step in range(1, 6):
        trainer.publish(make_delta(step, [step]))
    replica.go()
    assert replica.generation == "1.5"
    opened(bucket, tmp_path / "trainer").storage("small", 1).end()
    again = ChangeLog.of(publish(opened(bucket, tmp_path / "trainer"), tmp_path, users=range(7)))
    again.publish(make_delta(1, [1]))
    replica.go(10, 1.0)
    assert replica.model.chain(1).state == "DIVERGED"
    replica.model.load(1)
    assert (replica.model.chain(1).state, replica.generation) == ("CURRENT", "1.1")


@pytest.mark.parametrize("shortage", [MemoryError(), RuntimeError("can't start new thread")])
def test_local_resource_shortage_is_retried(bucket, replica, tmp_path, shortage):
    publish(opened(bucket, tmp_path / "trainer"), tmp_path, version=2, users=range(20))

    def short(call, key):
        if call == "download" and "/2/" in key:
            bucket.fault = lambda call, key: None
            raise shortage

    bucket.fault = short
    replica.go(60, 1.0)
    assert (replica.generation, replica.errors()) == ("2.0", {})


def test_version_whose_manifest_arrives_first_waits_for_its_tables(bucket, replica, tmp_path):
    publish(opened(bucket, tmp_path / "trainer"), tmp_path, version=2, users=range(20))
    late = {key: bucket.objects.pop(key) for key in list(bucket.objects) if key.startswith("small/2/tables")}
    replica.go(30, 1.0)
    assert replica.generation == "1.0"
    assert "is not in the object store" in replica.errors()[2]
    bucket.objects |= late
    replica.go(30, 1.0)
    assert (replica.generation, replica.errors()) == ("2.0", {})


def test_refused_version_is_retried_once_its_manifest_changes(bucket, trainer, tmp_path):
    private, public, _ = new_key(str(tmp_path / "prod"))
    replica = Replica(bucket, tmp_path / "server", Keyring.of(trust=[public]))
    assert "got none" in replica.errors()[1]
    assert not (tmp_path / "server" / "small" / "1" / "tables").exists()
    re_sign(opened(bucket, tmp_path / "owner").with_keys(Keyring.of(private)), "small", 1, unsigned=True)
    replica.go(120, 1.0)
    assert (replica.generation, replica.errors()) == ("1.0", {})


def test_records_approved_by_a_later_manifest_arrive_before_verification(bucket, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.mirrored_storage.WALKED", 2)
    (old, old_public, _), (new, new_public, _) = new_key(str(tmp_path / "old")), new_key(str(tmp_path / "new"))
    re_sign(opened(bucket, tmp_path / "owner").with_keys(Keyring.of(old)), "small", 1, unsigned=True)
    replica = Replica(bucket, tmp_path / "server", Keyring.of(trust=[old_public, new_public]))
    replica.go(2)
    signed = ChangeLog.of(opened(bucket, tmp_path / "owner").with_keys(Keyring.of(old)).version("small", 1))
    for step in range(1, 8):
        signed.publish(make_delta(step, [step]))
    owner = opened(bucket, tmp_path / "owner")
    re_sign(owner.with_keys(Keyring.of(new, [old_public])), "small", 1)
    owner.mirror.tell()
    replica.go(40, 1.0)
    assert (replica.generation, replica.model.chain(1).state) == ("1.7", "CURRENT")


@pytest.mark.parametrize("damage", [b"{}", b"", b"x" * 20_000], ids=["no record", "empty", "too large"])
def test_repair_in_the_store_restores_a_diverged_replica(bucket, replica, tmp_path, damage):
    for step in (1, 2, 3):
        writer = ChangeLog.of(opened(bucket, tmp_path / "trainer").version("small"))
        writer.publish(make_delta(step, [step]))
    replica.go()
    bucket.objects["small/1/chain/0000000004.json"] = damage
    bucket.objects["small/1/chain/0000000005.json"] = b"stands on it"
    if damage:
        assert any("DIVERGED" in line for line in replica.go())
    tool = ChangeLog(opened(bucket, tmp_path / "tool").version("small"))
    assert repair(tool, 4).number == 6
    # Both records may have had a step, and do not tell it.
    ChangeLog.of(opened(bucket, tmp_path / "trainer").version("small")).publish(make_delta(6, [1], parent=3))
    said = replica.go()
    assert replica.generation == "1.6", said
    assert replica.model.chain(1).state == "CURRENT"
    assert Replica(bucket, tmp_path / "another").generation == "1.6"


def test_replica_follows_a_repair_despite_its_own_sound_record(bucket, replica, tmp_path):
    for step in (1, 2, 3):
        ChangeLog.of(opened(bucket, tmp_path / "trainer").version("small")).publish(make_delta(step, [step]))
    replica.go()
    assert replica.generation == "1.3"
    bucket.objects["small/1/chain/0000000002.json"] = b"{}"
    assert repair(ChangeLog(opened(bucket, tmp_path / "tool").version("small")), 2).number == 4
    # With the beat that brings the repair, before its turn of looking at record 2 has come.
    said = replica.go(beats=2)
    assert said == ["small rolled back to 1.1"], said
    # And where it starts again upon the copy that it had.
    shutil.copytree(tmp_path / "server", tmp_path / "restarted")
    sound = (tmp_path / "trainer" / "small" / "1" / "chain" / "0000000002.json").read_bytes()
    (tmp_path / "restarted" / "small" / "1" / "chain" / "0000000002.json").write_bytes(sound)
    assert Replica(bucket, tmp_path / "restarted").generation == "1.1"
    # A writer too.
    again = ChangeLog.of(opened(bucket, tmp_path / "trainer").version("small"), whole=True)
    again.publish(make_delta(4, [2], parent=1))
    replica.go()
    assert replica.generation == "1.4"
