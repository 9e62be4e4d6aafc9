"""Histories made of an event log: what a plain loop over all earlier rows finds, from any row on, in any batches."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data import user_events
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput


class Log:
    """An event log in memory."""

    schema = Schema((Field("user", "id"), Field("item", "string"), Field("seconds", "float")), "clicked", "ts")

    def __init__(self, users, items, clicked, times):
        self.rows = list(zip(users, items, clicked, times))

    def count_rows(self):
        return len(self.rows)

    def batches(self, rows, start=0):
        for first in range(start, len(self.rows), rows):
            users, items, clicked, times = zip(*self.rows[first : first + rows])
            columns = {"user": np.array(users, np.int64), "item": Strings.of(list(items))}
            columns["seconds"] = np.arange(first, first + len(users), dtype=np.float32) / 2
            time = None if None in times else np.array(times, np.float64)
            yield Batch(columns, np.array(clicked, np.float32), time, first)


def features(**section):
    config = {
        "model": {"name": "m", "arch": "din"},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
        "features": {"user": {"kind": "id", "side": "user"}, "item": {"kind": "string", "side": "item"}},
        "sequences": {
            "h": {"columns": {"i": "item"}, "tables": {"i": "item"}, "from_events": "user", "time": "ts"} | section
        },
    }
    return parse_config(config).features


def read(log, rows=3, start=0, **section):
    source = SequenceSource(log, features(floats={"watched": "seconds", "liked": "clicked"}, **section))
    found = [], [], [], []
    for batch in source.batches(rows, start):
        for name, lists in zip(("h.i", "h.time", "h.watched", "h.liked"), found):
            column = batch.columns[name]
            values = column.values.tolist()
            lists += [values[a:b] for a, b in zip(column.row_splits, column.row_splits[1:])]
        assert batch.columns["h.watched"].values.dtype == batch.columns["h.liked"].values.dtype == np.float32
    return found


def expected(log, most=50, keep="newest", where="", ties="exclude"):
    found = [], [], [], []
    for n, (user, _, _, time) in enumerate(log.rows):
        before = [
            (item.encode(), int(when), row / 2, clicked)
            for row, (other, item, clicked, when) in enumerate(log.rows[:n])
            if other == user and (clicked > 0 or not where) and (when < time or ties == "file")
        ]
        before = before[-most:] if keep == "newest" else before[:most]
        for n, lists in enumerate(found):
            lists.append([event[n] for event in before])
    return found


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abcdef"), st.integers(0, 1), st.integers(0, 2)),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=40)
@given(
    EVENTS,
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from(["newest", "oldest"]),
    st.sampled_from(["", "clicked"]),
    st.sampled_from(["exclude", "file"]),
    st.data(),
)
def test_history_is_what_a_plain_loop_finds(events, rows, most, keep, where, ties, data):
    times = np.cumsum([step for *_, step in events]).tolist()
    log = Log(*list(zip(*events))[:3], times)
    start = data.draw(st.integers(0, len(events)))
    got = read(log, rows, start, max_length=most, keep=keep, where=where, ties=ties)
    wanted = expected(log, most, keep, where, ties)
    assert got == tuple(lists[start:] for lists in wanted)


class Lists(Log):
    """A log whose rows have lists already, all the same."""

    schema = Schema(
        (Field("user", "id"), Field("item", "string"), Field("hist", "strings"), Field("spent", "floats")),
        "clicked", "ts",
    )  # fmt: skip

    def __init__(self, events, numbers):
        super().__init__([1, 2], "xy", [0, 1], [5, 6])
        self.lists = events, numbers

    def batches(self, rows, start=0):
        for batch in super().batches(rows, start):
            batch.columns["hist"], batch.columns["spent"] = (Ragged.of([one] * len(batch)) for one in self.lists)
            yield batch


@pytest.mark.parametrize("padding", [None, ""], ids=["whole", "padded"])
@pytest.mark.parametrize("order", [1, -1], ids=["behind", "before"])
def test_list_columns_get_the_sequences_names_and_lose_their_padding(padding, order):
    events, numbers = ["a", "b", "", ""][::order], [1.0, 2.0, 0.0, 0.0][::order]
    options = {} if padding is None else {"padding": padding}
    made = features(from_events="", time="", columns={"i": "hist"}, floats={"paid": "spent"}, **options)
    source = SequenceSource(Lists(events, numbers), made)
    assert [(name, source.schema.kind(name)) for name in source.schema.names[2:]] == [
        ("h.i", "strings"), ("h.paid", "floats"),
    ]  # fmt: skip
    (batch,) = source.batches(8)
    assert list(batch.columns) == source.schema.names == ["user", "item", "h.i", "h.paid"]
    if padding is not None:
        events, numbers = ["a", "b"][::order], [1.0, 2.0][::order]
    assert batch.columns["h.i"].values.tolist() == [event.encode() for event in events] * 2
    assert batch.columns["h.paid"].values.tolist() == numbers * 2
    assert batch.columns["h.i"].row_splits.tolist() == [0, len(events), 2 * len(events)]


def test_log_without_times_is_refused():
    class Timeless(Log):
        schema = Schema((Field("user", "id"), Field("item", "string")), "clicked")

    with pytest.raises(BadInput, match=r"data\.time: expected the column of the rows' time"):
        SequenceSource(Timeless([1], "x", [0], [None]), features(time=""))


@pytest.mark.parametrize("guest", [None, 7])
def test_guests_enter_no_history_and_see_none(guest):
    log = Log([7, 1, 7, 1, 7], "abcde", [1] * 5, range(5))
    made = features(ties="file", **({} if guest is None else {"guest": guest}))
    (batch,) = SequenceSource(log, made).batches(8)
    seen = batch.columns["h.i"]
    rows = [seen.values.tolist()[a:b] for a, b in zip(seen.row_splits, seen.row_splits[1:])]
    own = [[], [b"a"], [b"a", b"c"]] if guest is None else [[], [], []]
    assert rows == [own[0], [], own[1], [b"b"], own[2]]


def test_empty_user_of_strings_is_a_guest():
    class Named(Log):
        schema = Schema((Field("user", "string"), *Log.schema.fields[1:]), "clicked", "ts")

        def batches(self, rows, start=0):
            for batch in super().batches(rows, start):
                names = ["" if user == 7 else str(user) for user in batch.columns["user"]]
                batch.columns["user"] = Strings.of(names)
                yield batch

    made = features(ties="file")
    made = [replace(f, kind="string") if f.name == "user" else f for f in made]
    (batch,) = SequenceSource(Named([7, 1, 7, 1], "abcd", [1] * 4, range(4)), made).batches(8)
    assert np.diff(batch.columns["h.i"].row_splits).tolist() == [0, 0, 0, 1]


def test_run_that_goes_far_back_saves_what_its_rows_see(monkeypatch):
    monkeypatch.setattr(user_events, "KEPT_ROWS", 4)
    log = Log([n % 3 for n in range(28)], [f"i{n}" for n in range(28)], [1] * 28, [float(n) for n in range(28)])

    def lists(source, first):
        return [batch.columns["h.i"].values.tolist() for batch in source.batches(4, first)]

    source, saved = SequenceSource(log, features()), []
    source.saved = lambda row: {"h": saved[-1:]} if saved else None
    expected = lists(source, 0)
    for _ in range(2):
        # Back at row 12, before a pass begins there, and again after one has overtaken what was read first.
        part = source.saved_part(12, whole=True)
        saved.append({name.removeprefix("h/"): array for name, array in part.items()})
        assert saved[-1]["position"].tolist()[0] == 12
        assert lists(source, 12) == expected[3:]
        other = SequenceSource(log, features())
        other.saved = source.saved
        assert lists(other, 12) == expected[3:]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_saved_parts_follow_each_other_wherever_a_run_goes_back_to(data):
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(user_events, "KEPT_ROWS", data.draw(st.sampled_from([0, 6, 1000])))
        log = Log([n % 3 for n in range(36)], [f"i{n}" for n in range(36)], [1] * 36, [float(n) for n in range(36)])
        source, parts = SequenceSource(log, features(max_length=4)), []
        source.saved = lambda row: {"h": parts} if parts and parts[-1]["position"][0] <= row else None
        expected = [
            batch.columns["h.i"].values.tolist() for batch in SequenceSource(log, features(max_length=4)).batches(2)
        ]
        row = 0
        for _ in range(data.draw(st.integers(1, 4))):
            passed = source.batches(2, row)
            for _ in range(data.draw(st.integers(1, 12))):
                if (batch := next(passed, None)) is None:
                    break
                assert batch.columns["h.i"].values.tolist() == expected[batch.start // 2]
                row = batch.end
                if data.draw(st.booleans()):
                    part = source.saved_part(row, whole=False)
                    whole = part is None
                    part = source.saved_part(row, whole=True) if whole else part
                    part = {name.removeprefix("h/"): array for name, array in part.items()}
                    assert whole or part["since"][0] == parts[-1]["position"][0]
                    parts = [part] if whole else [*parts, part]
                    other = SequenceSource(log, features(max_length=4))
                    other.saved = source.saved
                    assert [b.columns["h.i"].values.tolist() for b in other.batches(2, row)] == expected[row // 2 :]
            row = 2 * data.draw(st.integers(0, row // 2))
            part = source.saved_part(row, whole=True)
            parts = [{name.removeprefix("h/"): array for name, array in part.items()}]
