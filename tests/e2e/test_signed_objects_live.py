"""Two replicas that trust one key, a bucket that a stranger can write to, and load: what is unsigned, of another key,
replayed or of an older state is refused with one line, and the newest trusted state answers every request."""

import dataclasses
import os

import pytest

from freshet_serving.processor.extensions.object_stores.object_store import open_store
from freshet_serving.processor.package.signature import new_key
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.chain_record import ChainRecord, record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.opening import open_repository
from tests.e2e.servers import ALONE
from tests.programs.outage import Load
from tests.support.object_stage import MODEL, ReplicaSet, served, upload_package
from tests.support.packages import make_delta
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]


class Owner:
    """Who has a key to the repository; a mirror of its own for each publication: nothing is known beforehand."""

    def __init__(self, address, folder, keyring):
        self.address, self.folder, self.keyring, self.opened = address, folder, keyring, 0

    def publish(self, step):
        self.opened += 1
        repository = open_repository(self.address, str(self.folder / f"mirror-{self.opened}")).with_keys(self.keyring)
        return ChangeLog.of(repository.version(MODEL, 1)).publish(
            make_delta(step, [1, 2, 3], tag=step, dense_seed=step)
        )


def chain_of(server):
    found = served(server)["chain"]
    return f"{found['state']}: {found['reason']}"


def load_again(server):
    """What has been replaced or cut is looked at again by who is told to."""
    until(lambda: server.post_json(f"/admin/models/{MODEL}/versions/1/load", {})[0] == 200)


@pytest.mark.unguarded("each delta brings other weights, so that a load tells generations apart")
def test_foreign_bucket_writers_cannot_change_replies(store, tmp_path):
    private, public, key = new_key(str(tmp_path / "prod"))
    ours, theirs = Keyring.of(private), Keyring.of(new_key(str(tmp_path / "theirs"))[0], [public])
    address = store.address("signed")
    upload_package(store, address, tmp_path / "package", keyring=ours)
    bucket, record = open_store(address), lambda n: f"{MODEL}/1/{record_name(n)}"
    owner, stranger = Owner(address, tmp_path / "owner", ours), Owner(address, tmp_path / "stranger", theirs)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    options = (*ALONE, "--trust", str(public))
    with ReplicaSet(address, env, tmp_path, 2, options=options) as fleet:

        def all_say(line):
            until(lambda: all(line in chain_of(server) for server in fleet.servers), within_s=20)

        def all_serve(generation):
            until(lambda: fleet.generations() == [generation] * 2, within_s=20)

        with Load([server.http_port for server in fleet.servers]) as load:
            owner.publish(1)
            owner.publish(2)
            all_serve("1.2")
            second = bucket.get(record(2)).data

            stranger.publish(3)
            all_say(f"DIVERGED: record 3: expected a signature by key {key}, got key")
            other = ChainRecord.from_bytes(bucket.get(record(3)).data, 3)
            bucket.put(record(3), dataclasses.replace(other, key="", signature="").to_bytes())
            all_say(f"DIVERGED: record 3: expected a signature by key {key}, got none")
            bucket.put(record(3), second)
            all_say("DIVERGED: record 3: ")
            bucket.delete([record(3), f"{MODEL}/1/{other.file}"])
            all_say("CURRENT")
            assert fleet.generations() == ["1.2", "1.2"]

            bucket.delete([record(2)])
            all_say("DIVERGED: ")
            assert fleet.generations() == ["1.2", "1.2"]
            bucket.put(record(2), second)
            for server in fleet.servers:
                load_again(server)
            all_say("CURRENT")
            owner.publish(3)
            all_serve("1.3")
            third = bucket.get(record(3)).data
        assert (load.failed, load.answered > 100) == ([], True)

        # An older state, signed by us, before a restart with an empty mirror: what was trusted is remembered.
        bucket.delete([record(3)])
        fleet.servers[0].__exit__()
        fleet.mirrors[0] = tmp_path / "an empty mirror"
        fleet.start(0)
        log = tmp_path / "serve-0.log"
        until(lambda: "record 3: expected the one that was trusted here before" in log.read_text(), within_s=30)
        bucket.put(record(3), third)
        load_again(fleet.servers[0])
        fleet.servers[0].wait_ready()
        assert fleet.generations() == ["1.3", "1.3"]
