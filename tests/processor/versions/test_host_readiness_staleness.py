"""When what is served is too old: by the clock, for each version, and for whoever has set a bound."""

import logging
import shutil
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.processor.versions.host_readiness import Staleness, find_stale
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.overview import describe, version_stats
from tests.processor.engines import USERS
from tests.processor.versions.models import publish
from tests.support.packages import write_package

STALENESSES = st.lists(
    st.builds(Staleness, st.sampled_from("ab"), st.integers(1, 3), st.floats(0, allow_nan=False)), max_size=6
)


@given(STALENESSES, st.floats(0.001, 1e6))
def test_stalest_model_beyond_the_limit_is_named(found, bound_s):
    stale = find_stale(found, bound_s)
    if stale is None:
        assert all(each.seconds <= bound_s for each in found)
    else:
        assert stale.seconds == max(each.seconds for each in found) > bound_s


@pytest.fixture
def clock():
    return FakeClock()


def staleness_of(processor):
    return processor.host.catalogue["small"].staleness_s(1)


def test_staleness_grows_with_time_and_resets_on_each_poll(open_processor, clock):
    processor = open_processor(clock)
    assert staleness_of(processor) == 0.0
    clock.advance(3.0)
    assert staleness_of(processor) == 3.0
    processor.poll()
    assert staleness_of(processor) == 0.0
    assert processor.host.catalogue["small"].staleness_s(9) == 0.0


def test_refused_delta_makes_a_version_stale_until_it_is_undone(root, open_processor, clock):
    processor = open_processor(clock)
    path = publish(root, 1, [1])
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(3):
        clock.advance(2.0)
        processor.poll()
    assert processor.host.catalogue["small"].chain(1).state == "WAITING"
    assert staleness_of(processor) == 6.0
    assert [stats.staleness_s for stats in version_stats(processor.host)] == [6.0]
    assert describe(processor.host, clock.unix_s())["models"]["small"]["served"]["1"]["staleness_s"] == 6.0
    path.unlink()
    processor.poll()
    assert staleness_of(processor) == 0.0


def test_manually_held_version_is_not_stale(root, open_processor, clock):
    processor = open_processor(clock)
    model = processor.host.catalogue["small"]
    model._log_appliers[1].change_log.hold("to look at")
    publish(root, 1, [1])
    clock.advance(2.0)
    processor.poll()
    assert (model.chain(1).state, staleness_of(processor)) == ("HELD", 0.0)


def test_time_without_repository_access_counts_as_staleness(open_processor, clock, monkeypatch):
    seen_s = [0.0]
    monkeypatch.setattr(Repository, "seen_s", lambda self: seen_s[0])
    processor = open_processor(clock)
    clock.advance(10.0)
    seen_s[0] = 4.0
    processor.poll()
    assert staleness_of(processor) == 4.0
    assert processor.host.reachable
    seen_s[0] = 40.0
    processor.poll()
    assert staleness_of(processor) == 4.0, "it was known to be current later than that"
    assert not processor.host.reachable


def test_server_beyond_the_staleness_limit_is_not_ready(open_processor, clock, caplog):
    processor = open_processor(clock, max_staleness_s=5.0)
    assert processor.host.ready
    assert processor.host.stale == ""
    clock.advance(5.0)
    assert processor.host.ready
    clock.advance(2.5)
    assert not processor.host.ready
    assert processor.host.answering
    wanted = "model 'small' version 1 is 8 s stale (max_staleness_s = 5)"
    assert processor.host.stale == wanted
    with caplog.at_level(logging.INFO, "freshet.host"):
        processor.host.readiness.tell(processor.host.on_staleness_changed)
        processor.host.readiness.tell(processor.host.on_staleness_changed)
        processor.poll()
        processor.host.readiness.tell(processor.host.on_staleness_changed)
    assert processor.host.ready
    assert [r.message for r in caplog.records if "not ready" in r.message] == [f"not ready: {wanted}"]
    assert [r.message for r in caplog.records if "no longer" in r.message] == [
        "the served version is no longer too old"
    ]


def test_refused_delta_is_a_concern_and_leaves_the_server_ready(root, open_processor, clock):
    processor = open_processor(clock)
    assert processor.host.concerns == ()
    path = publish(root, 1, [1])
    path.write_bytes(b"not a delta")
    processor.poll()
    (line,) = processor.host.concerns
    assert line.startswith("model 'small' version 1: WAITING: delta 1 refused: ")
    assert processor.host.ready
    (stats,) = version_stats(processor.host)
    assert (stats.chain.obstacle, stats.chain.behind) == ("refused", 1)
    path.unlink()
    processor.poll()
    assert processor.host.concerns == ()


def test_unlistable_repository_is_a_concern_and_leaves_the_server_ready(open_processor, clock, monkeypatch):
    processor = open_processor(clock)
    monkeypatch.setattr(type(processor.host.repository), "concern", lambda self: "repository: no listing ends")
    assert processor.host.concerns == ("repository: no listing ends",)
    assert processor.host.ready


def test_gap_and_damaged_log_are_reported_as_distinct_concerns(root, open_processor, clock):
    """Both make the version stale, and without a limit the server stays ready."""
    processor = open_processor(clock)
    publish(root, 3, [1])
    publish(root, 5, [1]).write_bytes(b"not a delta")
    processor.poll()
    # Neither keeps what comes next from being served.
    assert processor.host.catalogue["small"].chain(1).obstacle == "gap"
    (root / "small" / "1" / "chain").mkdir()
    (root / "small" / "1" / "chain" / "0000000001.json").write_bytes(b"{}")
    processor.poll()
    assert processor.host.catalogue["small"].chain(1).obstacle == "damaged"
    assert "DIVERGED: record 1: " in processor.host.concerns[0]
    clock.advance(1e6)
    processor.poll()
    assert staleness_of(processor) == 1e6
    assert (processor.host.ready, processor.host.stale) == (True, "")


def test_late_models_and_unrouted_versions_do_not_block_readiness(root, open_processor, clock):
    write_package(root, 2, users=USERS)
    processor = open_processor(clock, max_staleness_s=5.0)
    processor.host.load("small", 1)
    path = publish(root, 1, [1])
    path.write_bytes(b"not a delta")
    write_package(root, users=USERS, model="late")
    for _ in range(4):
        clock.advance(3.0)
        processor.poll()
    assert processor.host.catalogue["small"].staleness_s(1) > 5.0
    assert processor.host.ready
    processor.host.catalogue["late"]._log_appliers[1].current_at_s = clock.now_s() - 50.0
    assert processor.host.ready


def test_server_is_ready_only_at_the_end_of_the_log(root, open_processor, clock, monkeypatch):
    """What comes while a version is loaded and warmed is served before the first look ends."""
    for step in range(1, 4):
        publish(root, step, [step], tag=step)
    serve = ServedModel._serve

    def late(self, number, version):
        serve(self, number, version)
        publish(root, 4, [4], tag=4)

    monkeypatch.setattr(ServedModel, "_serve", late)
    processor = open_processor(clock, max_staleness_s=5.0)
    assert str(processor.host.catalogue["small"].pick().generation) == "1.4"
    assert processor.host.ready


@pytest.mark.parametrize("gone", ["", "small/1"], ids=["repository", "version"])
def test_deleted_folder_makes_the_served_state_stale(root, open_processor, clock, gone):
    processor = open_processor(clock)
    shutil.move(root / gone, root.parent / "elsewhere")
    clock.advance(4.0)
    processor.poll()
    assert staleness_of(processor) == 4.0
    shutil.move(root.parent / "elsewhere", root / gone)
    processor.poll()
    assert staleness_of(processor) == 0.0


def test_change_hanging_for_a_minute_makes_a_server_unready(open_processor, clock, caplog):
    processor = open_processor(clock)
    model = processor.host.catalogue["small"]
    held, go = threading.Event(), threading.Event()

    def hang():
        with model._lock:
            model.lock_watch.turn()
            held.set()
            go.wait(60)

    holder = threading.Thread(target=hang)
    holder.start()
    assert held.wait(10)
    with caplog.at_level(logging.INFO, "freshet.host"):
        for advance_s in (0.0, 59.0, 1.0, 30.0):
            clock.advance(advance_s)
            processor.host.readiness.check()
            processor.host.readiness.tell(processor.host.on_staleness_changed)
            assert processor.host.ready == (not processor.host.stuck)
        assert model.lock_watch.held_s == 90.0
        wanted = "model 'small': a change has blocked all others for more than 60 s"
        assert processor.host.stale == wanted
        go.set()
        holder.join()
        processor.host.readiness.check()
        processor.host.readiness.tell(processor.host.on_staleness_changed)
    assert processor.host.ready
    assert model.lock_watch.held_s == 0.0
    # Of a slow machine the log may still say that the model has been loaded.
    told = [r.message for r in caplog.records if r.name == "freshet.host" and "loaded" not in r.message]
    assert told == [f"not ready: {wanted}", "changes are no longer blocked"]


def test_closing_does_not_wait_for_a_hanging_change(open_processor, clock):
    processor = open_processor(clock)
    slow = PeriodicThread(lambda: threading.Event().wait(60))
    slow.start()
    processor.host.upkeep.threads.append(slow)
    processor.host.readiness.stuck = "model 'small'"
    processor.close()
    assert slow.is_alive()
