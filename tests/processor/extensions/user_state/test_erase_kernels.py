"""Kernels that zero states: whole ones, of a subject or a name, and what a dead writer left beside them."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.user_state import erase_kernels
from freshet_serving.processor.extensions.user_state import state_arena as arena
from tests.processor.extensions.user_state.test_state_arena import PAGES, Part

STAMPS = np.arange(2)


def words_of(number):
    return np.arange(1, 700) + (number << 40)


@pytest.fixture
def part():
    part = Part()
    for number in range(3):
        part.write(number, number, STAMPS, words_of(number))
    return part


def has(part, number):
    """Whether any word of a state is anywhere in the segment."""
    return bool(((part.words >> 40 == number) & (part.words & (1 << 40) - 1 > 0)).any())


def test_entries_outside_of_the_range_stay(part):
    assert erase_kernels.erase(*part.at, arena.NOBODY, arena.NOBODY, 1, 2) == 1
    assert [part.read(n, n, STAMPS, 699)[0] for n in range(3)] == [0, -arena.ABSENT, 0]
    assert not has(part, 1)
    assert has(part, 2)
    assert erase_kernels.erase(*part.at, 9, arena.NOBODY, 0, PAGES) == 2
    assert not part.words[arena.HEAD + PAGES * (arena.ENTRY + 1) :].any()


def test_name_is_erased_where_it_is(part):
    number = arena.place_for(part.at[0], PAGES, 5, 77, part.books[0])
    part.write(number, 77, STAMPS, words_of(7))
    erase_kernels.erase_name(*part.at, 5, 77)
    assert arena.find_entry(part.at[0], PAGES, 5, 77, -1) == -1
    assert not has(part, 7)
    assert part.read(1, 1, STAMPS, 699)[0] == 0


def test_what_a_dead_writer_left_is_zeroed_and_states_stay(part):
    part.words[arena.HEAD + arena.ENTRY * 2 + arena.SEQ] = 0
    erase_kernels.finish(*part.at)
    assert [part.read(n, n, STAMPS, 699)[0] for n in range(3)] == [0, 0, -arena.ABSENT]
    assert not has(part, 2)
    assert not part.words[arena.HEAD + arena.ENTRY * 2 :][: arena.ENTRY].any()


@pytest.mark.parametrize("word", [-1, PAGES, 1 << 60])
@pytest.mark.parametrize("field", [arena.FIRST, arena.WORDS])
def test_numbers_out_of_all_bounds_end_the_walk(part, field, word):
    part.words[arena.HEAD + arena.ENTRY + field] = word
    part.words[arena.HEAD + PAGES * arena.ENTRY :][:PAGES] = word
    erase_kernels.finish(*part.at)
    assert erase_kernels.erase(*part.at, arena.NOBODY, arena.NOBODY, 0, PAGES) == 3
