"""Kernels of the arena: what a state's words are at the edges of pages, and what a segment that makes no sense is."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.user_state import erase_kernels
from freshet_serving.processor.extensions.user_state import state_arena as arena

PAGES = 64


class Part:
    """A segment with the private memory of the process that owns it."""

    def __init__(self, words=None):
        shape = arena.HEAD + PAGES * (arena.ENTRY + 1 + arena.PAGE)
        self.words = np.zeros(shape, np.int64) if words is None else words
        self.entries, self.pages = arena.segment_shape(shape + arena.WAYS * arena.ENTRY)
        assert (self.entries, self.pages) == (PAGES, PAGES)
        self.at = self.words.ctypes.data, PAGES, PAGES
        self.books = (
            np.zeros(PAGES, np.int64),
            np.zeros(PAGES, np.int64),
            np.zeros(PAGES, np.int64),
            np.zeros(arena.BOOKS, np.int64),
        )
        self.states = erase_kernels.take_over(*self.at, *self.books)

    def write(self, number, low, stamps, words):
        fields = np.zeros(arena.SUM, np.int64)
        fields[[arena.HIGH, arena.LOW, arena.OWNER]] = 5, low, 9
        pieces = np.array([(part.ctypes.data, part.nbytes) for part in (stamps, words)])
        return arena.write_state(*self.at, number, fields, len(stamps), pieces, *self.books)

    def read(self, number, low, stamps, count):
        out = np.full(count, -1)
        return arena.read_state(*self.at, number, 5, low, -1, stamps, 0, arena.EXACT, out), out


@pytest.mark.parametrize("stamps", [0, 1, arena.PAGE - 1, arena.PAGE, arena.PAGE + 1])
@pytest.mark.parametrize("count", [1, arena.PAGE - 1, arena.PAGE, arena.PAGE + 1, 3 * arena.PAGE])
def test_words_are_the_same_wherever_pages_end(stamps, count):
    part = Part()
    words, first = np.arange(1, count + 1), np.arange(7, 7 + stamps)
    assert part.write(3, 8, first, words) == 1
    read, out = part.read(3, 8, first, count)
    assert read == 0
    np.testing.assert_array_equal(out, words)
    assert part.books[0][3] == -(-(stamps + count) // arena.PAGE)
    assert part.read(3, 9, first, count)[0] == -arena.ABSENT
    assert part.read(2, 8, first, count)[0] == -arena.ABSENT
    assert part.read(3, 8, first, count + 1)[0] == -arena.TORN
    if stamps:
        assert part.read(3, 8, first + 1, count)[0] == -arena.OTHER_ROWS


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [5, 6, 1, 2], [PAGES - 2, PAGES - 1, 0, 1]])
def test_words_are_the_same_in_whatever_order_pages_lie(order):
    part = Part()
    # As if all pages had been in use, and these were free again.
    part.books[3][arena.FRESH] = PAGES
    part.books[2][: len(order)], part.books[3][arena.FREE] = order[::-1], len(order)
    words = np.arange(1, 4 * arena.PAGE - 1)
    part.write(0, 8, np.arange(2), words)
    read, out = part.read(0, 8, np.arange(2), len(words))
    assert read == 0
    np.testing.assert_array_equal(out, words)


def test_name_has_a_place_in_either_set_and_goes_to_the_emptier_one():
    part = Part()
    names = [(high, low) for high in range(40) for low in range(40)]
    sets = [(arena.set_of(high, PAGES), arena.set_of(low, PAGES)) for high, low in names]
    (high, low), (other, first) = next((n, s) for n, s in zip(names, sets) if s[0] != s[1])
    counts = part.books[0]
    counts[first] = part.words[arena.HEAD + arena.ENTRY * first + arena.SEQ] = 1
    place = arena.place_for(part.at[0], PAGES, high, low, counts)
    assert other <= place < other + arena.WAYS
    for number in (first + 3, place):
        entry = part.words[arena.HEAD + arena.ENTRY * number :]
        entry[[arena.SEQ, arena.HIGH, arena.LOW]] = 1, high, low
    after = [-1]
    while after[-1] >= 0 or len(after) == 1:
        after.append(arena.find_entry(part.at[0], PAGES, high, low, after[-1]))
    assert after == [-1, first + 3, place, -1]
    same = next(n for n, s in zip(names, sets) if s[0] == s[1])
    entry = part.words[arena.HEAD + arena.ENTRY * arena.set_of(same[0], PAGES) :]
    entry[[arena.SEQ, arena.HIGH, arena.LOW]] = 1, *same
    number = arena.find_entry(part.at[0], PAGES, *same, -1)
    assert number == arena.set_of(same[0], PAGES)
    assert arena.find_entry(part.at[0], PAGES, *same, number) == -1


def test_sequence_numbers_rise_over_takeovers():
    part = Part()
    for n in range(3):
        assert part.write(n, n, np.arange(2), np.arange(1, 9)) == n + 1
    again = Part(part.words)
    assert again.states == 3
    assert again.write(5, 5, np.arange(2), np.arange(1, 9)) == 4


def test_pages_that_two_entries_claim_belong_to_the_first():
    part = Part()
    for n in range(2):
        part.write(n, n, np.arange(2), np.arange(1, 700))
    entries = part.words[arena.HEAD :][: PAGES * arena.ENTRY].reshape(PAGES, arena.ENTRY)
    entries[1, arena.FIRST] = entries[0, arena.FIRST]
    again = Part(part.words)
    assert again.states == 1
    assert again.read(0, 0, np.arange(2), 699)[0] == 0
    assert again.read(1, 1, np.arange(2), 699)[0] == -arena.ABSENT
    # One state of 701 words.
    assert again.books[3][arena.FREE] + PAGES - again.books[3][arena.FRESH] == PAGES - 11


@pytest.mark.parametrize("word", [-1, 1 << 60, PAGES])
@pytest.mark.parametrize("field", [arena.FIRST, arena.WORDS, arena.STAMPS])
def test_numbers_out_of_all_bounds_are_read_as_no_state(field, word):
    part = Part()
    part.write(0, 0, np.arange(2), np.arange(1, 700))
    part.words[arena.HEAD + field] = word
    links = part.words[arena.HEAD + PAGES * arena.ENTRY :][:PAGES]
    links[:] = word
    assert part.read(0, 0, np.arange(2), 699)[0] < 0
    erase_kernels.erase(*part.at, 1, 0, 0, PAGES)
    again = Part(part.words)
    assert again.read(0, 0, np.arange(2), 699)[0] < 0
    assert erase_kernels.erase(*again.at, 0, 0, 0, PAGES) <= 1
    assert not again.words[arena.HEAD + PAGES * (arena.ENTRY + 1) :].any()


def test_segment_without_room_for_a_page_has_none():
    assert arena.segment_shape(0) == arena.segment_shape(arena.HEAD + arena.WAYS * arena.ENTRY) == (0, 0)
