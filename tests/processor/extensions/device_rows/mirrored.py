"""A table and its mirror on a device whose memory is the host's, read by place and by key."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from freshet_serving.processor.backends.xla import device
from freshet_serving.processor.extensions.device_rows import slot_kernels
from freshet_serving.processor.extensions.device_rows.row_mirror import RowMirror
from freshet_serving.processor.extensions.device_rows.slot_layout import PoolKey
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels.pool import INPUT_FIELDS, ROWS, SCALING_FIELDS, SPLITS, STRIDE, VALUES
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.tables.quantise import quantise
from freshet_serving.processor.tables.table import ServedTable

PLACES = 3
"""Places of a list."""
NO_FLOATS = np.empty((0, slot_kernels.FLOAT_FIELDS), np.int64), np.empty((0, SCALING_FIELDS), np.float32)


@cache
def compiled(module):
    return device("cpu", 1).compile(module)


class CompilesOnce:
    """The processor as a device; what is compiled once is kept for all tests."""

    def __getattr__(self, name):
        return getattr(device("cpu", 1), name)

    def compile(self, module):
        return compiled(module)


def served_table(keys, dim=4, dtype="float32", default=(), unknown_key=None):
    """A table whose file has random rows of these keys."""
    keys = np.array(sorted(keys), np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(len(keys)))
    assert hash_index.build(index.ctypes.data, len(index), keys) == -1
    rows = np.random.default_rng(len(keys)).normal(size=(len(keys), dim)).astype(np.float32)
    arrays = {"keys": keys, "index": index, "rows": rows}
    if dtype != "float32":
        stored = quantise(rows, dtype)
        arrays |= {"rows": stored.rows} | ({} if stored.scales is None else {"scales": stored.scales})
    return ServedTable(TableEntry("t", dim, len(keys), dtype, list(default), unknown_key=unknown_key), arrays)


@dataclass
class Lines:
    """Places of keys, and rows that the host has sent, as they were filled."""

    places: np.ndarray
    host: np.ndarray


class Mirrored:
    """One table with its mirror."""

    def __init__(self, table, placed=None, budget=False):
        self.table = table
        entry = table.spec
        self.mirror = RowMirror(CompilesOnce(), [entry], [entry.rows if placed is None else placed])
        self.mirror.allocate()
        self.mirror.load([table.arrays | ({"ring": np.zeros(1, np.int64)} if budget else {})])
        self.key = PoolKey(entry.dtype, entry.dim)

    @property
    def descriptors(self):
        return np.array([self.table.descriptor()], np.int64)

    def fill(self, keys, epoch, listed=False):
        """Finds keys as of an epoch, each a row; listed: lists of up to PLACES keys."""
        keys = [list(row) for row in keys] if listed else [[key] for key in keys]
        values = np.array([key for row in keys for key in row], np.int64)
        splits = np.cumsum([0, *map(len, keys)])
        inputs = np.zeros((1, 1, INPUT_FIELDS), np.int64)
        inputs[0, 0, [VALUES, ROWS, STRIDE]] = values.ctypes.data, len(keys) if len(keys) != 1 else 2, 1
        inputs[0, 0, SPLITS] = splits.ctypes.data if listed else 0
        places = PLACES if listed else 1
        lines = Lines(np.zeros((len(keys), places), np.int32), np.zeros((len(keys), places * self.key.dim), np.float32))
        lookups = np.zeros((1, slot_kernels.LOOKUP_FIELDS), np.int64)
        lookups[0, [slot_kernels.PLACES, slot_kernels.LIST, slot_kernels.DIM]] = places, listed, self.key.dim
        lookups[0, [slot_kernels.HOST, slot_kernels.PITCH]] = lines.host.ctypes.data, lines.host.shape[1] * 4
        self.mirror.catch_up(self.descriptors, epoch)
        self.mirror.phases.fill(id(lines))
        absent, _ = slot_kernels.fill(
            self.descriptors, self.mirror.devices, lookups, *NO_FLOATS, inputs, np.array([[0, len(keys)]]), epoch,
            lines.places.view(np.float32), np.zeros((1, 2), np.int64),
        )  # fmt: skip
        self.mirror.missed(absent)
        return lines

    def read(self, lines):
        """The rows that a run would read now."""
        with self.mirror.reading() as pools:
            pool = pools[self.key]
            rows = fetched(pool.rows, (pool.size, self.key.dim), self.key.dtype)
            if pool.scales is not None:
                rows = rows * fetched(pool.scales, (pool.size, 1), "float32")
        host = lines.host.reshape(*lines.places.shape, self.key.dim)
        there = np.take_along_axis(host, np.maximum(-1 - lines.places, 0)[..., None], 1)
        self.mirror.phases.ran(id(lines))
        return np.where((lines.places < 0)[..., None], there, rows[np.maximum(lines.places, 0)])

    def rows_of(self, keys, epoch):
        """The rows that the host has, [n, dim]."""
        known, rows = self.table.look_up(np.array(keys, np.int64), epoch)
        found = np.tile(self.table.unknown_row(epoch), (len(keys), 1))
        found[known] = rows
        return found


def fetched(array, shape, dtype):
    """An array of the device, as float32."""
    kinds = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
    out = np.empty(shape, kinds[dtype])
    device("cpu", 1).fetch(array, out)
    if dtype == "bfloat16":
        return (out.astype(np.uint32) << 16).view(np.float32)
    return out.astype(np.float32)
