"""A worker's counters arrive as they were, though their names are sent only when they change."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.counter_block import Slot
from freshet_serving.serving.workers.counter_layout import PROCESS, CounterReader, CounterWriter

LATE = Slot("toy", "losses.late", "toy_losses", "Lost.", "reason", "late")
SECONDS = Slot("toy", "s", "toy_seconds", "Seconds.", zero=0.0)
numbers = st.dictionaries(st.sampled_from([LATE, SECONDS, Slot("toy", "n")]), st.integers(0, 9), min_size=1)
reports = st.dictionaries(st.sampled_from([PROCESS, "1", "2"]), numbers)


def sent(written):
    return orjson.loads(orjson.dumps(written))


@given(st.lists(st.tuples(reports, st.booleans())))
def test_reports_arrive_as_written_though_some_are_lost(sequence):
    writer, reader = CounterWriter(), CounterReader()
    for report, arrives in sequence:
        written = writer.write(report)
        if arrives:
            assert reader.read(sent(written)) == report
        else:
            writer.lost()


def test_layout_is_sent_once():
    writer = CounterWriter()
    assert "layout" in writer.write({PROCESS: {LATE: 1}})
    assert writer.write({PROCESS: {LATE: 2}}) == {"numbers": [2]}
    assert "layout" in writer.write({PROCESS: {LATE: 2}, "1": {SECONDS: 0.5}})


def test_numbers_of_another_layout_are_refused():
    reader = CounterReader()
    reader.read(sent(CounterWriter().write({PROCESS: {LATE: 1}})))
    with pytest.raises(ValueError, match="shorter"):
        reader.read({"numbers": []})
