"""Which names of a listing are asked for."""

from freshet_serving.processor.extensions.object_stores.listing import EMPTY_AT_ONCE, NegativeCache


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
