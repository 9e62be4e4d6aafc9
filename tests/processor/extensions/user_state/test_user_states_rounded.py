"""User parts that are kept as float16, end to end: near those that are exact, never stale, and always named."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.extensions.user_state.state_tensors import SMALL
from freshet_serving.processor.features.user_calls import PREPARE, UserCall
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.versions.erasure import ErasedUser, erase
from tests.processor.extensions.user_state import test_user_states as exact
from tests.processor.extensions.user_state.random_deltas import ITEMS, Log
from tests.processor.extensions.user_state.test_user_states import USERS, appended, ask, bounded, named_step, opened
from tests.processor.extensions.user_state.user_parts import Parts

pytestmark = [pytest.mark.tensorflow, pytest.mark.unguarded("deltas of random rows")]

package, repository = exact.package, exact.repository
every_user_is_worth_a_look = exact._every_user_is_worth_a_look
MOST_APART = 2e-3
"""Of scores that are probabilities."""


def counted(processor):
    return exact.counted(processor)


def scores(parts, user, request, step=None, rounded=False):
    """Scores as of Parts.scores(), of the user's part as float16 holds it if asked for."""
    found = parts.scores(user, request, step)
    if rounded:
        kept = parts.parts[parts.key]
        largest = max(t.size for t in kept.values())
        parts.parts[parts.key] = {
            n: t if SMALL * t.size <= largest else t.astype(np.float16).astype(np.float32) for n, t in kept.items()
        }
        found = parts.scores(user, request, step)
        parts.parts[parts.key] = kept
    return found


@pytest.mark.parametrize(
    ("bounds", "tiered", "compute"), [({}, False, "threads"), ({}, True, "inline"), ({"steps": 3}, True, "threads")],
    ids=["own generation", "own generation, tiered, inline", "older ones, tiered"],
)  # fmt: skip
def test_replies_are_rounded_exactly_where_they_say_so(package, repository, tmp_path, bounds, tiered, compute):
    requests, dice = list(package[1]), np.random.default_rng(0)
    budgets = Budgets({"m/*": 2000}, tmp_path) if tiered else None
    options = {"compute": compute, "budgets": budgets}
    half = bounded(dtype="float16", **bounds)
    with opened(repository, **options, **half) as kept, opened(repository, 0, budgets=budgets) as plain:
        log, parts, steps, apart = Log(repository, kept), Parts(plain), set(), 0.0
        for _ in range(60):
            action = dice.integers(0, 9)
            if action == 0:
                log.publish({"item": log.some(6), "user": log.some(4)})
            elif action == 1:
                log.publish({"item": log.some(4)}, dense=True)
            elif action == 2:
                log.roll_back()
            elif action == 3:
                user = int(dice.integers(0, USERS))
                requests[user] = appended(requests[user], int(dice.integers(0, ITEMS)))
            for processor in (kept, plain):
                processor.poll()
            step = kept.host.catalogue["m"].pick(None).generation.step
            for user, request in enumerate(requests):
                parts.scores(user, request)
            for user in dice.integers(0, USERS, 3).tolist():
                reply = ask(kept, requests[user])
                of = named_step(reply)
                assert reply.generation.step == step
                assert of is None or 0 <= step - of <= bounds.get("steps", 0)
                expected = scores(parts, user, requests[user], of, rounded=of is not None)
                np.testing.assert_allclose(reply.outputs["score"], expected, rtol=1e-5, atol=1e-6)
                if of is not None:
                    steps.add(step - of)
                    apart = max(apart, np.abs(expected - scores(parts, user, requests[user], of)).max())
        figures = counted(kept)
    assert 0 in steps
    assert (max(steps) > 0) == bool(bounds)
    assert 0 < apart < MOST_APART
    assert figures["rounded"] == figures["hits"] > 20
    assert (figures["beyond"], figures["misses.torn"]) == (0, 0)
    assert figures["misses.rows"] + figures["misses.dense"] > 0


def test_state_takes_half_of_the_memory_and_types_do_not_mix(package, repository):
    _, requests = package
    with opened(repository) as processor:
        ask(processor, requests[5])
        as_float32 = counted(processor)["nbytes"]
        processor.host.set_policy("m", {"user_state": {"dtype": "float16"}})
        assert named_step(ask(processor, requests[5])) is None
        assert counted(processor)["misses.absent"] == 2
        assert named_step(ask(processor, requests[5])) == 0
        # Pages are whole, and states of small networks few of them.
        assert counted(processor)["nbytes"] - as_float32 <= as_float32 * 0.6 + 512
        processor.host.set_policy("m", {"user_state": None})
        assert named_step(ask(processor, requests[5])) is None
        assert (counted(processor)["hits"], counted(processor)["rounded"]) == (2, 1)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 65520.0])
def test_user_that_float16_does_not_hold_is_computed_anew(package, repository, number):
    _, requests = package
    with opened(repository, **bounded(dtype="float16")) as processor:
        replica = processor.predictor.replica("m")
        outputs = replica.manifest.graphs["user"].outputs
        computed = {output.name: np.ones((1, *output.dims[1:]), np.float32) for output in outputs}
        max(computed.values(), key=np.size)[0, -1] = number
        bounds = exact.UserBounds(exact.OldestUsers(dtype="float16"))
        bound = replica.plan.bind_inputs(requests[3])._replace(user_bounds=bounds)
        with replica.pinned(1) as state:
            for _ in range(2):
                look = state.users.look(state.tables, state.epoch, replica.graphs.user, bound)
                assert (look.tensors, bounds.step) == (None, None)
                look.keep(computed, 0)
        figures = counted(processor)
        assert (figures["beyond"], figures["kept"], figures["nbytes"]) == (2, 0, 0)


def test_chunks_of_a_large_request_read_and_name_a_rounded_user(package, repository):
    _, requests = package
    long = {name: np.resize(c, 600) if name in ("item", "price") else c for name, c in requests[5].items()}
    half = bounded(dtype="float16", age_s=1000)
    with opened(repository, sessions=2, **half) as kept, opened(repository, 0) as plain:
        first = ask(kept, long)
        assert named_step(ask(kept, long)) == 0
        Log(repository, kept).publish({"item": requests[5]["history.item"].values[:1].tolist()}, dense=True)
        for processor in (kept, plain):
            processor.poll()
        # What the first request left is of an older generation, which a chunk does not read.
        mine, theirs = ask(kept, long), ask(plain, long)
        assert (mine.generation.step, named_step(mine)) in ((1, None), (1, 1))
        np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], atol=MOST_APART)
        assert named_step(ask(kept, long)) == 1
        assert named_step(ask(kept, requests[5])) == 1
        assert first.generation.step == 0


def test_prepare_keeps_a_rounded_user(package, repository):
    _, requests = package
    candidates = ("item", "price")
    user = {name: column for name, column in requests[4].items() if name not in candidates}
    with opened(repository, **bounded(dtype="float16")) as processor:
        processor.process(PredictRequest("m", user, user_call=UserCall(b"u", PREPARE)))
        assert (counted(processor)["kept"], counted(processor)["rounded"]) == (1, 0)
        assert named_step(ask(processor, requests[4])) == 0


def rounded_words(processor, request):
    """The words of what is kept of a user, as float32 and as float16."""
    replica = processor.predictor.replica("m")
    words = set()
    with replica.pinned(1) as state:
        for dtype in ("float32", "float16"):
            bounds = exact.UserBounds(exact.OldestUsers(dtype=dtype))
            bound = replica.plan.bind_inputs(request)._replace(user_bounds=bounds)
            look = state.users.look(state.tables, state.epoch, replica.graphs.user, bound)
            part = state.users.states.parts["user"]
            layout = part.exact if dtype == "float32" else part.rounded
            assert look.tensors is not None
            for piece in layout.pieces({n: t.copy() for n, t in look.tensors.items()}, 0):
                words |= set(np.frombuffer(piece.tobytes()[: piece.nbytes // 8 * 8], np.int64).tolist())
    return words


def test_erasure_leaves_no_number_of_the_user_in_the_memory(package, repository):
    _, requests = package
    with opened(repository, **bounded(dtype="float16")) as processor:
        for dtype in ("float32", "float16"):
            processor.host.set_policy("m", {"user_state": {"dtype": dtype}})
            for request in requests:
                ask(processor, request)
        key, memory = int(requests[4]["user"][0]), processor.predictor.replica("m")._states.process.store.memory
        others = [rounded_words(processor, r) for r in requests if int(r["user"][0]) != key]
        mine = rounded_words(processor, requests[4]).difference(*others)
        assert len(mine) > 9
        assert mine <= set(memory.tolist())
        assert erase(ErasedUser("m", ("user",), str(key), (key,))).counts["user_states"] >= 2
        assert mine & set(memory.tolist()) == set()
