"""A hold of a guard ends by itself, once the newest generation behind it is sound; nobody else's does."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.repository.log.chain_record import DELTA, HOLD, MAX_REASON, RELEASE, ROLLBACK
from freshet_serving.processor.repository.log.history import ChainLink, History
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.held_deltas import BY_GUARD, ReleaseBackoff, held_reason, set_by_guard
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.run_reading import ReadRun
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.extensions.guard.fed import GOOD, ask, chain, drop, feed, opened, publish_all, served
from tests.support.guarded import FAULTS
from tests.support.packages import connect
from tests.support.waiting import until

NONE = np.empty(0, np.int64)


def held(root, stream, fault="zeroed"):
    """A model that holds a fault, on which the stream goes on."""
    model = opened(root)
    feed(root, model, stream)
    drop(root, stream.fault(fault))
    model.poll()
    assert model.chain(1).state == "HELD"
    stream.follow()
    return model


def kinds(root):
    return [record.kind for record in chain(root).records()]


@pytest.mark.parametrize("fault", FAULTS)
def test_hold_is_released_by_the_delta_that_repairs_it(tmp_path, stream, fault):
    model = held(tmp_path, stream, fault)
    publish_seq = model.pick().change.publish_seq
    publish_all(tmp_path, [stream.mended()])

    (event,) = model.poll()

    assert (served(model), model.chain(1).state) == (f"1.{GOOD + 2}", "CURRENT")
    assert event == (
        f"small 1.{GOOD + 2} served: the hold is released: automatic: 1.{GOOD + 2} is consistent with 1.{GOOD}"
    )
    # The fault was served to nobody.
    assert model.pick().change.publish_seq == publish_seq + 1
    record = [record for record in chain(tmp_path).records() if record.kind == "release"]
    assert [one.reason for one in record] == [f"automatic: 1.{GOOD + 2} is consistent with 1.{GOOD}"]
    assert (model.judgement_counts.held.total(), model.judgement_counts.released) == (1, 1)
    assert model._log_appliers[1].by_person == 0, "what nobody has vouched for is watched"
    drop(tmp_path, stream.good())
    model.poll()
    assert served(model) == f"1.{GOOD + 3}"


def test_manual_release_is_recorded_as_manual(tmp_path, stream):
    model, other = held(tmp_path, stream), opened(tmp_path)
    model.release(1, "a table that is not used")
    other.poll()
    assert [one._log_appliers[1].by_person for one in (model, other)] == [GOOD + 1] * 2


@pytest.mark.parametrize("fault", ["times_1.1", "hundredfold"])
def test_deltas_that_repair_nothing_do_not_release_the_hold(tmp_path, stream, fault):
    model = held(tmp_path, stream, fault)
    for _ in range(12):
        publish_all(tmp_path, [stream.few()])
        assert model.poll() == []
    assert (served(model), model.chain(1).behind) == (f"1.{GOOD}", 13)
    assert "release" not in kinds(tmp_path)


def test_checks_that_keep_the_hold_leave_no_frame_behind(tmp_path, stream):
    model = held(tmp_path, stream, "times_1.5")
    frames = []
    for _ in range(6):
        publish_all(tmp_path, [stream.fault("times_1.5")])
        stream.follow()
        model._log_appliers[1]._looks = ReleaseBackoff()
        assert model.poll() == []
        frames.append(len(model.pick().replicas._frames))
    assert max(frames) == 1
    publish_all(tmp_path, [stream.mended()])
    model._log_appliers[1]._looks = ReleaseBackoff()
    model.poll()
    assert model.chain(1).state == "CURRENT"


def test_one_of_two_servers_writes_the_release_and_both_serve(tmp_path, stream):
    model = held(tmp_path, stream)
    other = opened(tmp_path)
    publish_all(tmp_path, [stream.mended()])
    model.poll(), other.poll(), model.poll()
    assert served(model) == served(other) == f"1.{GOOD + 2}"
    assert kinds(tmp_path).count("release") == 1
    assert other.judgement_counts.released == 0


def test_head_that_moved_during_the_check_is_not_released(tmp_path, stream, monkeypatch):
    model = held(tmp_path, stream)
    publish_all(tmp_path, [stream.mended()])
    pre_deploy_check = model._log_appliers[1].checks
    examine = pre_deploy_check.examine

    def meanwhile(*args):
        examine(*args)
        monkeypatch.setattr(pre_deploy_check, "examine", examine)
        publish_all(tmp_path, [stream.fault("swapped")])

    monkeypatch.setattr(pre_deploy_check, "examine", meanwhile)
    assert model.poll() == ["small remains held: release: the change log has changed meanwhile"]
    assert (served(model), model.chain(1).state) == (f"1.{GOOD}", "HELD")
    model.poll()
    assert "release" not in kinds(tmp_path)


def test_manual_or_trainer_hold_is_released_only_manually(tmp_path, stream, model):
    chain(tmp_path).hold("AUC fell from 0.76 to 0.61")
    publish_all(tmp_path, [stream.good(), stream.good()])
    assert model.poll() == ["small deltas after 1.12 are held: AUC fell from 0.76 to 0.61"]
    assert (served(model), model.chain(1).state) == (f"1.{GOOD}", "HELD")


def test_manual_hold_moved_back_by_a_guard_stays_manual(tmp_path, stream, model):
    chain(tmp_path).publish(stream.good())
    chain(tmp_path).hold("wait for the meeting")
    chain(tmp_path).hold(f"1.{GOOD + 1} held: said another server", chain(tmp_path).history.known(GOOD))
    publish_all(tmp_path, [stream.good()])
    model.poll()
    assert model.poll() == []
    assert model.chain(1).state == "HELD"


def test_server_without_history_releases_within_the_floors(tmp_path, stream):
    held(tmp_path, stream, "hundredfold")
    late = opened(tmp_path, asked=False)
    publish_all(tmp_path, [stream.mended()])
    assert late.poll() == [], "no row was asked for: nobody knows"
    ask(late)
    publish_all(tmp_path, [stream.few()])
    until(late.poll)
    assert served(late) == f"1.{GOOD + 3}"


def test_server_without_history_releases_nothing_beyond_the_floors(tmp_path, stream):
    held(tmp_path, stream, "times_1.1")
    late = opened(tmp_path)
    publish_all(tmp_path, [stream.few()])
    assert late.poll() == []
    assert late.chain(1).state == "HELD"


def test_held_delta_is_rechecked_only_after_changes_and_a_pause(tmp_path, stream, monkeypatch):
    clock = FakeClock()
    model = ServedModel("small", Repository(tmp_path), lambda files: ServedVersion(files, 4, clock), connect, clock)
    model.poll()
    ask(model)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    stream.follow()
    looks, take = [], ReadRun.of

    def slow(*args):
        looks.append(1)
        clock.advance(2.0)
        return take(*args)

    monkeypatch.setattr(ReadRun, "of", slow)
    publish_all(tmp_path, [stream.few()])
    for _ in range(5):
        model.poll()
    assert len(looks) == 1
    publish_all(tmp_path, [stream.few()])
    model.poll()
    assert len(looks) == 1, "the last look took two seconds"
    clock.advance(41.0)
    model.poll()
    assert len(looks) == 2


def test_read_only_repository_releases_the_hold_locally(tmp_path, stream, monkeypatch, model):
    publish_all(tmp_path, [stream.fault("zeroed")])
    stream.follow()
    with monkeypatch.context() as patch:

        def refuse(*_, **__):
            raise OSError(30, "read-only")

        patch.setattr("freshet_serving.processor.repository.storage.exclusive_file", refuse)
        model.poll()
        assert model.chain(1).state == "HELD"
    publish_all(tmp_path, [stream.mended()])
    model.poll()
    assert (served(model), model.chain(1).state) == (f"1.{GOOD + 2}", "CURRENT")


def test_reject_republishes_deltas_independent_of_the_bad_one(tmp_path, stream):
    model = held(tmp_path, stream)
    tags = stream._keys["tag"][:40], stream._rows["tag"][:40]
    apart = Delta("small", 1, GOOD + 2, GOOD + 1, {"tag": TableDelta(*tags, NONE)}, published_at=5.0, events=7)
    stands = dataclasses.replace(stream.few(), step=GOOD + 3, parent_step=GOOD + 2)
    publish_all(tmp_path, [apart, stands])

    done = model.reject(1, "zeroed by a job")

    assert [str(one) for one in done.undone] == [f"1.{GOOD + n}" for n in (1, 2, 3)]
    assert [str(one) for one in done.kept] == [f"1.{GOOD + 4}"]
    assert (str(done.generation), done.next_step) == (f"1.{GOOD + 4}", GOOD + 5)
    assert (served(model), model.chain(1).state) == (f"1.{GOOD + 4}", "CURRENT")
    link = chain(tmp_path).history.head
    again = chain(tmp_path).read_delta(link)
    assert (again.step, again.parent_step, again.published_at, again.events) == (GOOD + 4, GOOD, 5.0, 7)
    np.testing.assert_array_equal(again.tables["tag"].rows, tags[1])


def test_reject_of_a_manual_hold_undoes_all_held_deltas(tmp_path, stream):
    model = opened(tmp_path)
    feed(tmp_path, model, stream, 1)
    chain(tmp_path).hold("wait for the meeting")
    tags = TableDelta(stream._keys["tag"][:9], stream._rows["tag"][:9], NONE)
    publish_all(tmp_path, [stream.few(), Delta("small", 1, 3, 2, {"tag": tags}, published_at=5.0)])
    done = model.reject(1)
    assert (str(done.generation), done.kept, done.next_step) == ("1.1", (), 4)


def test_republished_delta_is_checked_too(tmp_path, stream):
    model = held(tmp_path, stream)
    tags = stream._keys["tag"], 100 * np.ones_like(stream._rows["tag"])
    publish_all(tmp_path, [Delta("small", 1, GOOD + 2, GOOD + 1, {"tag": TableDelta(*tags, NONE)}, published_at=5.0)])
    with pytest.raises(Conflict, match=rf"others published again: 1\.{GOOD + 3} is committed but not served: HELD"):
        model.reject(1)
    assert (served(model), model.chain(1).state) == (f"1.{GOOD}", "HELD")
    with pytest.raises(Conflict, match="HELD"):
        model._log_appliers[1].ready(model.pick())


def history(*records):
    """Of (kind, step, reason), on four deltas."""
    made = History("m", 1, "0" * 64, "0" * 32)
    for step in range(1, 5):
        link = ChainLink(step, f"{step}" * 32, made.head.digest)
        record = dataclasses.replace(made.next(DELTA, link), sha256="a" * 64)
        made.take(dataclasses.replace(record, digest=link.digest), "b" * 64)
    for kind, step, reason in records:
        made.take(made.next(kind, made.known(step), reason=reason), "c" * 64)
    return made


GUARD = "1.3 held: the mean score would move"


@pytest.mark.parametrize(
    ("records", "ours"),
    [
        ([], False),
        ([(HOLD, 2, GUARD)], True),
        ([(HOLD, 2, "AUC fell")], False),
        ([(HOLD, 3, "AUC fell"), (HOLD, 2, GUARD)], False),
        ([(HOLD, 3, GUARD), (HOLD, 2, GUARD)], True),
        ([(HOLD, 3, "AUC fell"), (RELEASE, 4, ""), (HOLD, 2, GUARD)], True),
        ([(HOLD, 3, "AUC fell"), (ROLLBACK, 2, ""), (HOLD, 2, GUARD)], True),
        ([(HOLD, 2, GUARD), (HOLD, 1, "I have to look at it")], False),
    ],
)
def test_hold_owner_follows_from_the_reasons_of_its_records(records, ours):
    assert set_by_guard(history(*records)) is ours


def test_guard_reason_is_recognised_by_prefix_and_fits_a_record():
    reason = held_reason(Generation(3, 17), "x" * 10_000)
    assert BY_GUARD.match(reason)
    assert len(reason) == MAX_REASON


def test_checks_take_five_percent_of_the_time():
    looks = ReleaseBackoff()
    assert looks.due(("a", "b"), 0.0)
    looks.looked(("a", "b"), 0.0, 3.0)
    assert not looks.due(("a", "b"), 1000.0)
    assert not looks.due(("a", "c"), 62.9)
    assert looks.due(("a", "c"), 63.0)
