"""Every row once, in an order that depends on seed and place alone, wherever a reader starts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.data import shuffled as module
from freshet_serving.models.data.shuffled import shuffled
from freshet_serving.models.data.source import Batch, Field, Schema, check_position
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput


class Numbers:
    """Row n has n, and its text."""

    schema = Schema((Field("n", "id"), Field("text", "string")), "label")

    def __init__(self, rows):
        self.rows = rows

    def batches(self, rows, start=0):
        check_position(rows, start)
        for first in range(start, self.rows, rows):
            n = np.arange(first, min(first + rows, self.rows))
            columns = {"n": n, "text": Strings.of([str(i) for i in n])}
            yield Batch(columns, n.astype(np.float32), n.astype(np.float64), first, n.astype(np.float32))

    def count_rows(self):
        return self.rows


def read(source, **given):
    return list(shuffled(source, **given))


@given(
    total=st.integers(0, 200),
    rows=st.integers(1, 40),
    window_rows=st.integers(1, 90),
    until=st.integers(0, 220),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_rows_are_shuffled_within_windows_and_resume_at_any_batch(total, rows, window_rows, until, seed, data):
    source, given_ = Numbers(total), {"rows": rows, "until": until, "window_rows": window_rows, "seed": [seed]}
    batches = read(source, start=0, **given_)
    numbers = np.concatenate([batch.columns["n"] for batch in batches]) if batches else np.empty(0, int)

    assert sorted(numbers) == list(range(min(total, until)))
    assert (numbers // window_rows == np.arange(len(numbers)) // window_rows).all()
    assert [batch.start for batch in batches] == [0, *np.cumsum([len(batch) for batch in batches])][: len(batches)]
    for batch in batches:
        assert 1 <= len(batch) <= rows
        for of_rows in (batch.label, batch.time, batch.weight):
            np.testing.assert_array_equal(of_rows, batch.columns["n"])
        assert batch.columns["text"].tolist() == [str(n).encode() for n in batch.columns["n"]]
    if batches:
        at = data.draw(st.integers(0, len(batches) - 1))
        again = read(source, start=batches[at].end, **given_)
        assert [b.columns["n"].tolist() for b in again] == [b.columns["n"].tolist() for b in batches[at + 1 :]]
        other = read(source, start=batches[at].end, **given_ | {"rows": rows + 3})
        assert [n for b in other for n in b.columns["n"]] == numbers[batches[at].end :].tolist()


def test_long_rows_are_shuffled_in_smaller_windows_that_resume(monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", 8)
    source, whole = Numbers(200), {"rows": 10, "until": 190, "window_rows": 100, "seed": [1]}
    plain = read(source, start=0, **whole)
    monkeypatch.setattr(module, "WINDOW_NBYTES", 500)
    batches = read(source, start=0, **whole)
    numbers = np.concatenate([batch.columns["n"] for batch in batches])
    assert sorted(numbers) == list(range(190))
    assert (
        np.abs(numbers - np.arange(190)).max()
        < 32
        < np.abs(np.concatenate([batch.columns["n"] for batch in plain]) - np.arange(190)).max()
    )
    again = read(source, start=batches[11].end, **whole)
    assert [b.columns["n"].tolist() for b in again] == [b.columns["n"].tolist() for b in batches[12:]]


def test_different_seed_or_epoch_gives_a_different_order():
    orders = {
        tuple(read(Numbers(64), rows=64, start=0, until=64, window_rows=64, seed=seed)[0].columns["n"])
        for seed in ([0, 0], [0, 1], [1, 0])
    }
    assert len(orders) == 3


def test_invalid_position_is_refused():
    with pytest.raises(BadInput, match="start: expected a row position"):
        read(Numbers(4), rows=1, start=-1, until=4, window_rows=4, seed=[0])
