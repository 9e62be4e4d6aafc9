"""A run of deltas as one: it leads where they lead one after another."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.package import delta as delta_module
from freshet_serving.processor.package.delta import Delta, DeltaRun, TableDelta, folded

KEYS = range(8)
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 99), max_size=8)
DENSE = st.dictionaries(st.sampled_from(("a", "b")), st.integers(0, 99), max_size=2)
RUNS = st.lists(st.tuples(CHANGES, CHANGES, DENSE), min_size=1, max_size=6)


def table(changes):
    """Of key -> number, None for one that is removed."""
    upserts = {key: n for key, n in changes.items() if n is not None}
    removed = [key for key, n in changes.items() if n is None]
    rows = np.repeat(np.array([*upserts.values()], np.float32)[:, None], 2, axis=1).reshape(-1, 2)
    return TableDelta(np.array([*upserts], np.int64), rows, np.array(removed, np.int64))


def deltas_of(run):
    made = []
    for step, (users, items, dense) in enumerate(run, 1):
        tables = {name: table(changes) for name, changes in (("users", users), ("items", items)) if changes}
        weights = {name: np.full(3, n, np.float32) for name, n in dense.items()}
        made.append(Delta("m", 1, step, step - 1, tables, weights, float(step), None, 10 * step))
    return made


def applied(deltas):
    """The state that they leave, from an empty one with key 0 in each table."""
    state = {"users": {0: (-1.0, -1.0)}, "items": {0: (-1.0, -1.0)}}
    dense = {}
    for delta in deltas:
        for name, changes in delta.tables.items():
            state[name] |= {int(k): tuple(row.tolist()) for k, row in zip(changes.keys, changes.rows)}
            for key in changes.removed.tolist():
                state[name].pop(key, None)
        dense |= {name: tensor.tolist() for name, tensor in delta.dense.items()}
    return state, dense


@settings(max_examples=40)
@given(RUNS)
def test_folded_run_equals_applying_its_deltas_in_order(run):
    deltas = deltas_of(run)
    one = folded(deltas)
    assert applied([one]) == applied(deltas)
    assert (one.step, one.parent_step, one.published_at) == (len(run), 0, float(len(run)))
    assert one.events == sum(delta.events for delta in deltas)
    for changes in one.tables.values():
        both = np.concatenate([changes.keys, changes.removed])
        assert len(set(both.tolist())) == len(both)


@settings(max_examples=40)
@given(RUNS, st.integers(0, 4))
def test_incremental_folding_equals_folding_at_the_end(run, rows):
    kept, delta_module.FOLD_ROWS = delta_module.FOLD_ROWS, rows
    try:
        gathered = DeltaRun()
        for delta in deltas_of(run):
            gathered.add(delta)
        assert applied([gathered.folded()]) == applied(deltas_of(run))
    finally:
        delta_module.FOLD_ROWS = kept


def test_newest_known_event_time_is_kept():
    first, second = deltas_of([({}, {}, {}), ({}, {}, {})])
    timed = Delta("m", 1, 1, 0, {}, event_time=(3.0, 4.0))
    assert folded([timed, second]).event_time == (3.0, 4.0)
    assert folded([first, second]).event_time is None


def test_run_of_one_delta_is_that_delta():
    (only,) = deltas_of([({1: 2}, {}, {})])
    run = DeltaRun()
    run.add(only)
    assert run.folded() is only
