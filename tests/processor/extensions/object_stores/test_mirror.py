"""A mirror beat by beat, by a clock that is moved by hand, beside whoever reads its folder."""

import dataclasses
import errno
import itertools
import json
import logging
import re
from collections import Counter
from pathlib import Path

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.extensions.object_stores.mirror import BEAT_S, LONGEST_BEAT_S, QUIET_SHARE
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.chain_record import record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import ONE_MODEL
from tests.processor.extensions.object_stores.sides import Server, follows, opened, publish
from tests.support.packages import make_delta


@pytest.fixture
def server(bucket, trainer, tmp_path):
    return Server(bucket, tmp_path / "server")


def test_record_arrives_with_its_file_and_readers_use_no_network(bucket, trainer, server):
    change_log = server.load()
    trainer.publish(make_delta(1, [1]))
    trainer.publish(make_delta(2, [2]))
    bucket.calls.clear()
    assert (change_log.look(), bucket.calls) == ([], [])
    server.beat()
    bucket.calls.clear()
    assert [record.step for record in change_log.look()] == [1, 2]
    assert change_log.read_delta(change_log.history.head).step == 2
    assert bucket.calls == []


def test_idle_poll_requests_only_the_hint_and_one_record(bucket, trainer, server):
    server.load()
    server.beat()
    bucket.calls.clear()
    server.beat()
    assert bucket.calls == [("get", "small/1/chain/0000000001.json"), ("get", ".hint")]


def test_hint_shows_new_versions_and_ended_versions_disappear(bucket, trainer, server, tmp_path):
    server.load()
    server.beat()
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    assert server.repository.versions("small") == [1]
    server.beat()
    assert server.repository.versions("small") == [1, 2]
    assert not (server.mirror.root / "small" / "2" / "tables").exists()
    opened(bucket, tmp_path / "other").storage("small", 1).end()
    server.beat()
    assert server.repository.versions("small") == [2]


def test_outage_is_logged_once_and_ends_with_the_next_poll(bucket, trainer, server, caplog):
    change_log = server.load()
    server.beat()
    assert server.repository.seen_s() < 0.01
    bucket.down = True
    for _ in range(3):
        server.beat(1.0)
    assert server.repository.seen_s() == pytest.approx(3.0)
    assert not server.mirror.store.reachable
    assert [r.levelno for r in caplog.records if "cannot be reached" in r.message] == [logging.WARNING]
    assert change_log.look() == []
    bucket.down = False
    trainer.publish(make_delta(1, [1]))
    server.beat()
    assert [record.step for record in change_log.look()] == [1]
    assert server.repository.seen_s() < 0.01


def test_dropped_file_is_downloaded_within_two_seconds(bucket, trainer, server, tmp_path):
    change_log = server.load()
    write_delta(tmp_path / "dropped", make_delta(1, [1]))
    bucket.objects["small/1/deltas/1.safetensors"] = (tmp_path / "dropped").read_bytes()
    server.beat(1.1)
    change_log.adopt_all()
    assert change_log.history.head.step == 1
    assert "small/1/chain/0000000001.json" in bucket.objects


def test_labels_arrive_with_the_hint_and_are_stored_remotely_first(bucket, trainer, server, tmp_path):
    server.load()
    server.beat()
    opened(bucket, tmp_path / "other").keep_labels("small", {"stable": 1})
    server.beat()
    assert server.repository.labels("small") == {"stable": 1}
    bucket.down = True
    with pytest.raises(NotReady):
        server.repository.keep_labels("small", {"stable": 2})
    assert server.repository.labels("small") == {"stable": 1}


def test_change_of_labels_reads_the_store_first(bucket, trainer, server, tmp_path):
    server.load()
    server.beat()
    other = opened(bucket, tmp_path / "other")
    other.keep_labels("small", {"stable": 1, "old": 1})
    assert server.repository.keep_labels("small", {"canary": 1, "old": None}) == {"stable": 1, "canary": 1}
    assert other.labels("small") == {"stable": 1, "canary": 1}


def test_full_mirror_evicts_unneeded_files(bucket, trainer, server, tmp_path, caplog):
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.load(1)
    server.mirror.prepare("small", 2)
    server.mirror.storage("small", 1).release()
    server.mirror.max_nbytes = 1
    server.mirror.tidy()
    assert server.repository.versions("small") == [1, 2]
    assert not (server.mirror.root / "small" / "1" / "tables").exists()
    assert (server.mirror.root / "small" / "2" / "tables").exists()
    server.mirror.tidy()
    assert len([r for r in caplog.records if "mirror_bytes" in r.message]) == 1
    server.mirror.prepare("small", 1)
    server.repository.reader("small", 1).verify()


def test_restart_serves_from_the_mirror_while_the_store_is_down(bucket, trainer, server, tmp_path):
    trainer.publish(make_delta(1, [1]))
    server.load()
    bucket.down = True
    again = Server(bucket, tmp_path / "server")
    again.repository.prepare("small", 1)
    assert ChangeLog.of(again.repository.reader("small", 1)).history.head.step == 1
    with pytest.raises(NotReady):
        opened(bucket, tmp_path / "server").version("small")


def test_saved_model_in_a_bucket_is_logged_once(bucket, trainer, server, caplog):
    bucket.objects["small/7/saved_model.pb"] = b"graph"
    server.mirror.listing.models()
    server.mirror.listing.models()
    assert len([r for r in caplog.records if "freshet import" in r.message]) == 1
    assert server.repository.versions("small") == [1]


@pytest.mark.parametrize(
    ("key", "nbytes"),
    [
        ("aaa/labels.json", (16 << 20) + 1),
        ("aaa/1/model.json", (64 << 20) + 1),
        (".hint", 1025),
        ("aaa/1/model.json", 1),
    ],
)
def test_unreadable_object_does_not_block_others_and_is_logged_once(
    bucket, trainer, server, tmp_path, caplog, key, nbytes
):
    server.load()
    bucket.objects[key] = bytes(nbytes)
    bucket.objects.setdefault("aaa/2/model.json", b"{}")
    # Longer than LIST_S: it is listed twice, and said once.
    for _ in range(30):
        server.beat(1.5)
    assert server.repository.seen_s() < 1.0
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) <= 1
    assert follows(server, trainer, 1)
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.beat()
    assert server.repository.versions("small") == [1, 2]


def test_malformed_record_stops_only_its_own_version(bucket, trainer, server, tmp_path, caplog):
    server.load()
    other = publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.mirror.prepare("small", 2)
    bucket.objects["small/2/" + record_name(1)] = bytes((16 << 10) + 1)
    for _ in range(100):
        server.beat()
    assert follows(server, trainer, 1)
    assert len([r for r in caplog.records if "cannot follow" in r.message]) == 1
    assert other.manifest.version == 2


def test_unlistable_names_leave_known_models_unchanged(bucket, trainer, server, caplog):
    server.load()

    def odd(call, key):
        if call == "folders" and key == "":
            raise BadInput("repository: the store has an object whose name has empty parts")

    bucket.fault = odd
    # Longer than LIST_S: it is listed twice, and said once.
    for _ in range(30):
        server.beat(1.5)
    assert follows(server, trainer, 1)
    assert server.repository.versions("small") == [1]
    assert len([r for r in caplog.records if "empty parts" in r.message]) == 1


def test_version_that_loads_slowly_is_still_followed(bucket, trainer, server):
    server.load()
    for _ in range(30):
        server.beat(4.0)
    assert follows(server, trainer, 1)
    bucket.calls.clear()
    server.beat()
    assert ("get", "small/1/" + record_name(2)) in bucket.calls
    assert server.mirror.storage("small", 1).leased


def test_locally_damaged_file_is_downloaded_again(bucket, trainer, server):
    opened(bucket, server.mirror.root.parent / "other").keep_labels("small", {"stable": 1})
    trainer.publish(make_delta(1, [1]))
    change_log = server.load()
    for _ in range(10):
        server.beat(1.0)
    (server.mirror.root / "small" / "labels.json").write_bytes(b'{"sta')
    record = server.mirror.root / "small" / "1" / record_name(1)
    record.write_bytes(b"{}")
    for _ in range(60):
        server.beat(1.0)
    assert server.repository.labels("small") == {"stable": 1}
    assert record.read_bytes() == bucket.objects["small/1/" + record_name(1)]
    assert change_log.history.head.step == 1


def test_only_configured_models_are_listed(bucket, trainer, tmp_path):
    for n in range(20):
        bucket.objects[f"foreign-{n}/1/model.json"] = b"{}"
    server = Server(bucket, tmp_path / "server", models=["small"])
    server.load()
    bucket.calls.clear()
    server.mirror.listing.models()
    assert len(bucket.calls) <= 4
    assert server.repository.models() == ["small"]


def test_space_is_freed_before_any_download_that_may_need_it(bucket, trainer, server, tmp_path, monkeypatch):
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.load(1)
    server.mirror.prepare("small", 2)
    server.mirror.storage("small", 1).release()
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.mirror.ROOM_NBYTES", 1 << 60)

    def full(call, key):
        if call == "get" and "chain" in key:
            raise OSError(errno.ENOSPC, "No space left on device", "/a/path/of/ours")

    bucket.fault = full
    server.beat()
    assert not (server.mirror.root / "small" / "1" / "tables").exists()


def test_folder_walks_take_one_percent_of_the_time(server, trainer, monkeypatch):
    server.load()
    walks, spent_s = [], iter(range(1000))
    monkeypatch.setattr(server.mirror, "tidy", lambda: walks.append(server.clock.now_s()))
    monkeypatch.setattr(
        "freshet_serving.processor.extensions.object_stores.mirror.time.monotonic", lambda: float(next(spent_s))
    )
    for _ in range(250):
        server.beat(1.0)
    assert [round(after - before) for before, after in itertools.pairwise(walks)] == [100, 100]


def test_start_without_store_and_mirror_is_not_an_empty_repository(bucket, trainer, tmp_path):
    bucket.down = True
    server = Server(bucket, tmp_path / "server")
    with pytest.raises(NotReady):
        server.repository.models()
    server.mirror.following = True
    with pytest.raises(NotReady, match="has not answered yet"):
        server.repository.models()
    bucket.down = False
    server.beat()
    assert server.repository.models() == ["small"]


def test_full_disk_is_retryable_and_a_conflicting_manifest_is_not(bucket, trainer, server):
    def full(call, key):
        if call == "download":
            raise OSError(errno.ENOSPC, "No space left on device", "/a/path/of/ours/user.safetensors")

    bucket.fault = full
    with pytest.raises(NotReady) as told:
        server.load()
    assert "ours" not in str(told.value)
    manifest = json.loads(bucket.objects["small/1/model.json"])
    manifest["files"] |= {name: {"nbytes": 1, "crc32": "00000000"} for name in ("zzz", "zzz/a")}
    bucket.objects |= {"small/1/model.json": json.dumps(manifest).encode(), "small/1/zzz": b"x", "small/1/zzz/a": b"x"}
    bucket.fault = lambda call, key: None
    with pytest.raises(Corrupt, match="cannot be stored in a folder"):
        server.mirror.prepare("small", 1)


def test_forged_records_cost_few_requests_at_start(bucket, trainer, server):
    for power in range(20):
        bucket.objects["small/1/" + record_name(2**power)] = b"{}"
    bucket.calls.clear()
    server.mirror.prepare("small", 1)
    assert len(bucket.calls) < 1000


def test_untrusted_versions_are_not_downloaded(bucket, trainer, tmp_path):
    from freshet_serving.processor.package.signature import new_key
    from freshet_serving.processor.repository.keyring import Keyring

    private, public, _ = new_key(str(tmp_path / "prod"))
    signed = publish(opened(bucket, tmp_path / "owner").with_keys(Keyring.of(private)), tmp_path, version=2)
    server = Server(bucket, tmp_path / "server")
    server.repository.with_keys(Keyring.of(trust=[public]))
    with pytest.raises(Corrupt, match="got none"):
        server.load(1)
    assert server.mirror.store.nbytes["received"] < 20_000
    server.load(2)
    stranger = ChangeLog.of(opened(bucket, tmp_path / "stranger").version("small", 1)).publish(make_delta(1, [1]))
    bucket.objects["small/2/" + stranger.record.file] = bucket.objects["small/1/" + stranger.record.file]
    forged = dataclasses.replace(stranger.record, version=2)
    bucket.objects["small/2/" + record_name(1)] = forged.to_bytes()
    server.beat()
    folder = server.mirror.root / "small" / "2"
    assert (folder / record_name(1)).exists()
    assert not (folder / forged.file).exists()
    assert signed.manifest.key


def test_delta_larger_than_its_record_counts_as_missing(bucket, trainer, server):
    trainer.publish(make_delta(1, [1]))
    change_log = server.load()
    name = change_log.history.head.record.file
    bucket.objects["small/1/" + name] = bytes(1 << 20)
    before = server.mirror.store.nbytes["received"]
    for _ in range(5):
        server.beat(1.0)
    assert server.mirror.store.nbytes["received"] - before < 100_000
    assert server.mirror.storage("small", 1).gone(name)


def test_refused_object_does_not_block_others_but_delays_freshness(bucket, trainer, server, tmp_path, caplog):
    server.load()
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.mirror.prepare("small", 2)

    def archived(call, key):
        if key.startswith("small/2/chain"):
            raise NotReady("repository: the object store cannot be reached: it refuses these credentials (403)")

    bucket.fault = archived
    for _ in range(100):
        server.mirror.storage("small", 2).look_for("model.json")
        server.beat(1.0)
    assert follows(server, trainer, 1)
    publish(opened(bucket, tmp_path / "third"), tmp_path, version=3)
    server.beat()
    assert server.repository.versions("small") == [1, 2, 3]
    assert server.repository.seen_s() > 60
    assert len([r for r in caplog.records if "403" in r.message]) <= 2
    bucket.fault = lambda call, key: None
    server.beat()
    assert server.repository.seen_s() < 1


def test_freshness_counts_only_after_the_last_record_of_a_backlog(bucket, trainer, server, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.mirrored_storage.WALKED", 2)
    server.load()
    server.beat()
    for step in range(1, 6):
        trainer.publish(make_delta(step, [step]))
    server.beat(20.0)
    assert server.repository.seen_s() == pytest.approx(20.0)
    server.beat(1.0)
    server.beat(1.0)
    assert server.repository.seen_s() == 0
    assert server.mirror.storage("small", 1).known == 5


def test_slow_download_keeps_its_files_while_being_followed(bucket, trainer, server, tmp_path):
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    server.load(1)

    def slow(call, key):
        if call == "download" and key.startswith("small/2/"):
            server.clock.advance(50.0)
            bucket.fault, before = lambda *_: None, bucket.fault
            server.mirror.beat()
            bucket.fault = before

    bucket.fault = slow
    server.mirror.prepare("small", 2)
    bucket.fault = lambda call, key: None
    server.beat()
    storage = server.mirror.storage("small", 2)
    assert (storage.followed, storage.leased) == (True, True)
    for _ in range(5):
        server.beat(30.0)
    assert (storage.followed, storage.leased) == (False, True)
    server.repository.release("small", 2)
    assert not storage.leased
    server.mirror.prepare("small", 2)
    for _ in range(3):
        server.beat(3600.0)
    assert not storage.leased


def test_deleted_version_is_not_polled_and_returns_with_its_manifest(bucket, trainer, server, tmp_path):
    change_log = server.load()
    opened(bucket, tmp_path / "other").storage("small", 1).end()
    server.beat(40.0)
    bucket.calls.clear()
    for _ in range(10):
        change_log.storage.look_for("model.json")
        change_log.storage.look_for(record_name(1))
    assert bucket.calls == []
    publish(opened(bucket, tmp_path / "other"), tmp_path, users=range(7))
    server.beat(40.0)
    assert server.repository.versions("small") == [1]


def test_mirror_of_a_writer_stays_below_its_size_limit(bucket, tmp_path):
    clock = FakeClock()
    repository = opened(bucket, tmp_path / "writer", clock.now_s, max_nbytes=150_000)
    for version in range(1, 8):
        change_log = ChangeLog.of(publish(repository, tmp_path, version=version, users=range(400)))
        clock.advance(200.0)
        change_log.publish(make_delta(1, [1], version=version))
    held = [storage for storage in repository.mirror._places.values() if storage.leased]
    assert len(held) == 1
    assert len(list((tmp_path / "writer" / "small").glob("*/tables"))) < 7


def test_address_of_one_model_is_named_as_such(bucket, tmp_path):
    for name in ("2/model.json", "3/model.json", "3/tables/user.safetensors"):
        bucket.put(name, b"{}")
    repository = opened(bucket, tmp_path / "server")
    assert repository.models() == []
    assert repository.misplaced() == ONE_MODEL
    bucket.delete(["2/model.json", "3/model.json"])
    repository.models()
    assert repository.misplaced() == ""


def test_missing_bucket_is_a_configuration_error(bucket, tmp_path, caplog):
    def nowhere(call, key):
        raise BadInput("repository: bucket 'models' does not exist")

    bucket.fault = nowhere
    server = Server(bucket, tmp_path / "server")
    with pytest.raises(BadInput, match="does not exist"):
        server.repository.models()
    server.mirror.following = True
    for _ in range(100):
        server.beat()
    # Once by who lists, once by who follows.
    assert len([r for r in caplog.records if "does not exist" in r.message]) == 2


PAGE = Path(__file__).parents[4] / "docs" / "extensions" / "object_stores.md"
MONTH_S = 30 * 86400


@pytest.fixture
def polled(bucket, trainer, tmp_path):
    polled = Server(bucket, tmp_path / "server")
    polled.change_log = polled.load()
    polled.beat()
    return polled


def quiet(polled, seconds):
    """Beats of a time in which nothing changes, beside the watcher that reads the log."""
    until_s = polled.clock.now_s() + seconds
    while polled.clock.now_s() < until_s:
        polled.change_log.look()
        polled.beat(polled.mirror.pause_s())


def test_polls_are_frequent_while_something_changes(trainer, polled):
    for step in range(1, 4):
        trainer.publish(make_delta(step, [1]))
        quiet(polled, 10.0)
        assert polled.mirror.pause_s() == BEAT_S


def test_quiet_store_is_polled_within_a_hundredth_of_the_pause(polled):
    quiet(polled, 100.0)
    assert polled.mirror.pause_s() == pytest.approx(1.0, rel=0.02)
    quiet(polled, 86400.0 / 24)
    assert polled.mirror.pause_s() == LONGEST_BEAT_S


def test_record_hint_and_new_version_make_polls_frequent_again(bucket, trainer, polled, tmp_path):
    quiet(polled, 300.0)
    trainer.publish(make_delta(1, [1]))
    polled.beat(polled.mirror.pause_s())
    assert polled.mirror.pause_s() == BEAT_S
    quiet(polled, 300.0)
    opened(bucket, tmp_path / "other").keep_labels("small", {"stable": 1})
    polled.beat(polled.mirror.pause_s())
    assert polled.mirror.pause_s() == BEAT_S
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    quiet(polled, 300.0)
    polled.mirror.prepare("small", 2)
    polled.beat(polled.mirror.pause_s())
    assert polled.mirror.pause_s() == BEAT_S


def test_trainer_report_does_not_make_polls_frequent(bucket, polled, tmp_path):
    quiet(polled, 300.0)
    opened(bucket, tmp_path / "other").keep_trainer("small", b"one")
    quiet(polled, 60.0)
    assert polled.mirror.pause_s() == LONGEST_BEAT_S


def test_staleness_of_a_quiet_store_stays_within_a_poll(polled):
    quiet(polled, 600.0)
    polled.clock.advance(polled.mirror.pause_s())
    assert polled.mirror.seen_s() <= LONGEST_BEAT_S


def a_month(bucket, seconds):
    """Requests of a month by kind, in millions, as those of so many seconds."""
    names = {"folders": "LIST", "get": "GET", "head": "GET", "download": "GET"}
    kinds = Counter(names[call] for call, _ in bucket.calls if call in names)
    return {kind: count / seconds * MONTH_S / 1e6 for kind, count in kinds.items()}


def test_page_has_the_requests_of_a_month(bucket, trainer, polled):
    bucket.calls.clear()
    for step in range(1, 15):
        trainer.publish(make_delta(step, [1]))
        quiet(polled, BEAT_S / QUIET_SHARE)
    busy = a_month(bucket, 14 * BEAT_S / QUIET_SHARE)
    quiet(polled, 600.0)
    bucket.calls.clear()
    quiet(polled, 1200.0)
    idle = a_month(bucket, 1200.0)
    rows = re.findall(r"^\| one replica, one version, (.+?) \| ([\d.]+) \| ([\d.]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == ["deltas at least every 25 s", "nothing changes"]
    for (_, gets, lists), measured in zip(rows, (busy, idle)):
        assert (float(gets), float(lists)) == pytest.approx((measured["GET"], measured["LIST"]), rel=0.1)
