"""Which rows have places: a place has one row, and is not written while an earlier line may name it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.device_rows.hot_rows import HotRows, Phases

ROWS, FIRST, COUNT = 12, 5, 4


def note(hot, row):
    count = int(hot.notes[0])
    hot.notes[1 + count % (len(hot.notes) - 1)] = row
    hot.notes[0] = count + 1


def read(hot, row):
    """Reads a row as the kernel does."""
    if hot.places[row]:
        hot.used[hot.places[row] - FIRST] = 1
    else:
        note(hot, row)
    return int(hot.places[row])


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["read", "read", "run", "turn"]), st.integers(0, ROWS - 1)), max_size=60)
)
def test_a_line_that_waits_finds_its_row_at_its_place(steps):
    hot, phases = HotRows(ROWS, FIRST, COUNT), Phases()
    content = {FIRST + n: n for n in range(COUNT)}
    waiting = []
    for buffer, (step, row) in enumerate(steps):
        if step == "read":
            phases.fill(buffer)
            waiting.append((buffer, row, read(hot, row)))
            note(hot, row)
        elif step == "run" and waiting:
            done, named, place = waiting.pop(0)
            assert not place or content[place] == named
            phases.ran(done)
        elif step == "turn":
            rows, places = hot.take(phases)
            assert len(set(places.tolist())) == len(places)
            for taken, place in zip(rows.tolist(), places.tolist()):
                assert FIRST <= place < FIRST + COUNT
                content[place] = taken
            hot.placed(rows, places)
        placed = hot.places[hot.places > 0]
        assert len(set(placed.tolist())) == len(placed)
    for _, named, place in waiting:
        assert not place or content[place] == named


def test_rows_that_are_read_stay():
    hot, phases = HotRows(ROWS, FIRST, COUNT), Phases()
    for _ in range(6):
        for row in (0, 1, 2, 8, 8):
            read(hot, row)
        rows, places = hot.take(phases)
        hot.placed(rows, places)
    assert hot.places[[0, 1, 2, 8]].all(), "row 3, which nobody reads, made room for row 8"
    assert not hot.places[3]


def test_rows_that_are_read_once_stay_on_the_host():
    hot, phases = HotRows(ROWS, FIRST, COUNT), Phases()
    for row in range(4, 12):
        read(hot, row)
        rows, _ = hot.take(phases)
        assert not len(rows)


@pytest.mark.parametrize("filled", [False, True])
def test_places_wait_for_lines_that_were_filled_before(filled):
    hot, phases = HotRows(ROWS, FIRST, COUNT), Phases()
    hot.used[:] = 0
    if filled:
        phases.fill(1)
    taken = []
    for _ in range(4):
        for _ in range(2):
            note(hot, 9)
        rows, places = hot.take(phases)
        hot.placed(rows, places)
        taken += rows.tolist()
    assert taken == ([] if filled else [9])
    phases.ran(1)
    for _ in range(2):
        note(hot, 9)
    rows, _ = hot.take(phases)
    assert rows.tolist() == ([9] if filled else [])
