"""What the device runs: rows gathered, summed and put side by side as the engine does, and pools changed in place."""

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.backends.xla import device, stablehlo_dialects
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.extensions.device_rows import device_modules
from freshet_serving.processor.extensions.device_rows.slot_layout import slot_layout
from freshet_serving.processor.package.tensors import ROW_TYPES
from freshet_serving.processor.tables.quantise import dequantise, quantise
from tests.processor.extensions.device_rows.test_slot_layout import FLOAT, MANY, MEAN, NONE, ONE, ROOT, SUM, pooling

ROWS, SIZE, DIM = 5, 30, 4


def identity(width):
    """A dense graph that returns its input, as a portable artifact."""
    from jaxlib import _jax
    from jaxlib.mlir import ir

    kind = f"tensor<{ROWS}x{width}xf32>"
    text = f"module {{ func.func @main(%arg0: {kind}) -> {kind} {{ return %arg0 : {kind} }} }}"
    with stablehlo_dialects():
        return _jax.mlir.serialize_portable_artifact(str(ir.Module.parse(text)), "1.0.0")


def run(module, arguments, shape):
    on = device("cpu", 1)
    handler = on.handler(shape)
    kept = [on.keep(argument) for argument in arguments]
    (result,) = on.compile(module).execute_sharded(kept).consume_with_handlers([handler])
    out = np.empty(shape, np.float32)
    on.fetch(result, out)
    return out


@pytest.mark.parametrize("dtype", sorted(ROW_TYPES))
def test_lines_become_the_engines_columns(dtype):
    from freshet_serving.processor.package.manifest_entries import TableEntry

    random = np.random.default_rng(1)
    features = [
        (FLOAT, -1, SUM, 0, 1, 1), (ONE, 0, SUM, 0, DIM, 1), (MANY, 0, SUM, 3, DIM, 1), (MANY, 0, MEAN, 2, DIM, 1),
        (FLOAT, -1, SUM, 0, 1, 1), (MANY, 0, ROOT, 4, DIM, 1), (MANY, 0, NONE, 3, 3 * DIM + 3, 1),
    ]  # fmt: skip
    given, width = pooling(*features)
    layout = slot_layout(given, width, [TableEntry("t", DIM, SIZE, dtype)], [SIZE])
    (key,) = layout.pools
    stored = quantise(random.normal(size=(SIZE, DIM)).astype(np.float32), dtype)
    stored.rows[0] = 0
    rows = dequantise(stored, dtype) if dtype != "float32" else stored.rows
    host = random.normal(size=(ROWS, 13, DIM)).astype(np.float32)
    places = random.integers(1, SIZE, (ROWS, 13)).astype(np.int32)
    for feature in layout.pools[key]:
        if feature.listed or feature.masked:
            for row in range(ROWS):
                places[row, feature.first + random.integers(0, feature.places + 1) : feature.first + feature.places] = 0
    places[2, 0], places[3, 1] = -4, -1
    floats = random.normal(size=(ROWS, 2)).astype(np.float32)
    lines = np.concatenate([places.view(np.float32), floats], axis=1)

    def row_of(row, place):
        return host.reshape(-1, DIM)[-1 - place] if place < 0 else rows[place]

    expected = np.zeros((ROWS, width), np.float32)
    expected[:, [0, features[0][4] + 3 * DIM]] = floats
    for feature in layout.pools[key]:
        for row in range(ROWS):
            own = places[row, feature.first : feature.first + feature.places]
            listed = np.array([row_of(row, place) for place in own])
            if feature.masked:
                columns = np.concatenate([listed.reshape(-1), (own != 0).astype(np.float32)])
            elif feature.listed:
                columns = listed.sum(0) / np.float32(max(1, (own != 0).sum()) ** feature.power)
            else:
                columns = listed[0]
            expected[row, feature.offset : feature.offset + len(columns)] = columns
    module = device_modules.gathering(identity(width), ROWS, 1, {0: layout}, {key: SIZE})
    sent = [lines, host.reshape(ROWS, -1), stored.rows]
    if len(stored.scales):
        sent.append(stored.scales[:, None])
    np.testing.assert_allclose(run(module, sent, (ROWS, width)), expected, rtol=1e-6, atol=1e-6)


def test_artifacts_of_other_graphs_are_corrupt():
    given, width = pooling((ONE, 0, SUM, 0, DIM, 1))
    from freshet_serving.processor.package.manifest_entries import TableEntry

    layout = slot_layout(given, width, [TableEntry("t", DIM, SIZE)], [SIZE])
    with pytest.raises(Corrupt, match="cannot be read"):
        device_modules.gathering(b"no artifact", ROWS, 1, {0: layout}, {})
    with pytest.raises(Corrupt, match="expected an input of 4 columns"):
        device_modules.gathering(identity(width + 1), ROWS, 1, {0: layout}, {})


@pytest.mark.parametrize("dtype", sorted(ROW_TYPES))
def test_updates_write_rows_in_place(dtype):
    on, element, kind = device("cpu", 1), device_modules.ELEMENTS[dtype], ROW_TYPES[dtype].dtype
    handler = on.handler((SIZE, DIM), kind)

    def executed(module, arguments):
        (result,) = on.compile(module).execute_sharded(arguments).consume_with_handlers([handler])
        result.block_until_ready()
        return result

    pool = executed(device_modules.zeros(SIZE, DIM, element), [])
    at = pool.unsafe_buffer_pointer()
    rows = np.arange(3 * DIM).reshape(3, DIM).astype(kind)
    places = np.array([[7], [2], [29]], np.int32)
    changed = executed(device_modules.update(SIZE, DIM, element, 3), [pool, on.keep(places), on.keep(rows)])
    out = np.empty((SIZE, DIM), kind)
    on.fetch(changed, out)
    expected = np.zeros((SIZE, DIM), kind)
    expected[places[:, 0]] = rows
    np.testing.assert_array_equal(out, expected)
    assert changed.unsafe_buffer_pointer() == at
