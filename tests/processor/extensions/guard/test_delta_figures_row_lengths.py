"""How long the longest rows usually are, and how slowly that grows."""

from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.guard.delta_figures import GROWTH, HOUR_S, RowLengths


def test_unsampled_table_has_no_known_row_length():
    lengths = RowLengths()
    lengths.served("user", 3.0, 0.0)
    assert lengths.longest("user") is None


def test_row_length_grows_with_served_rows_and_never_shrinks():
    lengths = RowLengths()
    lengths.begin("user", 2.0, 0.0)
    lengths.served("user", 1.5, 1.0)
    lengths.served("user", 0.1, 2.0)
    assert lengths.longest("user") == 3.0


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 600)), max_size=100))
def test_row_length_at_most_doubles_within_an_hour(served):
    lengths, now_s = RowLengths(), 0.0
    lengths.begin("user", 1.0, now_s)
    for times, seconds in served:
        now_s += seconds
        lengths.served("user", times, now_s)
    assert 1.0 <= lengths.longest("user") <= GROWTH ** (1 + now_s // HOUR_S)
