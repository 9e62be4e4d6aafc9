"""Rows that networks are trained on, and those of requests, which have what the vocabulary lacks."""

import numpy as np
import pytest

from loadtest.bench.training.loops.rows import (
    BAG,
    CODES,
    FLOATS,
    FREE,
    IDS,
    SPLITS,
    WORDS,
    Column,
    codes_of,
    draw,
    draw_all,
    request_lengths,
    words_of,
)

ROWS, LENGTH = 400, 6


def drawn(column, request=False):
    return draw(column, ROWS, LENGTH, np.random.default_rng(0), request)[column.name]


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (Column("a"), (ROWS,)),
        (Column("a", IDS, width=3), (ROWS, 3)),
        (Column("a", FLOATS, width=3), (ROWS, 3)),
        (Column("a", FREE), (ROWS, LENGTH)),
        (Column("a", WORDS), (ROWS,)),
        (Column("a", CODES), (ROWS,)),
    ],
)
def test_rows_have_the_columns_shape(column, shape):
    assert drawn(column).shape == shape


def test_last_of_a_free_list_is_no_padding():
    numbers = drawn(Column("a", FREE, size=3))
    assert (numbers == 0).any()
    assert (numbers[:, -1] > 0).all()
    assert draw(Column("a", FREE), ROWS, 0, np.random.default_rng(0), request=True)["a"].shape == (ROWS, 0)


def test_only_requests_have_ids_beyond_the_table():
    column = Column("a", size=10, beyond=True)
    assert drawn(column).max() == 9
    assert drawn(column, request=True).max() > 9
    assert drawn(Column("a", size=10), request=True).max() == 9


def test_words_and_codes_are_partly_unknown():
    for column, known in ((Column("w", WORDS), words_of), (Column("c", CODES), codes_of)):
        trained, asked = (set(drawn(column, request).tolist()) - set(known(column)) for request in (False, True))
        assert 0 < len(trained) <= 5
        assert len(asked) > 50


def test_bags_have_empty_lists_and_split_all_their_ids():
    both = draw_all((Column("a", BAG), Column("b")), ROWS, LENGTH, np.random.default_rng(0), request=False)
    lengths = np.diff(both["a" + SPLITS])
    assert (lengths.min(), lengths.max(), lengths.sum()) == (0, LENGTH, len(both["a"]))
    assert len(both["b"]) == len(lengths) == ROWS


def test_requests_have_several_lengths_only_of_lists():
    assert request_lengths((Column("a"),), takes_none=False) == (1,)
    assert request_lengths((Column("a", FREE),), takes_none=False) == (1, 3, 20)
    assert request_lengths((Column("a", BAG),), takes_none=True)[0] == 0
