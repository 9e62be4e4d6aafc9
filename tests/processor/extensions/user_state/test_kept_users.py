"""Kept users of two owners in two processes, against a plain dict, with time, erasures and a full store."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.errors import BadInput, Conflict, NotReady, TooLarge, UserGone
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.kept_users import KeptUsers
from freshet_serving.processor.extensions.user_state.state_erasure import SharedStates, subject_of
from freshet_serving.processor.extensions.user_state.state_names import StateNames
from freshet_serving.processor.extensions.user_state.state_store import TTL_S, StateStore, arena_memory
from freshet_serving.processor.extensions.user_state.user_counters import BLOCK
from freshet_serving.processor.features.user_calls import (
    APPEND,
    MAX_ID_NBYTES,
    PREPARE,
    REMOVE,
    REPLACE,
    SCORE,
    UserCall,
)
from freshet_serving.processor.package import Feature, Input, InputFiller, Manifest, Output, SequenceEntry, TableEntry
from freshet_serving.processor.versions.erasure import ErasedUser

PAGES, PROCESSES, MOST = 128, 2, 4
NBYTES = 8 * (
    arena.HEADER + PROCESSES * (arena.HEAD + arena.WAYS * arena.ENTRY + PAGES * (arena.PAGE + 1 + arena.ENTRY))
)
OWNERS = (b"one", b"two")


def manifest(timed=True, **changes):
    names = ["h.item"] + ["h.time"] * timed
    sequence = SequenceEntry("h", [], MOST, 0, names, time="h.time" if timed else "")
    features = [
        Feature("user", "id", "user", side="user", table="t"),
        Feature("events", "ids", "h.item", side="user", table="t"),
        Feature("item", "id", "item", side="item", table="t"),
        Feature("hour", "float", "hour", side="context"),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64"), Input("hour", "float32")]
    inputs += [Input(name, "int64", ragged=True) for name in names]
    made = {"inputs": inputs, "features": features, "sequences": [sequence], **changes}
    return Manifest(
        "m", 1, "a", 0.0, tables=[TableEntry("t", 4, 0)], outputs=[Output("score")], width=4, dense={}, files={}, **made
    )


MODEL = manifest()
CANDIDATES = {"item": np.arange(3), "hour": np.zeros(1, np.float32)}


def user_of(number, events):
    return {"user": np.array([number], np.int64), **events_of(events)}


def events_of(events):
    """Events (time, item), as a request has them."""
    return {name: Ragged.of([[event[place] for event in events]]) for name, place in (("h.time", 0), ("h.item", 1))}


def read(inputs):
    """The user and the events of completed inputs."""
    return int(inputs["user"][0]), list(zip(inputs["h.time"].values.tolist(), inputs["h.item"].values.tolist()))


class Opened:
    """Two processes' users over one arena."""

    def __init__(self, nbytes=NBYTES):
        self.clock, self.memory = FakeClock(1.0), arena_memory(nbytes, PROCESSES)
        self.stores = [StateStore(self.memory, PROCESSES, n, self.clock.now_s) for n in range(PROCESSES)]
        self.users = [KeptUsers(store, StateNames(store.secret)) for store in self.stores]

    def call(self, sequence_id, inputs, change=SCORE, process=0, model=MODEL, ranks=False, **options):
        call = UserCall(sequence_id, change, **options)
        return self.users[process].complete(call, model, inputs, ranks), call

    def read(self, sequence_id, process=0, **options):
        completed, _ = self.call(sequence_id, CANDIDATES, process=process, **options)
        return read(completed.inputs)


@pytest.fixture
def opened():
    return Opened()


def test_user_who_was_just_changed_does_not_make_room_for_states_that_nobody_reads(opened):
    store, names = opened.stores[0], StateNames(opened.stores[0].secret)
    opened.call(b"u", user_of(7, []), PREPARE)
    for n in range(500):
        opened.call(b"u", events_of([(n, n)]))
        words = np.ones(2 * arena.PAGE, np.int64)
        assert store.keep(names.name(b"", b"s", bytes([n % 250, n // 250])), 1, np.arange(512), [words], store.erasures)
    assert store.figures.evicted > 400
    assert read(opened.call(b"u", CANDIDATES)[0].inputs)[0] == 7


def test_change_in_another_process_takes_the_copy_of_the_first_away(opened):
    opened.call(b"u", user_of(7, [(1, 10)]), PREPARE, 0)
    completed, _ = opened.call(b"u", events_of([(2, 20)]), process=1)
    assert (completed.scores, completed.computes) == (False, False)
    # The newest is evicted: nothing older takes its place.
    opened.stores[1].forget(opened.users[1]._name(UserCall(b"u"), "m"))
    with pytest.raises(UserGone):
        opened.read(b"u")
    page = arena.HEADER + arena.HEAD + arena.ENTRY * opened.stores[0].own.entries
    assert not opened.memory[page : page + opened.stores[0].own.pages * arena.PAGE].any()


def test_context_of_a_prepare_stands_in_until_a_request_sends_its_own(opened):
    hour = np.array([5.0], np.float32)
    opened.call(b"u", {**user_of(7, []), "hour": hour}, PREPARE)
    completed, _ = opened.call(b"u", {"item": np.arange(2)})
    assert completed.inputs["hour"] == hour
    completed, _ = opened.call(b"u", {"item": np.arange(2), "hour": hour + 1})
    assert completed.inputs["hour"] == hour + 1


def test_version_decides_between_changes(opened):
    _, first = opened.call(b"u", user_of(7, []), PREPARE, expected=0)
    with pytest.raises(Conflict):
        opened.call(b"u", user_of(7, []), PREPARE, expected=0)
    _, second = opened.call(b"u", events_of([(1, 1)]), expected=first.version)
    with pytest.raises(Conflict, match=f"expected the user's, {second.version}, got {first.version}"):
        opened.call(b"u", events_of([(1, 1)]), expected=first.version, process=1)
    assert opened.read(b"u")[1] == [(1, 1)]
    with pytest.raises(UserGone):
        opened.call(b"v", CANDIDATES, expected=3)


def test_change_that_changes_nothing_keeps_the_version(opened):
    _, first = opened.call(b"u", user_of(7, [(1, 1)]), PREPARE)
    for inputs in (events_of([(1, 1)]), {**CANDIDATES, "user": np.array([7])}):
        _, call = opened.call(b"u", inputs, process=1)
        assert call.version == first.version
    _, call = opened.call(b"u", {**CANDIDATES, "user": np.array([8])})
    assert call.version > first.version


def test_user_of_another_owner_or_model_is_not_there(opened):
    opened.call(b"u", user_of(7, []), PREPARE, owner=b"one")
    for options in ({"owner": b"two"}, {"owner": b"one", "model": manifest(inputs=MODEL.inputs)}):
        if "model" in options:
            object.__setattr__(options["model"], "model", "other")
        with pytest.raises(UserGone):
            opened.call(b"u", CANDIDATES, **options)


def test_input_of_another_type_than_the_version_reads_is_not_used(opened):
    opened.call(b"u", user_of(7, []), PREPARE)
    texts = [Input("user", "string"), *MODEL.inputs[1:]]
    for inputs in (CANDIDATES, events_of([(1, 1)])):
        with pytest.raises(UserGone):
            opened.call(b"u", inputs, model=manifest(inputs=texts))


def test_longer_lists_are_cut_as_those_of_any_request(opened):
    opened.call(b"u", user_of(7, [(n, n) for n in range(9)]), PREPARE)
    assert opened.read(b"u")[1] == [(n, n) for n in range(9 - MOST, 9)]
    opened.call(b"u", events_of([(n, n) for n in range(20)]))
    assert opened.read(b"u")[1] == [(n, n) for n in range(20 - MOST, 20)]


def test_version_that_keeps_fewer_events_leaves_those_of_others(opened):
    shorter = manifest(sequences=[SequenceEntry("h", [], 2, 0, ["h.item", "h.time"], time="h.time")])
    opened.call(b"u", user_of(7, [(n, n) for n in range(MOST)]), PREPARE)
    opened.call(b"u", events_of([(MOST, MOST)]), model=shorter, process=1)
    assert opened.read(b"u")[1] == [(n, n) for n in range(1, MOST + 1)]
    opened.call(b"u", events_of([(n, n) for n in range(1, MOST)]), REMOVE, model=shorter)
    assert opened.read(b"u")[1] == [(MOST, MOST)]


def test_release_alone_computes_nothing_and_needs_no_user(opened):
    completed, call = opened.call(b"u", {}, releases=True)
    assert (completed.scores, completed.computes) == (False, False)
    opened.call(b"u", user_of(7, []), PREPARE)
    opened.users[1].release(call, "m")
    with pytest.raises(UserGone):
        opened.read(b"u")


def test_kept_user_is_computed_ahead_by_a_prepare_without_inputs(opened):
    with pytest.raises(UserGone):
        opened.call(b"u", {}, PREPARE)
    opened.call(b"u", user_of(7, [(1, 1)]), PREPARE)
    completed, _ = opened.call(b"u", {}, PREPARE)
    assert (completed.scores, completed.computes) == (False, True)
    assert read(completed.inputs) == (7, [(1, 1)])


@pytest.mark.parametrize(
    ("change", "inputs", "told"),
    [
        (PREPARE, {"user": np.array([1, 2])}, "input 'user': expected one row, that of the user, got 2"),
        (PREPARE, {"user": np.array([1.5])}, "input 'user': expected int64, got another type"),
        (PREPARE, {"user": Ragged.of([[1]])}, "input 'user': expected int64, got another type"),
        (PREPARE, events_of([]), "input 'user' is missing: expected all inputs of the user"),
        (PREPARE, {"h.item": Ragged.of([[1]])}, "input 'h.time' is missing: expected all columns of 'h'"),
        (APPEND, {"h.item": Ragged.of([[1]])}, "input 'h.time' is missing: expected all columns of 'h'"),
        (APPEND, {**events_of([(1, 1)]), "h.item": Ragged.of([[1, 2]])}, "as long as that of 'h.item'"),
        (APPEND, {**events_of([(1, 1)]), "h.item": np.array([1])}, "expected lists of int64, got another type"),
        (APPEND, {**events_of([(1, 1)]), "h.item": Ragged.of([["a"]])}, "expected lists of int64, got another type"),
        (REPLACE, {name: Ragged.of([[1], [2]]) for name in ("h.item", "h.time")}, "expected one row, that of the user"),
        (REMOVE, {"h.item": Ragged(np.array([1]), np.array([0, 9]))}, "expected one list of events"),
    ],
)
def test_wrong_inputs_are_refused_and_change_nothing(opened, change, inputs, told):
    opened.call(b"u", user_of(7, [(1, 1)]), PREPARE)
    with pytest.raises(BadInput) as caught:
        opened.call(b"u", inputs, change)
    assert told in str(caught.value)
    assert opened.read(b"u") == (7, [(1, 1)])


@pytest.mark.parametrize("sequence_id", [b"", b"x" * (MAX_ID_NBYTES + 1)])
def test_id_that_is_no_id_is_refused(opened, sequence_id):
    with pytest.raises(BadInput, match=r"^sequence_id: expected 1 to 256 bytes, got "):
        opened.call(sequence_id, CANDIDATES)


def test_user_of_half_the_store_is_refused_and_forgotten_nothing(opened):
    ragged = manifest(inputs=[*MODEL.inputs, Input("tags", "int64", ragged=True)])
    opened.call(b"u", {**user_of(7, []), "tags": Ragged.of([[1]])}, PREPARE, model=ragged)
    long = np.arange(opened.users[0]._words.most_nbytes // 8)
    with pytest.raises(TooLarge, match="bytes of a user's inputs, got"):
        opened.call(b"u", {**user_of(8, []), "tags": Ragged(long, np.array([0, len(long)]))}, PREPARE, model=ragged)


def test_inputs_filled_by_key_need_nothing_kept(opened):
    filled = manifest()
    filled.fillers.update(dict.fromkeys(("h.item", "h.time"), type("Filler", (), {"keys": ("user",)})))
    for change in (PREPARE, SCORE):
        completed, call = opened.call(b"u", {**CANDIDATES, "user": np.array([1])}, change, model=filled)
        assert completed.scores
        assert completed.inputs["user"].tolist() == [1]
        assert (call.version > 0) == (change == PREPARE)
        opened.users[0].release(call, "m")
    for inputs in ({**CANDIDATES, **events_of([(1, 1)])}, {**events_of([(1, 1)]), "user": np.array([1])}):
        with pytest.raises(UserGone):
            opened.call(b"u", inputs, model=filled)
    with pytest.raises(UserGone):
        opened.call(b"u", CANDIDATES, model=filled)


def test_events_that_a_store_has_are_not_changed_here(opened):
    filled = manifest()
    filled.fillers.update(dict.fromkeys(("h.item", "h.time"), InputFiller("online", "g", ("user",))))
    opened.call(b"u", {"user": np.array([7])}, PREPARE, model=filled)
    with pytest.raises(
        BadInput, match=r"^input 'h.item': expected a user that was prepared with events, got one whose"
    ):
        opened.call(b"u", events_of([(1, 1)]), model=filled)
    opened.call(b"u", user_of(7, []), PREPARE, model=filled)
    opened.call(b"u", events_of([(1, 1)]), model=filled)
    assert opened.read(b"u", model=filled)[1] == [(1, 1)]


def test_model_without_candidates_is_scored_by_an_empty_request(opened):
    features = [Feature("user", "id", "user", side="user", table="t")]
    alone = manifest(inputs=[Input("user", "int64")], features=features, sequences=[])
    prepared, _ = opened.call(b"u", {"user": np.array([7])}, PREPARE, model=alone)
    assert not prepared.scores
    completed, _ = opened.call(b"u", {}, model=alone)
    assert completed.scores
    assert completed.inputs["user"].tolist() == [7]


def test_more_events_than_are_kept_are_not_removed_in_part(opened):
    opened.call(b"u", user_of(7, [(1, 1), (2, 2)]), PREPARE)
    sent = [(1, 1), *((n, 0) for n in range(10, 10 + MOST))]
    with pytest.raises(BadInput, match=f"^input 'h.item': expected at most {MOST} events to remove, got {MOST + 1}"):
        opened.call(b"u", events_of(sent), REMOVE)
    opened.call(b"u", events_of(sent[:MOST]), REMOVE)
    assert opened.read(b"u")[1] == [(2, 2)]


def test_release_of_another_version_forgets_nothing(opened):
    _, first = opened.call(b"u", user_of(7, []), PREPARE)
    _, second = opened.call(b"u", events_of([(1, 1)]))
    for expected in (0, first.version):
        with pytest.raises(Conflict):
            opened.users[1].release(UserCall(b"u", releases=True, expected=expected), "m")
    assert opened.read(b"u")[1] == [(1, 1)]
    opened.users[1].release(UserCall(b"u", releases=True, expected=second.version), "m")
    with pytest.raises(UserGone):
        opened.read(b"u")
    # Sent again it has nothing left to do.
    opened.users[1].release(UserCall(b"u", releases=True, expected=second.version), "m")


def test_release_with_a_change_follows_it(opened):
    _, first = opened.call(b"u", user_of(7, []), PREPARE)
    _, call = opened.call(b"u", events_of([(1, 1)]), releases=True, expected=first.version)
    opened.users[0].release(call, "m")
    with pytest.raises(UserGone):
        opened.read(b"u")


def test_events_with_a_column_that_is_not_kept_are_those_of_a_user_that_is_gone(opened):
    opened.call(b"u", user_of(7, [(1, 1)]), PREPARE)
    names = ["h.item", "h.time", "h.price"]
    inputs = [*MODEL.inputs, Input("h.price", "float32", ragged=True)]
    wider = manifest(inputs=inputs, sequences=[SequenceEntry("h", [], MOST, 0, names, time="h.time")])
    with pytest.raises(UserGone):
        opened.call(b"u", {**events_of([(2, 2)]), "h.price": Ragged.of([[0.5]])}, model=wider)
    assert opened.read(b"u")[1] == [(1, 1)]


@pytest.mark.parametrize("change", [PREPARE, APPEND])
def test_infinite_floats_are_not_kept(opened, change):
    model = manifest(inputs=[*MODEL.inputs, Input("age", "float32")])
    model.features.append(Feature("age", "float", "age", side="user"))
    sent = {**user_of(7, []), "age": np.array([np.nan], np.float32)}
    opened.call(b"u", sent, PREPARE, model=model)
    with pytest.raises(BadInput, match=r"^input 'age': expected finite numbers \(or NaN\), got inf"):
        opened.call(b"u", {**sent, "age": np.array([np.inf], np.float32)}, change, model=model)
    assert np.isnan(opened.call(b"u", CANDIDATES, model=model)[0].inputs["age"])


@pytest.mark.parametrize("empty", [np.empty(0, np.int64), np.empty(0, np.float32), Strings.of([])])
def test_user_without_events_is_kept_whatever_type_its_empty_lists_have(opened, empty):
    names = ["h.item", "h.time", "h.price", "h.word"]
    more = [Input("h.price", "float32", ragged=True), Input("h.word", "string", ragged=True)]
    model = manifest(inputs=[*MODEL.inputs, *more], sequences=[SequenceEntry("h", [], MOST, 0, names, time="h.time")])
    none = {name: Ragged(empty, np.array([0, 0])) for name in names}
    opened.call(b"u", {"user": np.array([7]), **none}, PREPARE, model=model)
    opened.call(b"u", none, model=model)
    one = {**events_of([(1, 2)]), "h.price": Ragged.of([[0.5]]), "h.word": Ragged.of([["a"]])}
    for inputs in (one, none, one):
        opened.call(b"u", inputs, model=model)
    kept = opened.call(b"u", CANDIDATES, model=model)[0].inputs
    assert [kept[name].values.tolist() for name in names] == [[2], [1], [0.5], [b"a"]]


def test_text_of_a_user_is_kept_as_text(opened):
    model = manifest(inputs=[Input("user", "string"), *MODEL.inputs[1:]])
    opened.call(b"u", {**events_of([]), "user": Strings.of(["é"])}, PREPARE, model=model)
    completed, _ = opened.call(b"u", CANDIDATES, model=model)
    assert completed.inputs["user"].tolist() == ["é".encode()]


def test_change_under_an_erasure_of_others_is_made_anew_from_what_is_kept(opened, monkeypatch):
    opened.call(b"u", user_of(7, []), PREPARE)
    store, replace, left = opened.stores[0], StateStore.replace, [1]

    def erased(self, *arguments):
        if left[0]:
            left[0] -= 1
            store.erase(1, 1)
        return replace(self, *arguments)

    monkeypatch.setattr(StateStore, "replace", erased)
    opened.call(b"u", events_of([(1, 1)]), process=1)
    assert opened.read(b"u") == (7, [(1, 1)])
    left[0] = 1
    opened.call(b"u", user_of(8, []), PREPARE)
    assert opened.read(b"u") == (8, [])
    left[0] = 9
    with pytest.raises(NotReady, match="users are being erased"):
        opened.call(b"u", events_of([(2, 2)]))
    assert opened.read(b"u") == (8, [])


def test_change_under_an_erasure_of_its_own_user_finds_nothing(opened, monkeypatch):
    opened.call(b"u", user_of(7, []), PREPARE)
    replace = StateStore.replace

    def erased(self, *arguments):
        self.erase()
        return replace(self, *arguments)

    monkeypatch.setattr(StateStore, "replace", erased)
    with pytest.raises(UserGone):
        opened.call(b"u", events_of([(1, 1)]))


def test_changes_conflicts_and_users_that_are_gone_are_counted(opened):
    _, call = opened.call(b"u", user_of(7, []), PREPARE)
    for _ in range(2):
        opened.call(b"u", events_of([(1, 1)]))
    with pytest.raises(Conflict):
        opened.call(b"u", events_of([(2, 2)]), expected=call.version)
    opened.call(b"v", user_of(8, []), PREPARE)
    opened.users[0].release(UserCall(b"v"), "m")
    opened.call(b"w", user_of(9, []), PREPARE, process=1)
    for gone in (b"v", b"never"):
        with pytest.raises(UserGone):
            opened.read(gone)
    opened.clock.advance(TTL_S + 1)
    with pytest.raises(UserGone):
        opened.read(b"u")
    counted = [by_name(users.counted("m"), BLOCK) for users in opened.users]
    nbytes = [one.pop("nbytes") for one in counted]
    # The second append changed nothing. What is too old is there until a change sweeps it.
    assert {name: count for name, count in counted[0].items() if count} == {
        "changes.prepare": 2, "changes.append": 1, "changes.release": 1, "gone.absent": 2, "gone.expired": 1,
        "conflicts": 1, "users": 1,
    }  # fmt: skip
    assert {name: count for name, count in counted[1].items() if count} == {"changes.prepare": 1, "users": 1}
    assert nbytes[0] == nbytes[1] > 0
    assert not any(by_name(opened.users[0].counted("other"), BLOCK).values())


def test_user_that_made_place_for_others_is_counted_as_evicted(opened):
    names = [b"%d" % n for n in range(2 * PAGES)]
    for name in names:
        opened.call(name, user_of(7, []), PREPARE)
    gone = 0
    for name in names:
        try:
            opened.read(name)
        except UserGone:
            gone += 1
    counted = by_name(opened.users[0].counted("m"), BLOCK)
    # Names with the same last bits: a later one takes an earlier one's place.
    assert gone - 4 <= counted["gone.evicted"] <= gone
    assert counted["users"] == len(names) - gone


def test_users_of_twenty_events_take_a_kibibyte_of_the_budget_at_most():
    """So a million of them take a gibibyte, index included."""
    users, model = 4000, manifest(sequences=[replace(MODEL.sequences[0], max_length=20)])
    store = StateStore(memory := arena_memory(users << 10, 1), 1, 0, FakeClock(1.0).now_s)
    kept = KeptUsers(store, StateNames(store.secret))
    events = events_of([(1_700_000_000_000 + n, n << 40) for n in range(20)])
    for number in range(users):
        kept.complete(UserCall(b"%d" % number, PREPARE), model, {"user": np.array([number]), **events}, False)
    counted = by_name(kept.counted("m"), BLOCK)
    assert (counted["users"], counted["nbytes"]) == (users, users * 8 * arena.PAGE)
    assert store.figures.evicted == 0
    for number in range(0, users, 97):
        completed = kept.complete(UserCall(b"%d" % number), model, CANDIDATES, False)
        assert completed.inputs["user"] == [number]
    assert memory.nbytes < users * 1073


def erase(opened, key, *numbers):
    return SharedStates(opened.memory, PROCESSES).erase_user(ErasedUser("m", ("user",), key, numbers))["user_states"]


def test_erasure_finds_a_user_under_any_id(opened):
    for process, (sequence_id, number) in enumerate([(b"session", 7), (b"other", 8)]):
        opened.call(sequence_id, user_of(number, [(1, 1)]), PREPARE, process, owner=b"one")
    assert erase(opened, "7", 7) == 1
    with pytest.raises(UserGone):
        opened.read(b"session", owner=b"one")
    assert opened.read(b"other", owner=b"one")[0] == 8


def test_erasure_follows_the_key_that_a_change_brings(opened):
    opened.call(b"u", user_of(7, []), PREPARE)
    opened.call(b"u", {"user": np.array([8])}, process=1)
    assert [erase(opened, str(number), number) for number in (7, 8)] == [0, 1]


def test_erasure_finds_a_text_and_takes_users_whose_key_cannot_be_told(opened):
    texts = manifest(inputs=[Input("user", "string"), *MODEL.inputs[1:]])
    opened.call(b"u", {**events_of([]), "user": Strings.of(["ann"])}, PREPARE, model=texts)
    opened.call(b"v", {**events_of([]), "user": Strings.of(["bob"])}, PREPARE, model=texts)
    assert erase(opened, "ann") == 1
    # Either input may be the one with users' keys.
    two = manifest(inputs=[*MODEL.inputs, Input("device", "int64")])
    two.features.append(Feature("device", "id", "device", side="user", table="t"))
    opened.call(b"w", {**user_of(7, []), "device": np.array([1])}, PREPARE, model=two)
    assert erase(opened, "unknown") == 1


def test_erasure_takes_the_id_for_the_key_of_a_model_without_one(opened):
    alone = manifest(features=[f for f in MODEL.features if f.name != "user"])
    alone.inputs[:] = [i for i in MODEL.inputs if i.name != "user"]
    for sequence_id in (b"ann", b"bob"):
        opened.call(sequence_id, events_of([(1, 1)]), PREPARE, model=alone)
    assert erase(opened, "ann") == 1


events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=MOST)
ids, owners, processes = st.sampled_from([b"1", b"2", b"3"]), st.sampled_from(OWNERS), st.integers(0, PROCESSES - 1)


class Users(RuleBasedStateMachine):
    """What two processes keep is what a dict keeps, whatever happens in between."""

    def __init__(self):
        super().__init__()
        self.opened, self.kept, self.written, self.versions = Opened(), {}, {}, {}

    def _key(self, owner, sequence_id):
        key = owner, sequence_id
        # The store counts milliseconds.
        if key in self.kept and self.opened.clock.now_s() - self.written[key] > TTL_S + 0.001:
            del self.kept[key]
        return key

    def _write(self, key, user, events, call):
        self.opened.clock.advance(2e-6)
        assert call.version > self.versions.get(key, 0)
        self.kept[key], self.written[key] = (user, events), self.opened.clock.now_s()
        self.versions[key] = call.version

    @rule(owner=owners, sequence_id=ids, process=processes, user=st.integers(0, 9), sent=events)
    def prepare(self, owner, sequence_id, process, user, sent):
        _, call = self.opened.call(sequence_id, user_of(user, sent), PREPARE, process, owner=owner)
        self._write(self._key(owner, sequence_id), user, list(sent), call)

    @rule(
        owner=owners,
        sequence_id=ids,
        process=processes,
        change=st.sampled_from([SCORE, APPEND, REPLACE, REMOVE]),
        sent=events,
        scored=st.booleans(),
    )
    def change(self, owner, sequence_id, process, change, sent, scored):
        key = self._key(owner, sequence_id)
        inputs = {**events_of(sent), **(CANDIDATES if scored else {})}
        if key not in self.kept:
            with pytest.raises(UserGone):
                self.opened.call(sequence_id, inputs, change, process, owner=owner)
            return
        completed, call = self.opened.call(sequence_id, inputs, change, process, owner=owner)
        user, before = self.kept[key]
        left = list(before)
        if change == REMOVE:
            for event in sent:
                if event in left:
                    left.pop(len(left) - 1 - left[::-1].index(event))
        elif change == REPLACE:
            times = {time for time, _ in sent}
            left = sorted([e for e in before if e[0] not in times] + list(sent), key=lambda e: e[0])[-MOST:]
        else:
            missing, there = [], list(before)
            for event in sent:
                if event in there:
                    there.remove(event)
                else:
                    missing.append(event)
            left = sorted(left + missing, key=lambda e: e[0])[-MOST:]
        assert read(completed.inputs) == (user, left)
        assert completed.scores == scored
        if left != before:
            self._write(key, user, left, call)
        assert call.version == self.versions[key]

    @rule(owner=owners, sequence_id=ids, process=processes)
    def score(self, owner, sequence_id, process):
        key = self._key(owner, sequence_id)
        if key not in self.kept:
            with pytest.raises(UserGone):
                self.opened.read(sequence_id, process, owner=owner)
        else:
            assert self.opened.read(sequence_id, process, owner=owner) == self.kept[key]

    @rule(owner=owners, sequence_id=ids, process=processes)
    def release(self, owner, sequence_id, process):
        self.opened.users[process].release(UserCall(sequence_id, owner=owner), "m")
        self.kept.pop((owner, sequence_id), None)

    @rule(seconds=st.sampled_from([1, TTL_S / 2, TTL_S + 1]))
    def wait(self, seconds):
        self.opened.clock.advance(seconds)

    @rule(owner=owners, user=st.none() | st.integers(0, 9), process=processes)
    def erase(self, owner, user, process):
        store = self.opened.stores[process]
        names = StateNames(store.secret)
        subject = arena.NOBODY if user is None else names.subject(subject_of("m", user))
        store.erase(names.owner(owner), subject)
        for key in [key for key in self.kept if key[0] == owner and user in (None, self.kept[key][0])]:
            del self.kept[key]

    @rule(process=processes)
    def die(self, process):
        opened = self.opened
        store = StateStore(opened.memory, PROCESSES, process, opened.clock.now_s)
        opened.stores[process], opened.users[process] = store, KeptUsers(store, StateNames(store.secret))


Users.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestUsers = Users.TestCase
