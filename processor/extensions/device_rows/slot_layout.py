"""Decide which features of a subgraph are sent as places of rows on the device, and lay out what is sent.

What is sent of a row is one line of float32 numbers:

    places of the first pool | places of the next | ... | columns of all other features, as the host fills them

A place is an int32 in the bits of a float32 (slot_kernels). A pool has rows of one type and width, of several tables;
its places in a line lie side by side, feature by feature. The device puts the rows where the dense graph has the
columns of their features, and sums those of a list.

A feature is sent by places if its table lies on the device and it has no more places than columns: a long list whose
rows are added up to fewer numbers is cheaper summed on the host. Values of hashed tables, whose rows are sums
themselves, are filled by the host. So are the times of events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.device_rows import slot_kernels
from freshet_serving.processor.features.late_values import LateValues
from freshet_serving.processor.features.plan import Pooling
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import COMBINER_OF_CODE, NOT_COMBINED, TableEntry


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The rows that may lie in one pool: their type (processor.package.tensors) and width."""

    dtype: str
    dim: int


@dataclass(frozen=True, slots=True)
class PlacedFeature:
    """A feature whose rows lie on the device.

    Attributes:
        row: Its number in the plan of the input.
        first: Its first place among those of its pool.
        places: Its places in a row.
        listed: True for a list that is summed.
        power: The sum is divided by the number of values to this power.
        masked: True for the events of a sequence: rows one after another, then 1 for each place with an event.
        offset: Its first column of the dense graph's input.
    """

    row: int
    first: int
    places: int
    listed: bool
    power: float
    masked: bool
    offset: int


@dataclass(frozen=True, slots=True)
class HostColumns:
    """Columns that the host fills: the first in the dense graph's input, their number, and the first in a line."""

    offset: int
    width: int
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class SlotLayout:
    """The lines that are sent for one input of a subgraph.

    Attributes:
        pools: Features by pool, in the order of the pools in a line.
        columns: Columns that the host fills, ascending.
        width: Columns of the dense graph's input.
        line: Numbers of a line.
        lookups: int64 [F, LOOKUP_FIELDS] (slot_kernels), without HOST and PITCH.
        floats: int64 [G, FLOAT_FIELDS], the features that are one number.
        scaling: float32 [G, SCALING_FIELDS], their scaling.
        host: What else the host fills, in the columns of a line; None for nothing.
        late: What fills some of the sources with each batch.
        rest: Columns at the end that nothing here fills, and their first in a line.
    """

    pools: Mapping[PoolKey, Sequence[PlacedFeature]]
    columns: Sequence[HostColumns]
    width: int
    line: int
    lookups: NDArray[np.int64]
    floats: NDArray[np.int64]
    scaling: NDArray[np.float32]
    host: Pooling | None
    late: Sequence[LateValues]
    rest: HostColumns | None

    def places(self, key: PoolKey) -> int:
        return sum(feature.places for feature in self.pools[key])

    def span(self, key: PoolKey) -> tuple[int, int]:
        """Return the first place of one pool in a line, and their number."""
        keys = list(self.pools)
        return sum(self.places(earlier) for earlier in keys[: keys.index(key)]), self.places(key)


def slot_layout(pooling: Pooling, width: int, tables: Sequence[TableEntry], placed: Sequence[int]) -> SlotLayout | None:
    """Return the layout of one input, or None if none of its features is sent by places.

    The input is filled by `pooling`, but for columns at the end. `placed` says by table how many of its rows lie there.
    """
    features: dict[PoolKey, list[PlacedFeature]] = {}
    for row, planned in enumerate(pooling.plan.tolist()):
        if (feature := _placed(row, planned, tables, placed)) is None:
            continue
        spec = tables[planned[pool.TABLE]]
        together = features.setdefault(PoolKey(spec.dtype, spec.dim), [])
        first = together[-1].first + together[-1].places if together else 0
        summed = planned[pool.KIND] == pool.KIND_MANY and planned[pool.COMBINER] != NOT_COMBINED
        masked = planned[pool.KIND] == pool.KIND_MANY and not summed
        power = COMBINER_OF_CODE[planned[pool.COMBINER]].power if summed else 0.0
        together.append(PlacedFeature(row, first, feature, summed, power, masked, planned[pool.OFFSET]))
    if not features:
        return None
    count = sum(slots.places for together in features.values() for slots in together)
    rows_left = [row for row in range(len(pooling.plan)) if row not in {f.row for fs in features.values() for f in fs}]
    rows_left.sort(key=lambda row: int(pooling.plan[row, pool.OFFSET]))
    columns, at = list[HostColumns](), count
    left = pooling.plan[rows_left]
    for planned in left:
        offset, host_width = int(planned[pool.OFFSET]), int(planned[pool.WIDTH])
        planned[pool.OFFSET] = at
        if columns and columns[-1].offset + columns[-1].width == offset:
            columns[-1] = HostColumns(columns[-1].offset, columns[-1].width + host_width, columns[-1].first)
        else:
            columns.append(HostColumns(offset, host_width, at))
        at += host_width
    lookups, first = list[list[int]](), 0
    for key, together in features.items():
        for slots in together:
            planned = pooling.plan[slots.row]
            words = [0] * slot_kernels.LOOKUP_FIELDS
            words[slot_kernels.SOURCE], words[slot_kernels.COLUMN] = planned[pool.SOURCE], planned[pool.COLUMN]
            words[slot_kernels.TABLE], words[slot_kernels.OFFSET] = planned[pool.TABLE], first + slots.first
            words[slot_kernels.PLACES], words[slot_kernels.LIST] = slots.places, slots.listed or slots.masked
            words[slot_kernels.AT], words[slot_kernels.DIM] = slots.first, key.dim
            lookups.append(words)
        first += together[-1].first + together[-1].places
    scaling, single = pooling.scaling[rows_left], left[:, pool.KIND] == pool.KIND_FLOAT
    floats = np.ascontiguousarray(left[single][:, [pool.SOURCE, pool.COLUMN, pool.OFFSET]])
    host = None if single.all() else Pooling(left[~single], scaling[~single], pooling.late)
    filled = int((pooling.plan[:, pool.OFFSET] + pooling.plan[:, pool.WIDTH]).max())
    rest = HostColumns(filled, width - filled, at) if filled < width else None
    line = at + (rest.width if rest else 0)
    columns += [rest] if rest else []
    places = np.array(lookups, np.int64)
    return SlotLayout(features, columns, width, line, places, floats, scaling[single], host, pooling.late, rest)


def _placed(row: int, planned: Sequence[int], tables: Sequence[TableEntry], placed: Sequence[int]) -> int | None:
    """Return the places of a feature that is sent by places, else None."""
    number, kind = planned[pool.TABLE], planned[pool.KIND]
    if number < 0 or not placed[number]:
        return None
    if kind == pool.KIND_ONE:
        return 1
    places = planned[pool.MAX_LENGTH]
    if kind == pool.KIND_MANY and planned[pool.CODES] == 1 and 0 < places <= planned[pool.WIDTH]:
        return places
    return None
