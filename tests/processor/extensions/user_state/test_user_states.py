"""What is kept of users, end to end: replies are those of a processor that keeps nothing, whatever is published."""

import shutil
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.user_state import user_states
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK
from freshet_serving.processor.extensions.user_state.state_gate import StateGate
from freshet_serving.processor.features.user_bounds import OldestUsers, UserBounds
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.models.zoo.sequence_models import make_batch, of_request, publish_untrained
from tests.processor.extensions.user_state.random_deltas import ITEMS, Log
from tests.processor.extensions.user_state.user_parts import Parts
from tests.support.waiting import at_once

LONG = pytest.mark.long
pytestmark = [pytest.mark.tensorflow, pytest.mark.unguarded("deltas of random rows")]

LENGTH, ROWS = 24, 8
EVENTS = (0, 1, 5, LENGTH - 1, LENGTH, LENGTH + 9)
USERS = 6
ARCHS = ("stca", pytest.param("din", marks=LONG), pytest.param("hstu", marks=LONG))


@pytest.fixture(scope="module", params=ARCHS)
def package(request, tmp_path_factory):
    """The repository of a divided model of histories, and its requests, one of each user."""
    folder, timed = tmp_path_factory.mktemp(request.param), request.param == "hstu"
    options = {} if request.param == "din" else {"units": 8, "layers": 2}
    publish_untrained(request.param, folder / "r", LENGTH, timed, (1, ROWS), **options)
    columns = make_batch(ROWS, EVENTS, seed=7, items=ITEMS + 10, timed=timed).columns
    return folder / "r", [of_request(columns, ROWS, user) for user in range(USERS)]


@pytest.fixture
def repository(package, tmp_path):
    shutil.copytree(package[0], tmp_path / "r")
    return tmp_path / "r"


@pytest.fixture(autouse=True)
def _every_user_is_worth_a_look(monkeypatch):
    monkeypatch.setattr(user_states, "LEAST_S", 0.0)
    monkeypatch.setattr(StateGate, "admits", lambda gate, draw: True)


def opened(repository, megabytes=4, **options):
    plain = {"sessions": 1, "delta_guard": "off", "undo_depth": 2, "user_state_mb": megabytes}
    processor = Processor.initialize(ProcessorConfig(str(repository), **plain | options))
    divide(processor)
    return processor


def divide(processor):
    """Have all requests divided, whatever this machine's costs are."""
    processor.predictor.replica("m").graphs.pays = lambda parts, rows: True


def appended(request, item):
    """The request of a user who has met one more item, ten seconds after the newest."""
    newest = {"history.item": item, "history.action": 1}
    if "history.time" in request:
        newest["history.time"] = int(request["history.time"].values[-1:].sum()) + 10
    longer = {name: [[*request[name].values.tolist(), value]] for name, value in newest.items()}
    return request | {name: Ragged.of(values) for name, values in longer.items()}


def ask(processor, request):
    return processor.process(PredictRequest("m", request))


def counted(processor):
    return by_name(processor.predictor.replica("m").counted(), BLOCK)


@pytest.mark.parametrize(("compute", "tiered"), [("threads", True), ("inline", False)], ids=["tiered", "inline"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=(LONG, pytest.mark.campaign))])
def test_replies_are_those_without_a_store_over_deltas_appends_and_rollbacks(
    package, repository, tmp_path, compute, tiered, seed
):
    requests, dice = list(package[1]), np.random.default_rng(seed)
    # A few rows are hot: most lie on disk.
    budgets = Budgets({"m/*": 2000}, tmp_path) if tiered else None
    options = {"compute": compute, "budgets": budgets}
    with opened(repository, **options) as kept, opened(repository, 0, **options) as plain:
        log, moved = Log(repository, kept, seed), False
        for _ in range(120):
            action = dice.integers(0, 12)
            if action == 0:
                log.publish({"item": log.some(6), "user": log.some(4)})
            elif action == 1:
                log.publish({"item": log.some(9)}, {"item": []}, dense=True)
            elif action == 2:
                upserts, gone = log.some(5), log.some(5)
                log.publish({"item": upserts}, {"item": [key for key in gone if key not in upserts]})
            elif action == 3:
                log.roll_back()
            elif action == 5:
                user = int(dice.integers(0, USERS))
                requests[user] = appended(requests[user], int(dice.integers(0, ITEMS)))
            elif tiered and action == 4:
                for processor in (kept, plain):
                    version = processor.host.catalogue["m"].pick(None)
                    version.maintain()
                    moved = moved or any(table.tier.log_nbytes for table in version.tables.values())
            for processor in (kept, plain):
                processor.poll()
            request = requests[dice.integers(0, USERS)]
            mine, theirs = ask(kept, request), ask(plain, request)
            assert mine.generation == theirs.generation
            # Each measures by itself which buckets are cheapest, so executables may differ.
            np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], rtol=1e-5, atol=1e-6)
        figures = counted(kept)
    assert moved == tiered
    assert figures["hits"] > 10
    assert figures["misses.rows"] > 0
    assert figures["misses.dense"] > 0
    assert figures["misses.torn"] == 0


def test_rows_of_others_keep_a_state_and_own_rows_and_weights_do_not(package, repository):
    _, requests = package
    request = dict(requests[3])
    read = set(request["history.item"].values.tolist())
    others = [key for key in range(ITEMS) if key not in read][:3] or [ITEMS + 100]
    with opened(repository) as processor:
        log = Log(repository, processor)

        def outcome():
            before = counted(processor)
            ask(processor, request)
            names = [name for name in before if name == "hits" or name.startswith("misses")]
            return [name for name in names if counted(processor)[name] != before[name]]

        assert [outcome(), outcome()] == [["misses.absent"], ["hits"]]
        log.publish({"item": others})
        processor.poll()
        assert outcome() == ["hits"]
        log.publish({"item": sorted(read)[:1]})
        processor.poll()
        changed = processor.host.catalogue["m"].pick(None).generation
        assert processor.rollback("m", "1.1") is not None
        # Nobody has asked meanwhile: what was computed before is exact again.
        assert outcome() == ["hits"]
        assert changed.step == 2
        log.step = 2
        log.publish({"item": sorted(read)[:1]})
        processor.poll()
        assert [outcome(), outcome()] == [["misses.rows"], ["hits"]]
        log.publish(dense=True)
        processor.poll()
        assert [outcome(), outcome()] == [["misses.dense"], ["hits"]]


def test_version_that_is_loaded_again_reads_no_state_of_its_earlier_load(package, repository):
    """Its epochs begin anew, so stamps of the two loads have nothing in common."""
    _, requests = package
    with opened(repository) as processor:
        log = Log(repository, processor)
        log.publish({"item": list(range(ITEMS))})
        processor.poll()
        before = ask(processor, requests[4]).outputs["score"]
        processor.host.unload("m", 1)
        log.step = 1
        processor.host.load("m", 1)
        divide(processor)
        assert counted(processor)["hits"] == 0
        np.testing.assert_allclose(ask(processor, requests[4]).outputs["score"], before, rtol=1e-5, atol=1e-6)
        assert (counted(processor)["hits"], counted(processor)["misses.absent"]) == (0, 1)


def test_batches_and_chunks_of_requests_use_what_is_kept(package, repository):
    _, requests = package
    long = {name: np.resize(c, 100) if name in ("item", "price") else c for name, c in requests[5].items()}
    with opened(repository) as kept, opened(repository, 0) as plain:
        for _ in range(3):
            several = [PredictRequest("m", request) for request in [*requests, long]]
            for mine, theirs in zip(kept.batch_process(several), plain.batch_process(several)):
                np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], atol=1e-5)
        figures = counted(kept)
    # Requests 5 and 6 are of one user.
    assert figures["hits"] >= 2 * USERS
    assert figures["kept"] <= USERS + 1


def test_requests_of_several_threads_get_their_own_users(package, repository):
    _, requests = package
    failed = []
    with opened(repository, sessions=2) as kept, opened(repository, 0) as plain:
        expected = [ask(plain, request).outputs["score"] for request in requests]

        def work(first):
            for turn in range(60):
                user = (first + turn) % USERS
                if not np.allclose(ask(kept, requests[user]).outputs["score"], expected[user], atol=1e-5):
                    failed.append(user)

        at_once(work, range(4))
        assert counted(kept)["hits"] > 100
    assert not failed


def test_erasure_between_look_and_keep_keeps_nothing(package, repository):
    _, requests = package
    with opened(repository) as processor:
        look = user_states.PinnedStates.look

        def look_then_erase(*arguments):
            found = look(*arguments)
            processor.host._states.store.erase()
            return found

        with mock.patch.object(user_states.PinnedStates, "look", look_then_erase):
            ask(processor, requests[2])
        assert (counted(processor)["kept"], counted(processor)["unkept"]) == (0, 1)
        ask(processor, requests[2])
        assert counted(processor)["misses.absent"] == 2


def test_user_part_that_takes_less_than_a_look_is_computed_anew(package, repository, monkeypatch):
    _, requests = package
    monkeypatch.setattr(user_states, "LEAST_S", 1e9)
    with opened(repository) as processor:
        for _ in range(2):
            ask(processor, requests[2])
        assert not any(counted(processor).values())


def test_users_that_the_gate_leaves_out_are_computed_anew(package, repository, monkeypatch):
    _, requests = package
    monkeypatch.setattr(StateGate, "admits", lambda gate, draw: False)
    with opened(repository) as kept, opened(repository, 0) as plain:
        for _ in range(2):
            mine, theirs = ask(kept, requests[4]), ask(plain, requests[4])
            np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], rtol=1e-5, atol=1e-6)
        assert {name: n for name, n in counted(kept).items() if n} == {"unasked": 2}


def test_looks_that_find_nothing_close_the_gate(package, repository, monkeypatch):
    _, requests = package
    monkeypatch.undo()
    monkeypatch.setattr(user_states, "LEAST_S", 0.0)
    columns = make_batch(600, EVENTS, seed=8, items=ITEMS, timed="history.time" in requests[0]).columns
    with opened(repository) as processor:
        for user in range(600):
            alone = of_request(columns, 600, user)
            ask(
                processor,
                alone | {"user": np.array([1000 + user]), "item": np.array([1, 2]), "price": np.ones(2, np.float32)},
            )
        figures = counted(processor)
    assert figures["hits"] == 0
    assert figures["unasked"] > 50


def test_requests_that_are_not_divided_and_models_without_a_user_look_for_nothing(package, repository):
    _, requests = package
    with opened(repository) as processor:
        processor.predictor.replica("m").graphs.pays = lambda parts, rows: False
        ask(processor, requests[2])
        assert not any(counted(processor).values())


def bounded(**bounds):
    return {"policies": {"m": ModelPolicy.parse({"user_state": bounds}, "model.m")}}


def named_step(reply):
    return None if reply.state_generation is None else reply.state_generation.step


@pytest.mark.parametrize("compute", ["threads", "inline"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=(LONG, pytest.mark.campaign))])
def test_bounded_replies_are_of_the_two_generations_that_they_name(package, repository, compute, seed):
    requests, dice, most = list(package[1]), np.random.default_rng(seed), 3
    with opened(repository, compute=compute, **bounded(steps=most)) as kept, opened(repository, 0) as plain:
        log, parts, line, ages = Log(repository, kept, seed), Parts(plain), [0], []
        for turn in range(70):
            action = dice.integers(0, 8)
            if action < 2:
                log.publish({"item": log.some(6), "user": log.some(4)}, dense=bool(action))
            elif action == 2:
                if (to := log.roll_back()) is not None:
                    del line[line.index(to) + 1 :]
            elif action == 3:
                user = int(dice.integers(0, USERS))
                requests[user] = appended(requests[user], int(dice.integers(0, ITEMS)))
            for processor in (kept, plain):
                processor.poll()
            step = kept.host.catalogue["m"].pick(None).generation.step
            if line[-1] != step:
                line.append(step)
            for user, request in enumerate(requests):
                parts.scores(user, request)
            users = dice.integers(0, USERS, 1 if turn % 3 else 5).tolist()
            for user, reply in zip(users, kept.batch_process([PredictRequest("m", requests[user]) for user in users])):
                assert reply.generation.step == step
                older = named_step(reply)
                if older is not None:
                    assert step - most <= older < step
                    assert older in line, "its generation was not rolled back"
                    ages.append(step - older)
                np.testing.assert_allclose(
                    reply.outputs["score"], parts.scores(user, requests[user], older), rtol=1e-5, atol=1e-6
                )
        figures = counted(kept)
    assert figures["hits"] > figures["older"] == len(ages) > 5
    assert figures["older_steps"] == sum(ages)
    assert figures["misses.dense"] + figures["misses.rows"] > 0


def test_bounded_state_is_used_up_to_its_steps_and_seconds_and_then_computed_anew(package, repository):
    _, requests = package
    with opened(repository, **bounded(steps=2, age_s=60)) as processor:
        log, store = Log(repository, processor), processor.host._states.store
        began_s = store.now_s

        def served(dense=True):
            log.publish(dense=dense)
            processor.poll()
            return named_step(ask(processor, requests[3]))

        assert named_step(ask(processor, requests[3])) is None
        assert [served() for _ in range(4)] == [0, 0, None, 3]
        with mock.patch.object(store, "_now_s", return_value=began_s + 65.0):
            assert named_step(ask(processor, requests[3])) is None
            assert counted(processor)["misses.dense"] == 2
            # It is of the served generation now.
            assert named_step(ask(processor, requests[3])) is None
            assert served() == 4


def test_bounded_state_of_a_newer_flip_than_the_pinned_one_is_not_used(package, repository):
    """Another session may have pinned the next flip already, and kept what it computed."""
    _, requests = package
    with opened(repository, **bounded(steps=10)) as processor:
        replica = processor.predictor.replica("m")
        bounds = UserBounds(OldestUsers(10))
        bound = replica.plan.bind_inputs(requests[3])._replace(user_bounds=bounds)
        shapes = {output.name: (1, *output.dims[1:]) for output in replica.manifest.graphs["user"].outputs}
        computed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        with replica.pinned(1) as state:

            def look(publish_seq, turn=0):
                # Weights of its own for each flip.
                users = user_states.WeightedStates(state.users.states, publish_seq).at(publish_seq, publish_seq, turn)
                return users.look(state.tables, state.epoch, replica.graphs.user, bound)

            look(7).keep(computed, 0)
            assert (look(6).tensors, bounds.step) == (None, None)
            assert (look(9).tensors is None, bounds.step) == (False, 7)
            assert (look(9, turn=8).tensors, bounds.step) == (None, None)
            assert (look(9, turn=7).tensors is None, bounds.step) == (False, 7)
            assert (look(18).tensors, bounds.step) == (None, None)
            # What is valid is used whatever its flip is.
            assert (look(7, turn=9).tensors is None, bounds.step) == (False, None)


def test_bounded_state_of_what_was_rolled_back_is_not_used(package, repository):
    _, requests = package
    with opened(repository, **bounded(steps=10)) as processor:
        log = Log(repository, processor)

        def served(user):
            return named_step(ask(processor, requests[user]))

        log.publish(dense=True)
        processor.poll()
        assert served(2) is None
        log.publish(dense=True)
        processor.poll()
        assert (served(2), served(3)) == (1, None)
        processor.rollback("m", "1.1")
        # One is exact again, the other newer than what is served.
        assert (served(2), served(4)) == (None, None)
        assert counted(processor)["misses.dense"] == 0
        for _ in range(2):
            # The first one's weights are those that were rolled back.
            log.publish(dense=True)
            processor.poll()
        assert (served(3), served(4)) == (None, 1)
        assert counted(processor)["misses.dense"] == 1


def test_chunks_of_a_large_request_are_exact_in_bounded_mode(package, repository):
    _, requests = package
    long = {name: np.resize(c, 600) if name in ("item", "price") else c for name, c in requests[5].items()}
    with opened(repository, **bounded(age_s=1000)) as kept, opened(repository, 0) as plain:
        ask(kept, requests[5])
        Log(repository, kept).publish(dense=True)
        for processor in (kept, plain):
            processor.poll()
        assert named_step(ask(kept, requests[5])) == 0
        mine, theirs = ask(kept, long), ask(plain, long)
        np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], atol=1e-5)
        assert mine.state_generation is None
        # The user was computed anew, which later requests read.
        assert named_step(ask(kept, requests[5])) is None


def test_policy_of_bounded_states_is_changed_while_serving(package, repository):
    _, requests = package
    with opened(repository) as processor:
        log = Log(repository, processor)

        def served():
            log.publish(dense=True)
            processor.poll()
            return named_step(ask(processor, requests[3]))

        ask(processor, requests[3])
        assert served() is None
        processor.host.set_policy("m", {"user_state": {"steps": 5}})
        assert served() == 1
        processor.host.set_policy("m", {"user_state": None})
        assert served() is None


def test_mark_of_weights_is_of_their_bytes_alone():
    process = mock.Mock()
    states = user_states.VersionStates(process, mock.Mock(model="m", version=1), mock.Mock(), 5, {}, 1)
    weights = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    assert states.weighted(weights) is None
    states.parts = {"user": mock.Mock()}
    mark = states.weighted(weights).weights
    assert states.weighted({"b": weights["b"].copy(), "a": weights["a"].copy()}).weights == mark
    assert states.weighted({"b": weights["b"], "a": weights["a"].reshape(3, 2)}).weights != mark
    assert states.weighted({"b": weights["b"], "a": weights["a"] * 2}).weights != mark
