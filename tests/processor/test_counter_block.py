"""Counters add up by slot, in any order, also of processes that count different things."""

from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.counter_block import CounterBlock, Slot, by_name, merged

NAMES = [Slot("toy", name) for name in "abcd"]
slots = st.sampled_from(NAMES)
snapshots = st.dictionaries(slots, st.integers(0, 1 << 53))


@settings(max_examples=25)
@given(snapshots, snapshots, snapshots)
def test_sum_is_the_same_in_any_order(a, b, c):
    total = merged([a, b, c])
    assert merged([merged([a, b]), c]) == total == merged([a, merged([b, c])])
    assert merged([c, b, a]) == total
    assert merged([total, {}]) == total


@settings(max_examples=25)
@given(st.lists(snapshots))
def test_no_process_loses_what_only_it_counts(processes):
    total = merged(processes)
    assert total.keys() == {slot for snapshot in processes for slot in snapshot}
    assert all(total[slot] == sum(one.get(slot, 0) for one in processes) for slot in total)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))))
def test_blocks_of_several_owners_count_what_one_would(additions):
    alone, owners = CounterBlock(NAMES), [CounterBlock(NAMES) for _ in range(4)]
    for owner, cell, number in additions:
        alone.cells[cell] += number
        owners[owner].cells[cell] += number
    assert reduce(lambda a, b: merged([a, b]), (owner.snapshot() for owner in owners)) == alone.snapshot()


def test_snapshot_is_a_copy():
    block = CounterBlock(NAMES)
    before = block.snapshot()
    block.cells[1] += 2
    assert before[NAMES[1]] == 0
    assert block.snapshot()[NAMES[1]] == 2


def test_seconds_stay_fractions_and_counts_integers():
    snapshot = CounterBlock([Slot("toy", "n"), Slot("toy", "s", zero=0.0)]).snapshot()
    assert [type(number) for number in merged([snapshot, snapshot]).values()] == [int, float]


def test_names_are_those_of_one_block():
    snapshot = {Slot("toy", "n"): 1, Slot("other", "n"): 2}
    assert by_name(snapshot, "toy") == {"n": 1}
    assert by_name(snapshot, "none") == {}


def test_family_has_a_slot_for_each_label_value():
    family = Slot("toy", "losses", "toy_losses", "Lost.", "reason").each(["late", "down"])
    assert [(slot.name, slot.metric, slot.label, slot.value) for slot in family] == [
        ("losses.late", "toy_losses", "reason", "late"),
        ("losses.down", "toy_losses", "reason", "down"),
    ]
