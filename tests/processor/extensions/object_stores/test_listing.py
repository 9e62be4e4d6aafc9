"""Listings beside what is followed: what they cost where a bucket has names of strangers, and how they end and fail."""

import logging
import threading

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.object_stores.listing import EMPTY_AT_ONCE, LATE_S, WHOLE_S, NegativeCache
from tests.processor.extensions.object_stores.sides import Server, follows, opened
from tests.support.packages import make_delta
from tests.support.waiting import until


@pytest.fixture
def server(bucket, trainer, tmp_path):
    return Server(bucket, tmp_path / "server")


def strangers(bucket, count, name="x"):
    for n in range(count):
        bucket.objects[f"stranger-{n:04}/{name}"] = b""


@pytest.mark.parametrize("name", ["x", "1/x", "labels.json"])
def test_names_without_a_version_cost_a_bounded_number_of_requests(bucket, trainer, server, name):
    """400 of them cost five requests each, a local folder each and ten seconds a beat, in which no delta came."""
    strangers(bucket, 1000, name)
    server.load()
    for _ in range(3):
        bucket.calls.clear()
        server.beat(40.0)
    assert len(bucket.calls) < 64 * 3 + 20
    assert server.repository.models() == ["small"]
    assert [path.name for path in server.mirror.root.iterdir()] == ["small"]
    assert set(server.mirror._places) == {("small", 1)}


def test_unknown_name_that_becomes_a_model_is_found(bucket, trainer, server, tmp_path):
    strangers(bucket, 200)
    bucket.objects["small-2/x"] = b""
    server.load()
    server.beat()
    bucket.objects |= {
        key.replace("small/", "small-2/"): data for key, data in bucket.objects.items() if key.startswith("small/")
    }
    for _ in range(4):
        server.beat(40.0)
    assert server.repository.versions("small-2") == [1]


def test_followed_models_are_queried_before_unknown_names(bucket, trainer, server):
    server.load()
    server.beat()
    for n in range(300):
        bucket.objects[f"a-stranger-{n:04}/x"] = b""
    bucket.calls.clear()
    server.beat(40.0)
    listed = [key for call, key in bucket.calls if call == "folders"]
    assert len(listed) == 302
    # AT_ONCE are asked for side by side.
    assert listed.index("small") <= 8


def test_records_arrive_while_a_listing_hangs(bucket, trainer, tmp_path):
    """The mirror's own threads: the one that lists hangs in the store, the other goes on."""
    server = Server(bucket, tmp_path / "server")
    change_log = server.load()
    server.mirror.following = False
    hangs, goes_on = threading.Event(), threading.Event()

    def slow(call, key):
        if call == "folders":
            hangs.set()
            goes_on.wait(60)

    bucket.fault = slow
    server.mirror.follow()
    try:
        assert hangs.wait(60)
        trainer.publish(make_delta(1, [1]))
        until(lambda: server.mirror.storage("small", 1).known == 1)
        assert [record.step for record in change_log.look()] == [1]
    finally:
        goes_on.set()
        server.mirror.close()


def test_failed_listing_is_reported_until_one_succeeds(bucket, trainer, server, caplog):
    server.load()
    server.beat()
    assert server.repository.concern() == ""

    def endless(call, key):
        if call == "folders":
            raise NotReady("repository: the object store cannot be reached: a listing took more than 10 s")

    bucket.fault = endless
    for _ in range(4):
        server.beat(LATE_S / 2)
    assert "a listing took more than 10 s; new models, versions and labels" in server.repository.concern()
    assert server.mirror.listing.ended_ago_s() > LATE_S
    assert server.repository.seen_s() < 1
    lines = [r for r in caplog.records if "took more than" in r.message]
    assert [r.levelno for r in lines] == [logging.ERROR]
    assert follows(server, trainer, 1)
    bucket.fault = lambda call, key: None
    server.beat(LATE_S)
    assert server.repository.concern() == ""
    assert server.mirror.listing.ended_ago_s() == 0


def test_names_missed_by_a_listing_come_first_in_the_next(bucket, trainer, server):
    server.load()
    server.beat()
    strangers(bucket, 100)
    asked = []

    def slow(call, key):
        if call == "folders" and key.startswith("stranger"):
            asked.append(key)
            server.clock.advance(WHOLE_S / 20)

    bucket.fault = slow
    server.beat(40.0)
    first = len(asked)
    assert 20 <= first < 40
    assert "names took more than" in server.mirror.listing._trouble
    server.beat(200.0)
    assert not set(asked[first : first + 20]) & set(asked[:first])
    for _ in range(6):
        server.beat(200.0)
    assert len(set(asked)) == 100


def test_listings_pause_as_long_as_they_take(bucket, trainer, server):
    """However often somebody replaces the hint."""
    server.load()
    server.beat()
    listed = []

    def slow(call, key):
        if (call, key) == ("folders", ""):
            listed.append(server.clock.now_s())
            server.clock.advance(5.0)

    bucket.fault = slow
    for n in range(100):
        bucket.objects[".hint"] = b"%d" % n
        server.beat(1.0)
    gaps = [after - before for before, after in zip(listed, listed[1:])]
    assert min(gaps) > 9.9


def test_unreachable_manifest_is_not_reported_as_a_missing_version(bucket, trainer, tmp_path):
    def out(call, key):
        if key == "small/1/model.json":
            raise NotReady("repository: the object store cannot be reached: no connection")

    bucket.fault = out
    with pytest.raises(NotReady):
        opened(bucket, tmp_path / "reader").version("small")


def test_follower_ends_a_version_that_disappears(bucket, trainer, server, tmp_path):
    change_log = server.load()
    server.beat()
    opened(bucket, tmp_path / "other").storage("small", 1).end()
    storage = server.mirror.storage("small", 1)
    server.mirror.listing.models()
    assert (storage.followed, storage.ended) == (True, False)
    server.mirror.beat()
    assert (storage.followed, storage.ended) == (False, True)
    assert change_log.look() == []


def test_unchanged_files_beside_versions_cost_no_request(bucket, trainer, server, tmp_path):
    server.load()
    writer = opened(bucket, tmp_path / "other")
    writer.keep_labels("small", {"stable": 1})
    writer.keep_trainer("small", b"one")
    server.beat(40.0)
    assert (server.mirror.root / "small" / "trainer.json").read_bytes() == b"one"
    bucket.calls.clear()
    server.beat(40.0)
    assert ("folders", "small") in bucket.calls
    assert [key for _, key in bucket.calls if key.endswith(("labels.json", "traffic.json", "trainer.json"))] == []


def test_trainer_report_comes_with_the_next_listing_and_leaves_the_hint(bucket, trainer, server, tmp_path):
    server.load()
    server.beat(40.0)
    hint = bucket.objects[".hint"]
    opened(bucket, tmp_path / "other").keep_trainer("small", b"two")
    server.beat()
    assert not (server.mirror.root / "small" / "trainer.json").exists()
    server.beat(40.0)
    assert (server.mirror.root / "small" / "trainer.json").read_bytes() == b"two"
    assert bucket.objects[".hint"] == hint
    del bucket.objects["small/trainer.json"]
    server.beat(40.0)
    assert not (server.mirror.root / "small" / "trainer.json").exists()


def test_oversized_trainer_report_delays_no_listing(bucket, trainer, server):
    server.load()
    bucket.objects["small/trainer.json"] = b"x" * (1 << 17)
    server.beat(40.0)
    assert server.repository.concern() == ""
    assert not (server.mirror.root / "small" / "trainer.json").exists()


def test_unknown_names_come_first_and_empty_ones_take_turns():
    names, every = NegativeCache(), [f"n{n:03}" for n in range(3 * EMPTY_AT_ONCE)]
    assert names.due(every) == every
    for name in every:
        names.note(name, empty=True)
    turns = []
    for _ in range(3):
        turns.append(names.due([*every, "new"]))
        assert turns[-1][0] == "new"
        for name in turns[-1]:
            names.note(name, empty=name != "new")
    assert sorted(name for turn in turns for name in turn[1:]) == every


def test_name_that_is_filled_or_deleted_is_forgotten():
    names = NegativeCache()
    for name in "abc":
        names.note(name, empty=True)
    names.note("a", empty=False)
    assert names.due("abc") == ["a", "b", "c"]
    assert names.due("c") == ["c"]
    assert names.due("bc") == ["b", "c"]


def test_labels_put_during_a_listing_are_not_undone_by_it(bucket, trainer, server, monkeypatch):
    """Those of a first PUT, and those of the next: what the listing has read by then is old."""
    server.load()
    server.beat(40.0)
    listing, folder, get = server.mirror.listing, bucket.folder, bucket.get

    def then_put(read, labels):
        def act(*arguments):
            answer = read(*arguments)
            monkeypatch.undo()
            server.repository.keep_labels("small", labels)
            return answer

        return act

    monkeypatch.setattr(bucket, "folder", then_put(folder, {"stable": 1}))
    listing.versions("small")
    assert server.repository.labels("small") == {"stable": 1}
    bucket.objects["small/labels.json"] += b" "
    monkeypatch.setattr(bucket, "get", then_put(get, {"canary": 1}))
    listing.kept("small/labels.json")
    assert server.repository.labels("small") == {"stable": 1, "canary": 1}
    server.beat(40.0)
    assert server.repository.labels("small") == {"stable": 1, "canary": 1}
