"""Slots against a model of them: sets of numbers."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.tables.arena import SlotAllocator

CAPACITY = 40


class Life(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.slots = SlotAllocator(CAPACITY, "table 'user'")
        self.held, self.limbo, self.publish_seq = [], [], 0

    @rule(count=st.integers(0, CAPACITY + 1))
    def allocate(self, count):
        taken = len(self.held) + sum(len(slots) for _, slots in self.limbo)
        if count > CAPACITY - taken:
            with pytest.raises(TooLarge, match="table 'user': the arena of 40 rows is full"):
                self.slots.allocate(count)
            return
        got = self.slots.allocate(count).tolist()
        assert len(set(got)) == count
        assert not set(got) & {*self.held, *(slot for _, slots in self.limbo for slot in slots)}
        assert all(0 <= slot < CAPACITY for slot in got)
        self.held += got

    @rule(data=st.data(), at_once=st.booleans())
    def free_deferred(self, data, at_once):
        chosen = data.draw(st.lists(st.sampled_from(self.held), unique=True)) if self.held else []
        self.held = [slot for slot in self.held if slot not in chosen]
        if at_once:
            self.slots.free(np.array(chosen, np.int64))
        else:
            self.publish_seq += 1
            self.slots.free_deferred(np.array(chosen, np.int64), self.publish_seq)
            self.limbo.append((self.publish_seq, chosen))

    @rule(behind=st.integers(0, 3))
    def reclaim(self, behind):
        self.slots.reclaim(self.publish_seq - behind)
        self.limbo = [
            (publish_seq, slots) for publish_seq, slots in self.limbo if publish_seq > self.publish_seq - behind
        ]

    @invariant()
    def counts_are_those_of_the_model(self):
        waiting = sum(len(slots) for _, slots in self.limbo)
        assert (self.slots.used, self.slots.waiting) == (len(self.held), waiting)
        assert self.slots.room == CAPACITY - len(self.held) - waiting


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_freed_slots_are_reused_before_fresh_ones():
    slots = SlotAllocator(CAPACITY, "arena")
    slots.free(slots.allocate(3))
    assert slots.allocate(2).tolist() == [0, 1]
    assert sorted(slots.allocate(2).tolist()) == [2, 3]
    assert slots.bump == 4
