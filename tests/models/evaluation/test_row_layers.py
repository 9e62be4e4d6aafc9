"""Layers of a table against a dictionary that takes them one after another."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.evaluation import row_layers
from freshet_serving.models.evaluation.row_layers import RowLayer, RowLayers
from freshet_serving.processor.repository.log.contents import NO_SCALES
from freshet_serving.processor.tables.table import packed

DIM = 2
ids = st.integers(-6, 6) | st.sampled_from([-(2**63), 2**63 - 1])
layer = st.tuples(st.lists(ids, unique=True, max_size=8), st.lists(ids, unique=True, max_size=4))


def made(newest_first, indexed):
    """(layers, {id: (row, count, last step)})"""
    layers, held = [], {}
    for number, (keys, removed) in enumerate(reversed(newest_first)):
        removed = [key for key in removed if key not in keys]
        rows = np.arange(len(keys) * DIM, dtype=np.float32).reshape(-1, DIM) + 100 * number
        counts, steps = np.arange(len(keys)) + 7 * number, np.arange(len(keys)) + 50 * number
        for key in removed:
            held.pop(key, None)
        held |= {k: (r.tolist(), c, s) for k, r, c, s in zip(keys, rows, counts.tolist(), steps.tolist())}
        keys = np.array(keys, np.int64)
        index = packed(keys, rows, "float32")["index"] if indexed and number == 0 else None
        layers.append(RowLayer(keys, rows, NO_SCALES, np.array(removed, np.int64), counts, steps, index))
    return RowLayers("t", DIM, layers[::-1]), held


@settings(deadline=None)
@given(newest_first=st.lists(layer, min_size=1, max_size=4), indexed=st.booleans(), asked=st.lists(ids, max_size=9))
def test_layers_equal_a_dictionary_updated_in_order(newest_first, indexed, asked):
    table, held = made(newest_first, indexed)
    before = row_layers.PIECE_ROWS
    row_layers.PIECE_ROWS = 3
    try:
        pieces = list(table.pieces())
    finally:
        row_layers.PIECE_ROWS = before
    found = [
        (key, (row, count, step))
        for p in pieces
        for key, row, count, step in zip(p.keys.tolist(), p.rows.tolist(), p.counts.tolist(), p.last_step.tolist())
    ]
    assert len(found) == len(held)
    assert dict(found) == held
    there, rows = table.rows(np.array(asked, np.int64))
    assert there.tolist() == [key in held for key in asked]
    assert rows.tolist() == [held[key][0] if key in held else [0.0] * DIM for key in asked]
    assert table.most_rows >= len(held)
