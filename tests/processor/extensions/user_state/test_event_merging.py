"""Changes of a sequence of events, against lists of plain tuples."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.user_state.event_merging import changed, cut
from freshet_serving.processor.features.user_calls import APPEND, REMOVE, REPLACE
from freshet_serving.processor.package import SequenceEntry

ITEM, PRICE, TIME = "h.item", "h.price", "h.time"
MOST = 5


def entry(timed=True, keep="newest", most=MOST):
    names = [ITEM, PRICE] + [TIME] * timed
    return SequenceEntry("h", [], most, 0, names, keep, time=TIME if timed else "")


def columns(events):
    """Columns of (item, price, time): items are texts."""
    return {
        ITEM: Strings.of([str(item) for item, _, _ in events]),
        PRICE: np.array([price for _, price, _ in events], np.float32),
        TIME: np.array([time for *_, time in events], np.int64),
    }


def untimed(events):
    return {name: column for name, column in columns(events).items() if name != TIME}


def tuples(found):
    times = found[TIME].tolist() if TIME in found else [0] * len(found[PRICE])
    return [
        (int(item), price if price == price else "nan", time)
        for item, price, time in zip(found[ITEM].tolist(), found[PRICE].tolist(), times)
    ]


events = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.5, float("nan")]), st.integers(0, 4)), max_size=MOST
)


def plain(pairs):
    return [(item, price if price == price else "nan", time) for item, price, time in pairs]


@settings(max_examples=40)
@given(events, events, st.sampled_from(["newest", "oldest"]))
def test_appended_events_lie_by_time_and_are_added_once(kept, sent, keep):
    sequence = entry(keep=keep)
    kept = sorted(kept, key=lambda event: event[-1])
    found = changed(APPEND, columns(kept), columns(sent), sequence)
    every = Counter(plain(kept)) | Counter(plain(sent))
    times = [event[-1] for event in tuples(found)]
    assert times == sorted(times)
    assert not Counter(tuples(found)) - every
    assert len(times) == min(MOST, every.total())
    ordered = sorted(event[-1] for event in every.elements())
    assert times == (ordered[-MOST:] if keep == "newest" else ordered[:MOST])
    if every.total() <= MOST:
        # The same request again.
        assert tuples(changed(APPEND, found, columns(sent), sequence)) == tuples(found)


@settings(max_examples=40)
@given(events, st.permutations(range(3)), st.lists(events, min_size=3, max_size=3))
def test_order_of_appends_does_not_matter_to_what_is_there(kept, order, parts):
    sequence = entry(most=100)
    kept = sorted(kept, key=lambda event: event[-1])
    # Two parts with an event in common have it once, whichever comes first.
    one = two = columns(kept)
    for number in range(3):
        one = changed(APPEND, one, columns(parts[number]), sequence)
        two = changed(APPEND, two, columns(parts[order[number]]), sequence)
    assert Counter(tuples(one)) == Counter(tuples(two))
    assert one[TIME].tolist() == two[TIME].tolist()


@settings(max_examples=40)
@given(events, events)
def test_replaced_events_are_those_of_the_same_times(kept, sent):
    kept = sorted(kept, key=lambda event: event[-1])
    found = changed(REPLACE, columns(kept), columns(sent), entry(most=100))
    times = {event[-1] for event in sent}
    stays = [event for event in plain(kept) if event[-1] not in times]
    assert Counter(tuples(found)) == Counter(stays + plain(sent))
    assert found[TIME].tolist() == sorted(found[TIME].tolist())


@settings(max_examples=40)
@given(events, events, st.booleans())
def test_removed_events_are_gone_and_the_others_keep_their_order(kept, sent, timed):
    kept = sorted(kept, key=lambda event: event[-1])
    of, known = (columns, plain) if timed else (untimed, lambda pairs: [(i, p, 0) for i, p, _ in plain(pairs)])
    found = tuples(changed(REMOVE, of(kept), of(sent), entry(timed)))
    assert Counter(found) == Counter(known(kept)) - Counter(known(sent))
    left = iter(known(kept))
    assert all(event in left for event in found)


@given(events, events)
def test_events_without_times_are_added_at_the_end(kept, sent):
    found = changed(APPEND, untimed(kept), untimed(sent), entry(timed=False))
    assert tuples(found) == [(item, price, 0) for item, price, _ in plain(kept + sent)][-MOST:]


def test_sequence_without_times_is_replaced_as_a_whole():
    found = changed(REPLACE, untimed([(1, 0.0, 0)]), untimed([(2, 0.0, 0)]), entry(timed=False))
    assert tuples(found) == [(2, 0.0, 0)]


@pytest.mark.parametrize(("keep", "left"), [("newest", [3, 4, 5, 6, 7]), ("oldest", [0, 1, 2, 3, 4])])
def test_longer_sequences_are_cut(keep, left):
    found = cut(columns([(n, 0.0, n) for n in range(8)]), entry(keep=keep))
    assert found[TIME].tolist() == left
    assert [int(item) for item in found[ITEM].tolist()] == left
