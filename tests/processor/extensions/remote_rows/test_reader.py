"""Remote tables over a store in memory: scores equal those of the same version served from memory, whatever happens."""

import logging
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock, SystemClock
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.remote_rows.push import drop, push
from freshet_serving.processor.extensions.remote_rows.reader import StoredTables
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.repository.version import VersionReader, table_file
from freshet_serving.processor.tables.remote_rows import RemoteConfig
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.extensions.remote_rows.fakes import MemoryStore
from tests.support.counters import counted
from tests.support.packages import DIM, make_delta, make_inputs, open_version, row_of, tag_id, write_package
from tests.support.waiting import Background

USERS = range(0, 300, 3)
TAGS = ("a", "b", "c")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package(tmp_path_factory.mktemp("repository"), users=USERS, tags=TAGS)


@pytest.fixture
def store(package):
    store = MemoryStore()
    push(VersionReader(package), [], store)
    return store


def load(package, store, clock=None, tables=("small/*",), undo_depth=3, **config):
    clock = clock or SystemClock()
    remote = StoredTables(RemoteConfig("redis://nowhere", list(tables), **config), store, clock)
    reader = VersionReader(package)
    version = ServedVersion(reader, undo_depth, clock, remote=remote.tables(reader.manifest))
    version.attach_replicas(Replica(reader, version.control, 0, 1, clock, remote=remote))
    return version


def filled(version, state, bound, spans):
    """The dense inputs of rows [first, count] of each bound request, [rows, width], and lookups and misses by table."""
    plan, remote, spans = version.replicas.plan, version.replicas.remote, np.array(spans)
    x, counts = np.zeros((spans[:, 1].sum(), plan.width), np.float32), np.zeros((2, 2), np.int64)
    # It owns the fetched rows.
    rows = remote.batch_tables(state.tables, state.epoch, bound, spans) if remote else state
    plan.fill(BatchView(rows.tables, state.epoch, bound, spans, counts), x)
    return x, counts.tolist()


def pooled(version, requests):
    """filled(), of all rows."""
    with version.replicas.pinned(0) as state:
        bound = [version.replicas.plan.bind_inputs(r) for r in requests]
        return filled(version, state, bound, [[0, b.rows] for b in bound])


def user_rows(version, users):
    return pooled(version, [make_inputs(users, tags=[[] for _ in users])])[0][:, :DIM]


def expected_rows(model, users):
    return np.array([row_of(u, model[u]) if u in model else np.zeros(DIM) for u in users], np.float32)


def test_remote_version_pools_bitwise_like_a_local_one(package, store):
    local = open_version(package)
    requests = [make_inputs([3, 4, 0, 3]), make_inputs([297]), make_inputs(range(40), seed=1)]
    for remote in (load(package, store), load(package, store, tables=["small/user"])):
        for _ in range(2):
            wanted, got = pooled(local, requests), pooled(remote, requests)
            np.testing.assert_array_equal(got[0], wanted[0])
            assert got[1] == wanted[1]


def test_batch_fetches_each_bucket_once_in_one_round_trip(package, store):
    version = load(package, store)
    pooled(version, [make_inputs([0, 3, 0, 3]), make_inputs([3, 6])])
    assert len(store.fetches) == 1
    assert len(set(store.fetches[0])) == len(store.fetches[0])
    pooled(version, [make_inputs([0, 3, 6])])
    assert len(store.fetches) == 1
    assert counted(version.replicas.remote)["fetches"] == 1


def test_rows_and_absences_are_cached_unless_the_cache_is_off(package, store):
    version = load(package, store)
    for _ in range(3):
        user_rows(version, [0, 1, 2])
    stats = counted(version.replicas.remote)
    assert (stats["asked"], stats["fetched"], stats["cached"], stats["lost"]) == (9, 3, 6, 0)
    uncached = load(package, store, cache_rows=0)
    for _ in range(3):
        np.testing.assert_array_equal(user_rows(uncached, [0, 1]), expected_rows({0: 0}, [0, 1]))
    assert counted(uncached.replicas.remote)["fetched"] == 6


ids = st.sampled_from([*range(30), 299, 2**62, -1])
moves = st.lists(
    st.tuples(
        st.sampled_from(["apply"] * 5 + ["rollback", "rollback", "down", "up", "cold"]),
        st.lists(ids, unique=True, max_size=14),
        st.integers(0, 14),
    ),
    max_size=16,
)


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=moves, reads=st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=4), depth=st.integers(1, 3)
)
def test_any_mix_of_deltas_rollbacks_and_reads_equals_a_dictionary(package, store, moves, reads, depth):
    store.down = False
    version = load(package, store, undo_depth=depth, cache_rows=16)
    history = [dict.fromkeys(USERS, 0)]
    for content, (move, chosen, cut) in enumerate(moves, 1):
        if move == "apply":
            upserts, removed = chosen[:cut], chosen[cut:]
            version.apply(make_delta(version.position.step + 1, upserts, removed, tag=content))
            left = {k: v for k, v in history[-1].items() if k not in removed}
            history.append(left | dict.fromkeys(upserts, content))
        elif move == "rollback":
            back = min(cut % 4, len(version.position.undoable))
            version.rollback(version.position.step - back)
            del history[len(history) - back :]
        elif move == "cold":
            version.replicas.remote._cache = load(package, store, cache_rows=16).replicas.remote._cache
        else:
            store.down = move == "down"
        for users in reads:
            got, wanted = user_rows(version, users), expected_rows(history[-1], users)
            if store.down:
                # A row that only the store has may be the default row instead, and no other.
                same = (got == wanted).all(axis=1)
                assert (got[~same] == 0).all()
                assert all(history[-1].get(u) == 0 for u, good in zip(users, same) if not good)
            else:
                np.testing.assert_array_equal(got, wanted)


def test_removed_row_stays_removed_beyond_the_undo_depth(package, store):
    version = load(package, store, undo_depth=1)
    version.apply(make_delta(1, [], [0, 3]))
    for step in range(2, 8):
        version.apply(make_delta(step, [9000 + step], [9000 + step - 1]))
    np.testing.assert_array_equal(user_rows(version, [0, 3, 6]), expected_rows({6: 0}, [0, 3, 6]))
    version.apply(make_delta(8, [3]))
    np.testing.assert_array_equal(user_rows(version, [0, 3]), expected_rows({3: 8}, [0, 3]))


def test_tombstones_survive_the_growth_of_the_index(package, store):
    version = load(package, store, undo_depth=1)
    gone = list(USERS)[:50]
    version.apply(make_delta(1, [], gone))
    for step in range(2, 6):
        version.apply(make_delta(step, range(10_000 * step, 10_000 * step + 2_000), [1]))
    assert (user_rows(version, gone) == 0).all()
    assert version.tables["user"].rows == 8_000


def test_slots_of_superseded_rows_are_reused(package, store):
    version = load(package, store, undo_depth=1)
    for step in range(1, 60):
        version.apply(make_delta(step, [0, 1, 2]))
    assert version.tables["user"].nbytes["arena"] <= 12 * (DIM * 4 + 16)


def test_export_contains_delta_rows_as_of_any_undoable_epoch(package, store):
    version = load(package, store, undo_depth=2)
    for step, upserts, removed in [(1, [0, 1], [3]), (2, [3], [0]), (3, [], [1]), (4, [5], [])]:
        version.apply(make_delta(step, upserts, removed))
    for epoch, wanted in [(2, {1: 1, 3: 2}), (3, {3: 2}), (4, {3: 2, 5: 4})]:
        keys, rows = version.tables["user"].export(epoch)
        assert keys.tolist() == sorted(wanted)
        np.testing.assert_array_equal(rows, expected_rows(wanted, sorted(wanted)))
    assert version.tables["user"].rows == 2


def test_removing_removed_rows_again_uses_no_memory(package, store):
    version = load(package, store, undo_depth=1)
    for step in range(1, 60):
        version.apply(make_delta(step, [], [0, 1, 2]))
    assert version.tables["user"].nbytes["arena"] == 3 * (DIM * 4 + 16)


def test_only_the_rows_of_the_spans_are_fetched(package, store):
    version = load(package, store)
    bound = [version.replicas.plan.bind_inputs(make_inputs(range(0, 60, 3), tags=[[]] * 20))]
    with version.replicas.pinned(0) as state:
        x, _ = filled(version, state, bound, [[5, 3]])
    assert counted(version.replicas.remote)["asked"] == 3
    np.testing.assert_array_equal(x[:, :DIM], expected_rows(dict.fromkeys(USERS, 0), [15, 18, 21]))


def test_reader_of_an_old_state_sees_old_rows(package, store):
    version = load(package, store)
    version.apply(make_delta(1, [0], [3]))
    state = version.replicas.pin(0)
    done = threading.Thread(target=lambda: version.apply(make_delta(2, [0, 3], [6])))
    done.start()
    while version.control.publish_seq == state.publish_seq:
        pass
    bound = [version.replicas.plan.bind_inputs(make_inputs([0, 3, 6], tags=[[], [], []]))]
    x, _ = filled(version, state, bound, [[0, 3]])
    version.replicas.unpin(0)
    done.join()
    np.testing.assert_array_equal(x[:, :DIM], expected_rows({0: 1, 6: 0}, [0, 3, 6]))
    np.testing.assert_array_equal(user_rows(version, [0, 3, 6]), expected_rows({0: 2, 3: 2}, [0, 3, 6]))


def test_unreachable_store_gives_counted_default_rows_and_rate_limited_logs(package, store, caplog):
    clock = FakeClock()
    version = load(package, store, clock)
    version.apply(make_delta(1, [6]))
    user_rows(version, [0])
    store.down = True
    with caplog.at_level(logging.WARNING, "freshet.remote"):
        for _ in range(5):
            got = user_rows(version, [0, 3, 6])
        assert len(caplog.records) == 1
        clock.advance(1.0)
        user_rows(version, [3])
    assert len(caplog.records) == 2
    assert "cannot be reached" in caplog.text
    np.testing.assert_array_equal(got, expected_rows({0: 0, 6: 1}, [0, 3, 6]))
    assert counted(version.replicas.remote)["lost"] == 6
    store.down = False
    np.testing.assert_array_equal(user_rows(version, [0, 3]), expected_rows({0: 0, 3: 0}, [0, 3]))


def test_policy_fail_answers_not_ready_when_rows_are_lost(package, store):
    version = load(package, store, on_error="fail")
    user_rows(version, [0])
    store.down = True
    with pytest.raises(NotReady, match="could not fetch 2 embedding rows: the row store cannot be reached"):
        user_rows(version, [0, 3, 6])
    np.testing.assert_array_equal(user_rows(version, [0]), expected_rows({0: 0}, [0]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: None,
        lambda v: b"",
        lambda v: v[:-1],
        lambda v: v + b"x",
        lambda v: bytes([v[0] ^ 1]) + v[1:],
        lambda v: v[:4] + b"\xff\xff\xff\xff" + v[8:],
        lambda v: v[:4] + b"\x00\x00\x00\x80" + v[8:],
        lambda v: v[:7],
    ],
)
def test_missing_or_damaged_bucket_is_a_failure_not_an_absence(package, store, damage):
    version = load(package, store, cache_rows=0)
    buckets = [key for key in store.values if b":" in key.removeprefix(b"freshet:")]
    before = dict(store.values)
    for key in buckets:
        value = damage(store.values[key])
        del store.values[key]
        if value is not None:
            store.values[key] = value
    np.testing.assert_array_equal(user_rows(version, [0, 1]), expected_rows({}, [0, 1]))
    stats = counted(version.replicas.remote)
    assert (stats["lost"], stats["fetched"]) == (2, 0)
    store.values = before
    np.testing.assert_array_equal(user_rows(version, [0, 1]), expected_rows({0: 0}, [0, 1]))


def test_incomplete_version_in_the_store_names_the_push_command(package, store):
    key = b"freshet:{small/1/user}"
    marker = store.values[key]
    for value, message in [
        (None, r"small/1/user is not in the row store; run: freshet tables push small --version 1 --table user"),
        (marker.replace(b'"complete"', b'"pushing"'), "not complete in the row store; run: freshet tables push"),
        (marker.replace(b'"rows": 100', b'"rows": 101'), "is from another upload; drop it, then run: freshet"),
        (b"{}", "marker cannot be read"),
        (b'{"format": 1}', "marker cannot be read"),
        (marker.replace(b'"dim": 4', b'"dim": "4"'), "marker has another format"),
    ]:
        store.values[key] = value
        with pytest.raises(NotReady, match=message):
            load(package, store)


def test_file_of_a_remote_table_may_be_missing(package, store, tmp_path_factory):
    folder = write_package(tmp_path_factory.mktemp("other"), users=USERS, tags=TAGS)
    (folder / table_file("user")).unlink()
    store.values = {}
    with pytest.raises(NotReady):
        load(folder, store)
    push(VersionReader(package), ["user"], store)
    same = VersionReader(folder).manifest.files == VersionReader(package).manifest.files
    assert same
    version = load(folder, store, tables=["small/user"])
    np.testing.assert_array_equal(user_rows(version, [0, 1]), expected_rows({0: 0}, [0, 1]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_rows_of_any_type_pool_bitwise_like_in_memory(tmp_path, dtype):
    folder = write_package(tmp_path, users=USERS, tags=TAGS, dtype=dtype)
    store = MemoryStore()
    push(VersionReader(folder), [], store)
    local, remote = open_version(folder), load(folder, store, cache_rows=32)
    requests = [make_inputs([3, 4, 0, 3]), make_inputs(range(40), seed=1)]
    for step in range(1, 4):
        for _ in range(2):
            np.testing.assert_array_equal(pooled(remote, requests)[0], pooled(local, requests)[0])
        for version in (local, remote):
            version.apply(make_delta(step, [0, 3, 500 + step], [6, 9 * step], tags=["a"]))
    np.testing.assert_array_equal(pooled(remote, requests)[0], pooled(local, requests)[0])


def test_concurrent_sessions_read_rows_while_deltas_and_rollbacks_run(package, store):
    version = load(package, store, cache_rows=24)
    users = [0, 1, 3, 6, 9, 297]
    wanted = {
        step: expected_rows(dict.fromkeys(USERS, 0) | ({0: step, 1: step} if step else {}), users) for step in range(6)
    }
    wrong = []

    def read(session):
        others = np.random.default_rng(session)
        while not readers.ended.is_set():
            with version.replicas.pinned(session) as state:
                inputs = make_inputs([*users, *others.integers(0, 300, 20).tolist()], tags=[["a"]] * 26)
                bound = [version.replicas.plan.bind_inputs(inputs)]
                x, _ = filled(version, state, bound, [[0, 26]])
                step = state.generation.step
            if not (x[:6, :DIM] == wanted[step]).all():
                wrong.append((step, x[:6, :DIM]))

    readers = Background([partial(read, n) for n in range(2)])
    with readers:
        for _ in range(10):
            for step in range(version.position.step + 1, 6):
                version.apply(make_delta(step, [0, 1], tag=step))
            version.rollback(3)
    assert not wrong


def test_dropped_version_leaves_nothing_and_its_reader_notices(package, store):
    version = load(package, store, cache_rows=0)
    assert [t.name for t in drop("small", 1, ["user", "tag", "none"], store)] == ["small/1/user", "small/1/tag"]
    assert store.values == {}
    user_rows(version, [0])
    assert counted(version.replicas.remote)["lost"] == 1


def test_string_ids_can_be_remote(package, store):
    version = load(package, store, tables=["small/tag"])
    x, counts = pooled(version, [make_inputs([0], tags=[["a", "nowhere"]])])
    np.testing.assert_allclose(x[0, DIM : 2 * DIM], row_of(tag_id("a"), 0) / 2)
    assert counts[1] == [2, 1]
