"""A mirror beat by beat, by a clock that is moved by hand, beside whoever reads its folder."""

import logging

import pytest

from processor.chain.ledger import Ledger
from processor.clock import FakeClock
from processor.errors import NotReady
from processor.package.delta import write_delta
from tests.packages import make_delta
from tests.processor.mirror.bucket import Bucket
from tests.processor.mirror.sides import opened, publish


class Server:
    """A repository that is followed without a thread: beats are the test's."""

    def __init__(self, bucket, folder, **options):
        self.clock = FakeClock()
        self.repository = opened(bucket, folder, self.clock.now_s, serving=True, **options)
        self.mirror = self.repository.mirror

    def load(self, version=1):
        self.repository.models()
        self.mirror.following = True
        self.mirror.prepare("small", version)
        return Ledger.of(self.repository.reader("small", version))

    def beat(self, after_s=0.3):
        self.clock.advance(after_s)
        self.mirror.beat()


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def trainer(bucket, tmp_path):
    return Ledger.of(publish(opened(bucket, tmp_path / "trainer"), tmp_path, users=range(20)))


@pytest.fixture
def server(bucket, trainer, tmp_path):
    return Server(bucket, tmp_path / "server")


def test_a_record_comes_with_its_file_and_who_reads_waits_for_no_network(bucket, trainer, server):
    ledger = server.load()
    trainer.publish(make_delta(1, [1]))
    trainer.publish(make_delta(2, [2]))
    bucket.calls.clear()
    assert (ledger.look(), bucket.calls) == ([], [])
    server.beat()
    bucket.calls.clear()
    assert [record.step for record in ledger.look()] == [1, 2]
    assert ledger.read_delta(ledger.history.head).step == 2
    assert bucket.calls == []


def test_a_quiet_beat_asks_for_the_hint_and_for_one_record(bucket, trainer, server):
    server.load()
    server.beat()
    bucket.calls.clear()
    server.beat()
    assert bucket.calls == [("get", "small/1/chain/0000000001.json"), ("get", ".hint")]


def test_a_version_that_is_committed_is_seen_by_the_hint_and_one_that_ends_goes(bucket, trainer, server, tmp_path):
    server.load()
    server.beat()
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    assert server.repository.versions("small") == [1]
    server.beat()
    assert server.repository.versions("small") == [1, 2]
    assert not (server.mirror.root / "small" / "2" / "tables").exists()
    opened(bucket, tmp_path / "other").place("small", 1).end()
    server.beat()
    assert server.repository.versions("small") == [2]


def test_an_outage_is_noted_and_over_with_the_first_beat_that_comes_through(bucket, trainer, server, caplog):
    ledger = server.load()
    server.beat()
    assert server.repository.seen_s() < 0.01
    bucket.down = True
    for _ in range(3):
        server.beat(1.0)
    assert server.repository.seen_s() == pytest.approx(3.0)
    assert not server.mirror.store.reachable
    assert [r.levelno for r in caplog.records if "cannot be reached" in r.message] == [logging.WARNING]
    assert ledger.look() == []
    bucket.down = False
    trainer.publish(make_delta(1, [1]))
    server.beat()
    assert [record.step for record in ledger.look()] == [1]
    assert server.repository.seen_s() < 0.01


def test_a_file_that_is_dropped_is_brought_within_two_seconds(bucket, trainer, server, tmp_path):
    ledger = server.load()
    write_delta(tmp_path / "dropped", make_delta(1, [1]))
    bucket.objects["small/1/deltas/1.safetensors"] = (tmp_path / "dropped").read_bytes()
    server.beat(1.1)
    ledger.adopt_all()
    assert ledger.history.head.step == 1
    assert "small/1/chain/0000000001.json" in bucket.objects


def test_labels_come_with_the_hint_and_go_to_the_store_first(bucket, trainer, server, tmp_path):
    server.load()
    server.beat()
    opened(bucket, tmp_path / "other").keep_labels("small", {"stable": 1})
    server.beat()
    assert server.repository.labels("small") == {"stable": 1}
    bucket.down = True
    with pytest.raises(NotReady):
        server.repository.keep_labels("small", {"stable": 2})
    assert server.repository.labels("small") == {"stable": 1}


def test_a_mirror_that_is_full_forgets_what_nobody_needs(bucket, trainer, server, tmp_path, caplog):
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.load(1)
    server.mirror.prepare("small", 2)
    server.mirror.place("small", 1).release()
    server.mirror.most_nbytes = 1
    server.mirror.tidy()
    assert server.repository.versions("small") == [1, 2]
    assert not (server.mirror.root / "small" / "1" / "tables").exists()
    assert (server.mirror.root / "small" / "2" / "tables").exists()
    server.mirror.tidy()
    assert len([r for r in caplog.records if "mirror_bytes" in r.message]) == 1
    server.mirror.prepare("small", 1)
    server.repository.reader("small", 1).verify()


def test_an_old_start_serves_what_the_mirror_has_while_the_store_is_away(bucket, trainer, server, tmp_path):
    trainer.publish(make_delta(1, [1]))
    server.load()
    bucket.down = True
    again = Server(bucket, tmp_path / "server")
    again.repository.prepare("small", 1)
    assert Ledger.of(again.repository.reader("small", 1)).history.head.step == 1
    with pytest.raises(NotReady):
        opened(bucket, tmp_path / "server").version("small")


def test_a_saved_model_in_a_bucket_is_told_of_once(bucket, trainer, server, caplog):
    bucket.objects["small/7/saved_model.pb"] = b"graph"
    server.mirror.list_models()
    server.mirror.list_models()
    assert len([r for r in caplog.records if "freshet import" in r.message]) == 1
    assert server.repository.versions("small") == [1]
