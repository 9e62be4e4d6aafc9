"""The borders of steps: what counts is what the newest mark has, whatever was written and lost before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.training import batch_borders
from freshet_serving.models.training.batch_borders import (
    BORDERS,
    CLOSED,
    BatchBorders,
    Entry,
    parse_entries,
    read_entries,
)
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.generation import Generation


def entries_of(folder, mark):
    return list(parse_entries(read_entries(folder / BORDERS, mark))) if mark else []


def step(borders, row, rows):
    borders.learned(row, row + rows)
    return Entry(row, row + rows)


# What a run does: steps of so many rows, after so many skipped ones; a delta; a checkpoint; a kill, that is another
# process and the newest mark; going back to an earlier checkpoint.
ACTIONS = st.one_of(
    st.tuples(st.just("learn"), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("publish"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("interrupt"), st.just(0), st.just(0)),
    st.tuples(st.just("save"), st.just(0), st.just(0)),
    st.tuples(st.just("kill"), st.just(0), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
    st.tuples(st.just("back"), st.integers(0, 5), st.booleans()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_entries_are_those_of_the_checkpoint(tmp_path_factory, actions):
    folder = tmp_path_factory.mktemp("run")
    borders = BatchBorders(folder)
    saved, entries, row, mark = [([], [], 5)], [], 5, []
    for action, number, more in actions:
        if action == "learn":
            entries = [*entries, step(borders, row + more, number)]
            row += more + number
        elif action == "publish":
            borders.published(row, Generation(1, number))
            entries = [*entries, Entry(row, row, Generation(1, number))]
        elif action == "interrupt":
            borders.interrupted(row)
            entries = [*entries, Entry(row, row)]
        elif action == "save":
            mark = borders.commit(mark)
            saved.append((mark, entries, row))
            assert entries_of(folder, mark) == entries
        elif action == "back":
            # Later checkpoints are gone with what they counted.
            del saved[max(1, len(saved) - number) :]
            mark, entries, before = saved[-1]
            row = before if more else row
            borders.forget()
            saved.append((mark, entries, row))
        else:
            if action == "lose":
                # A checkpoint that was not committed.
                borders.commit(mark)
            mark, entries, row = saved[-1]
            borders = BatchBorders(folder)
    mark = borders.commit(mark)
    assert entries_of(folder, mark) == entries


def test_equal_steps_share_an_entry(tmp_path):
    borders = BatchBorders(tmp_path)
    for number in range(1000):
        step(borders, 64 * number, 64)
    borders.published(64_000, Generation(1, 0))
    borders.commit([])
    assert (tmp_path / BORDERS).read_bytes() == b"freshet-borders/1\n>0\n64*1000\n=1.0\n"


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data.replace(b"64", b"65")])
def test_damaged_file_begins_anew_and_says_so(tmp_path, damage):
    borders = BatchBorders(tmp_path)
    step(borders, 0, 64)
    mark = borders.commit([])
    path = tmp_path / BORDERS
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Corrupt, match="expected the 24 bytes that the newest checkpoint says"):
        read_entries(path, mark)
    borders = BatchBorders(tmp_path)
    step(borders, 64, 3)
    assert entries_of(tmp_path, borders.commit(mark)) == [Entry(64, 64), Entry(64, 67)]


def test_full_file_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_borders, "MOST_NBYTES", 40)
    borders, mark = BatchBorders(tmp_path), []
    for number in range(20):
        step(borders, number * number, 2 * number + 1)
        mark = borders.commit(mark)
    assert mark[2] == CLOSED
    entries = entries_of(tmp_path, mark)
    assert entries == [Entry(n * n, (n + 1) ** 2) for n in range(len(entries))]
    assert 1 < len(entries) < 20


@pytest.mark.parametrize("text", [b"3", b"x\n", b"3*\n*\n", b"=1\n", b"\n", b"1" * 200 + b"\n"])
def test_line_that_is_no_entry_is_refused(text):
    with pytest.raises(Corrupt, match="borders: expected"):
        list(parse_entries(b"64\n" + text))
