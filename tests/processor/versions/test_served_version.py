"""The life of deltas, against a model of it: full + deltas, rollback, refused files, readers in between."""

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Conflict, FreshetError, NotReady
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import parse_delta, write_delta
from freshet_serving.processor.versions import served_version as served_version_module
from freshet_serving.processor.versions.control import Pins
from tests.support.packages import (
    make_delta,
    make_inputs,
    make_weights,
    open_version,
    reference,
    row_of,
    tag_id,
    write_package,
)
from tests.support.waiting import Background

USERS = range(20)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package(tmp_path_factory.mktemp("repository"), users=USERS)


def load(package, undo_depth=4):
    return open_version(package, undo_depth)


def scores(version, users, session=0):
    """Scores of the pinned state and its generation, computed as a session of this process does."""
    return scores_of(version.replicas, users, session)


def scores_of(replica, users, session=0):
    inputs = make_inputs(users)
    with replica.pinned(session) as state:
        bound = replica.plan.bind_inputs(inputs)
        x = np.zeros((16, replica.plan.width), np.float32)
        out = np.empty((16, 1), np.float32)
        counts = np.zeros((2, 2), np.int64)
        replica.plan.fill(BatchView(state.tables, state.epoch, [bound], np.array([[0, bound.rows]]), counts), x)
        state.executables["score"][16].bind_buffers({"x": x}, {"score": out})()
        return out[: len(users), 0], state.generation


def users_of(version):
    return {int(k): tuple(r) for k, r in zip(*version.export()[0]["user"])}


def expected_users(model):
    return {k: tuple(row_of(k, tag)) for k, tag in model.items()}


user_ids = st.integers(0, 40)
moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["apply"] * 6
            + ["rollback", "rollback_and_apply_again", "gap", "duplicate", "old", "wrong_parent", "compacted"]
        ),
        st.lists(user_ids, unique=True, max_size=12),
        st.integers(0, 12),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves)
def test_any_mix_of_deltas_and_rollbacks_equals_a_full_export(package, moves):
    version = load(package)
    history = [(0, dict.fromkeys(USERS, 0), 0, None)]
    content = 0
    for move, chosen, cut, with_dense in moves:
        step, model, dense_seed, _ = history[-1]
        content += 1
        upserts, removed = chosen[:cut], chosen[cut:]
        seed = content if with_dense else None
        after = {k: v for k, v in model.items() if k not in removed} | dict.fromkeys(upserts, content)
        if move in ("apply", "compacted"):
            parent = max(0, step - 1) if move == "compacted" else step
            delta = make_delta(
                step + 1, upserts, removed, parent=parent, tag=content, dense_seed=seed, compacted=move == "compacted"
            )
            version.apply(delta)
            history.append((step + 1, after, dense_seed if seed is None else seed, delta))
        elif move.startswith("rollback"):
            back = min(cut % 4, len(history) - 1, len(version.position.undoable))
            undone = history[len(history) - back :]
            del history[len(history) - back :]
            version.rollback(history[-1][0])
            if move == "rollback_and_apply_again":
                for entry in undone:
                    version.apply(entry[3])
                    history.append(entry)
        else:
            wrong = {
                "gap": dict(step=step + 2, parent=step + 1),
                "duplicate": dict(step=max(step, 1), parent=max(step, 1) - 1),
                "old": dict(step=1, parent=0) if step else dict(step=5, parent=4),
                "wrong_parent": dict(step=step + 3, parent=step + 1),
            }[move]
            if move == "duplicate" and step == 0:
                continue
            with pytest.raises(Conflict):
                version.apply(make_delta(users=upserts, removed=removed, tag=content, **wrong))
        step, model, dense_seed, _ = history[-1]
        assert version.generation == Generation(1, step)
        assert users_of(version) == expected_users(model)
    step, model, dense_seed, _ = history[-1]
    probe = [0, 5, 21, 39, 1000]
    got, generation = scores(version, probe)
    tags = [["a", "zz", "b", "c"][: u % 5] for u in range(len(probe))]
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    wanted = reference(model, tag_model, make_weights(dense_seed), probe, tags, make_inputs(probe)["floats"])
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert generation == Generation(1, step)


def test_delta_is_staged_while_being_persisted_and_served_only_afterwards(package):
    version = load(package)
    before, _ = scores(version, [3])
    staged, durable = threading.Event(), threading.Event()
    table = version.tables["user"]
    apply = table.apply
    table.apply = lambda *arguments: (apply(*arguments), staged.set())[0]

    def keep():
        assert staged.wait(10)
        for _ in range(3):
            got, generation = scores(version, [3])
            assert (got[0], str(generation)) == (before[0], "1.0")
        durable.set()

    version.apply(make_delta(1, [3], tag=5), keep=keep)
    assert durable.is_set()
    got, generation = scores(version, [3])
    assert got[0] != before[0]
    assert str(generation) == "1.1"
    assert users_of(version)[3] == tuple(row_of(3, 5))


def test_delta_that_cannot_be_persisted_is_undone(package):
    version = load(package)
    everything, content = users_of(version), scores(version, [3, 7, 33])

    def keep():
        raise OSError("no space left")

    for _ in range(3):
        with pytest.raises(OSError, match="no space left"):
            version.apply(make_delta(1, [3, 33], [7], tag=5, dense_seed=2), keep=keep)
        assert users_of(version) == everything
        got, generation = scores(version, [3, 7, 33])
        np.testing.assert_array_equal(got, content[0])
        assert str(generation) == "1.0"
    version.apply(make_delta(1, [3], tag=6))
    assert users_of(version)[3] == tuple(row_of(3, 6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(users=[1, 1]), "more than once"),
        (dict(users=[1], removed=[1]), "more than once"),
        (dict(version=2), "version 2"),
    ],
)
def test_delta_that_contradicts_the_model_changes_nothing(package, change, message):
    version = load(package)
    before = users_of(version)
    with pytest.raises(BadInput if "once" in message else Conflict, match=message):
        version.apply(make_delta(1, **change))
    assert users_of(version) == before
    assert version.generation == Generation(1, 0)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_or_bit_flipped_file_is_always_refused(package, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("delta") / "1.safetensors"
    write_delta(path, make_delta(1, [1, 2, 3], [4], tags=["a"], dense_seed=1))
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        bit = data.draw(st.integers(0, len(raw) * 8 - 1))
        raw[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(FreshetError):
        parse_delta(bytes(raw))


def test_readers_never_see_mixed_states_during_deltas_and_rollbacks(package):
    version = open_version(package)
    probe = list(range(12))
    tags = [["a", "zz", "b", "c"][: u % 5] for u in range(len(probe))]
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    floats = make_inputs(probe)["floats"]
    wanted = {
        step: reference(dict.fromkeys(USERS, step), tag_model, make_weights(step), probe, tags, floats)
        for step in range(8)
    }
    mixed, seen = [], set()

    def read(session):
        while not readers.ended.is_set():
            got, generation = scores(version, probe, session)
            seen.add(generation.step)
            if not np.allclose(got, wanted[generation.step], atol=1e-5):
                mixed.append((generation.step, got))

    readers = Background([partial(read, n) for n in range(2)])
    with readers:
        for _ in range(12):
            for step in range(version.position.step + 1, 8):
                version.apply(make_delta(step, list(USERS), dense_seed=step))
            version.rollback(5)
            version.rollback(4)
    assert not mixed
    assert len(seen) > 1


def test_rolled_back_slots_are_not_overwritten_under_a_reader(package):
    version = load(package)
    version.apply(make_delta(1, [3, 33], tag=5))
    table, pins, seen = version.tables["user"], Pins(version.control, 0), {}
    undo, apply = table.undo, table.apply

    def undone(versions, safe_seq):
        # It took the state of the rollback before the slots were taken back, and is in its batch until the next delta.
        seen["flip"], seen["undone"] = pins.pin(5), set(versions.slots)
        undo(versions, safe_seq)

    def applied(*arguments):
        versions = apply(*arguments)
        seen["written"] = set(versions.slots)
        pins.unpin(5)
        return versions

    table.undo, table.apply = undone, applied
    version.rollback(0)
    assert seen["flip"] == version.change.publish_seq - 1
    version.apply(make_delta(1, [4, 44], tag=6))
    assert not seen["undone"] & seen["written"]
    version.apply(make_delta(2, [5, 55], tag=7))
    assert seen["undone"] == seen["written"]


def test_freshness_times_follow_the_served_generation(package):
    version = load(package)
    seen = [(version.published_at, version.event_time)]
    for step, event_time in ((1, (5.0, 6.0)), (2, None), (3, (7.0, 8.0))):
        version.apply(delta := make_delta(step, [step], event_time=event_time))
        seen.append((delta.published_at, event_time or seen[-1][1]))
        assert (version.published_at, version.event_time) == seen[-1]
    for step in (2, 0):
        version.rollback(step)
        assert (version.published_at, version.event_time) == seen[step]


@pytest.mark.parametrize("ends", [NotReady, OSError, KeyboardInterrupt])
def test_rollback_blocked_by_a_reader_changes_nothing_and_is_repeatable(package, monkeypatch, ends):
    version = load(package)
    version.apply(make_delta(1, [3, 33], [7], tag=5, dense_seed=2))
    served, pins = users_of(version), Pins(version.control, 0)
    pins.pin(5)
    with monkeypatch.context() as patch:
        if ends is NotReady:
            patch.setattr(served_version_module, "GRACE_TIMEOUT_S", -1.0)
        else:
            patch.setattr(served_version_module.time, "sleep", lambda seconds: (_ for _ in ()).throw(ends()))
        with pytest.raises(ends) as held_up:
            version.rollback(0)
    assert "did not finish its batch" in str(held_up.value) or ends is not NotReady
    assert (users_of(version), version.generation, version.as_of(0) is None) == (served, Generation(1, 1), False)
    pins.unpin(5)
    version.rollback(0)
    assert users_of(version) == expected_users(dict.fromkeys(USERS, 0))
    version.apply(make_delta(1, [4], tag=6))
    assert users_of(version) == expected_users(dict.fromkeys(USERS, 0) | {4: 6})


def test_state_as_of_a_step_equals_a_rollback_to_it(package, monkeypatch):
    monkeypatch.setattr(served_version_module, "STAMPS", 3)
    version = load(package, undo_depth=2)
    for step in range(1, 5):
        version.apply(make_delta(step, [1, step + 1], dense_seed=step if step != 4 else None))
    assert version.as_of(1) is None
    assert version.as_of(4).dense is version.dense
    stands = version.as_of(2)
    known, rows = version.tables["user"].look_up(np.array([1, 5]), stands.epoch)
    assert known.tolist() == [True, True]
    np.testing.assert_array_equal(rows, [row_of(1, 2), row_of(5, 0)])
    assert [version.stamped(epoch) for epoch in range(5)] == [None, None, 2, 3, 4]
    version.rollback(2)
    assert version.generation == stands.generation
    assert version.digest == stands.generation.digest
    for name, weights in make_weights(2).items():
        np.testing.assert_array_equal(stands.dense[name], weights)
        np.testing.assert_array_equal(version.dense[name], weights)
    version.apply(make_delta(5, [1], parent=2))
    assert version.stamped(version.change.epoch) == 5
