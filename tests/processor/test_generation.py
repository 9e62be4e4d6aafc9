"""Generations as text, and the chain's rules against a model of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.generation import Generation, Position

numbers = st.integers(0, 10**18 - 1)


@given(version=numbers, step=numbers)
def test_generation_round_trips_as_version_dot_step(version, step):
    generation = Generation(version, step)
    assert str(generation) == f"{version}.{step}"
    assert Generation.parse(str(generation)) == generation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3.",
        ".3",
        "3.1.2",
        "-3.1",
        "3.-1",
        "3,1",
        " 3.1",
        "3.1 ",
        "3.1\n",
        "3.x",
        "٣.١",
        "1e3.0",
        "+3.1",
        "1" * 19 + ".0",
        "0." + "1" * 19,
        "latest",
    ],
)
def test_malformed_generation_is_refused_with_the_input(text):
    with pytest.raises(BadInput, match=r"expected 'version\.step' such as '3\.17'"):
        Generation.parse(text)


def test_error_message_quotes_a_bounded_part_of_the_input():
    with pytest.raises(BadInput) as refused:
        Generation.parse("x" * 100_000)
    assert len(str(refused.value)) < 200


@given(a=st.tuples(numbers, numbers), b=st.tuples(numbers, numbers))
def test_generations_are_ordered_by_version_and_then_by_step(a, b):
    assert (Generation(*a) < Generation(*b)) == (a < b)


def chain_at(step, undo_depth=4):
    chain = Position("ctr", 3, undo_depth)
    if step:
        chain.advance(step)
    return chain


@pytest.mark.parametrize(
    ("here", "step", "parent", "compacted", "fits"),
    [
        (0, 1, 0, False, True),
        (5, 6, 5, False, True),
        (5, 9, 5, False, True),  # steps need not be consecutive, parents must match
        (5, 7, 6, False, False),  # a gap
        (5, 5, 4, False, False),  # served already
        (5, 3, 2, False, False),  # older
        (5, 6, 4, False, False),  # another branch
        (5, 9, 5, True, True),
        (5, 9, 3, True, True),  # compacted: the run 4..9 includes 6..9
        (5, 9, 0, True, True),
        (5, 9, 6, True, False),  # a gap before the run
        (5, 5, 0, True, False),  # nothing new in the run
        (5, 4, 0, True, False),
    ],
)
def test_delta_is_accepted_only_on_its_parent_step(here, step, parent, compacted, fits):
    chain = chain_at(here)
    if fits:
        chain.check_parent("ctr", 3, step, parent, compacted)
    else:
        with pytest.raises(Conflict, match=rf"3\.{here}"):
            chain.check_parent("ctr", 3, step, parent, compacted)
    assert chain.step == here


def test_wrong_version_is_a_conflict_and_wrong_model_bad_input():
    with pytest.raises(Conflict, match="is for version 2, but 'ctr' serves version 3"):
        chain_at(0).check_parent("ctr", 2, 1, 0, False)
    with pytest.raises(BadInput, match="expected model 'ctr', got 'rank'"):
        chain_at(0).check_parent("rank", 3, 1, 0, False)


def test_zero_undo_depth_forgets_every_delta_at_once():
    chain = Position("ctr", 3, 0)
    assert chain.advance(1) == 1
    assert chain.undo_count(0) is None
    assert chain.undo_count(1) == 0


moves = st.lists(st.tuples(st.sampled_from(["advance", "advance", "rewind"]), st.integers(1, 5)), max_size=40)


@given(moves=moves, undo_depth=st.integers(0, 6))
def test_rollback_reaches_exactly_the_states_still_remembered(moves, undo_depth):
    chain = Position("ctr", 3, undo_depth)
    history, forgotten, applied = [0], 0, 0
    for move, number in moves:
        if move == "advance":
            step = chain.step + number
            chain.check_parent("ctr", 3, step, chain.step, False)
            forgotten += chain.advance(step)
            applied += 1
            history.append(step)
        else:
            back = min(number, len(chain.undoable))
            chain.rewind(back)
            applied -= back
            del history[len(history) - back :]
        assert chain.step == history[-1]
        reachable = history[forgotten:]
        assert len(reachable) <= undo_depth + 1
        assert applied == len(history) - 1
        for back, step in enumerate(reversed(reachable)):
            assert chain.undo_count(step) == back
        for step in history[:forgotten]:
            assert chain.undo_count(step) is None
        assert chain.undo_count(chain.step + 1) is None
