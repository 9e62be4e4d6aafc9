"""Erasing a user's states: those of the user and of nobody known go, others stay; what is being computed is lost."""

import gc

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_erasure import SharedStates, Subjects, subject_of
from freshet_serving.processor.extensions.user_state.state_names import EVERYBODY, StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateStore, secret_of
from freshet_serving.processor.extensions.user_state.user_states import shared_memory
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableEntry
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.versions.erasure import ErasedUser, erase

MARK = 0x5EC2E7_5EC2E7
STAMPS = np.arange(3)


def words(mark=MARK):
    return np.full(1000, mark, np.int64)


@pytest.fixture
def memory():
    return shared_memory(4 << 20, 2)


def stores(memory):
    return [StateStore(memory, 2, process, FakeClock().now_s) for process in range(2)]


def keep(store, model, key, content, mark=MARK):
    names = StateNames(store.secret)
    subject = b"" if key is None else subject_of(model, key)
    name = names.name(EVERYBODY, b"m/1/0/user", content, subject)
    assert store.keep(name, 1, STAMPS, [words(mark)], store.erasures)
    return name


def finds(store, name):
    return store.find(name, 1, lambda: STAMPS, words())[0] == arena.HIT


def test_states_of_the_user_in_all_processes_leave_no_bytes_in_the_arena(memory):
    one, other = stores(memory)
    names = [keep(one, "m", 7, b"a"), keep(other, "m", 7, b"b"), keep(other, "m", None, b"c")]
    others = [keep(one, "m", 8, b"d", mark=5), keep(other, "n", 7, b"e", mark=5)]
    assert erase(ErasedUser("m", ("user",), "7", (7,))).counts["user_states"] == 3
    assert not any(finds(store, name) for name in names for store in (one, other))
    assert all(finds(store, name) for name in others for store in (one, other))
    assert not (memory == MARK).any()


def test_state_under_an_id_that_is_the_users_key_is_erased(memory):
    (store, _), names = stores(memory), StateNames(secret_of(memory))
    for content, subject in ((b"a", b"ann"), (b"b", b"bob")):
        assert store.keep(names.name(b"owner", b"kept/m", content, subject), 1, STAMPS, [words()], store.erasures)
    assert erase(ErasedUser("m", (), "ann")).counts["user_states"] == 1
    assert finds(store, names.name(b"owner", b"kept/m", b"b", b"bob"))


def test_state_that_is_computed_meanwhile_is_not_kept(memory):
    (store, _), names = stores(memory), StateNames(bytes(32))
    before = store.erasures
    erase(ErasedUser("m", (), "7"))
    assert not store.keep(names.name(EVERYBODY, b"s", b"c", b"u"), 1, STAMPS, [words()], before)
    assert not (memory == MARK).any()


def test_memory_that_is_gone_is_no_longer_asked(memory):
    def living():
        return sum(isinstance(keeper, SharedStates) for keeper in KEEPERS)

    gc.collect()
    before = living()
    more = shared_memory(4 << 20, 1)
    assert living() == before + 1
    del more
    gc.collect()
    assert living() == before


@pytest.mark.parametrize(("dtype", "kind"), [("int64", "id"), ("string", "string")])
def test_subject_is_the_key_as_the_request_is_bound(dtype, kind):
    text = dtype == "string"
    features = [
        Feature("user", kind, "user", side="user", table="user", width=4),
        Feature("item", "id", "item", side="item", table="item", offset=4, width=4),
    ]
    tables = [TableEntry("user", 4, 0, hash_seed=3), TableEntry("item", 4, 0)]
    inputs = [Input("user", dtype), Input("item", "int64")]
    manifest = Manifest("m", 1, "a", 0.0, inputs, features, tables, [Output("score")], 8, {}, {})
    plan = SparsePlan(manifest)
    key = Strings.of(["ann"]) if text else np.array([17])
    bound = plan.bind_inputs({"user": key, "item": np.array([1, 2, 3])})
    seed = manifest.tables[0].hash_seed
    number = int(hash_strings(Strings.of(["ann"]), seed)[0]) if text else 17
    assert Subjects(manifest, plan).of(bound) == subject_of("m", number)


def test_model_without_one_users_key_has_unknown_subjects():
    features = [Feature(n, "id", n, side="user", table="t", offset=4 * i, width=4) for i, n in enumerate("ab")]
    inputs = [Input("a", "int64"), Input("b", "int64")]
    manifest = Manifest("m", 1, "a", 0.0, inputs, features, [TableEntry("t", 4, 0)], [Output("score")], 8, {}, {})
    plan = SparsePlan(manifest)
    assert Subjects(manifest, plan).of(plan.bind_inputs({"a": np.array([1]), "b": np.array([2])})) == b""
