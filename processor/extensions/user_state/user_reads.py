"""Find what the user's part of a request reads: the inputs that name it, and the rows whose stamps make it valid.

Both follow from the lookups of a subgraph's inputs (processor.features.plan), so they are what the kernel of lookups
reads (kernels.pool): the same values, the same keys, in the same order.

A request is not named if one of its user inputs is left out: what fills it reads rows of its own, or no rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.user_state.read_kernels import draw_of, read_stamps, write_inputs
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import INPUT_FIELDS, PLAN_FIELDS, SOURCE, TABLE
from freshet_serving.processor.package import FEATURES, SEQUENCE, Subgraph

Int64s = NDArray[np.int64]
NO_BYTES, NO_STAMPS = np.empty(0, np.uint8), np.empty(0, np.int64)
"""With no room the kernels tell how much it takes, and read no value and no row."""


class UserReads:
    def __init__(self, graph: Subgraph, plan: SparsePlan) -> None:
        lookups, times = [], []
        for graph_input in graph.inputs:
            if graph_input.source == FEATURES:
                lookups.append(plan.pooling(graph_input.features).plan)
            elif graph_input.source == SEQUENCE:
                entry = plan.sequences[graph_input.name]
                width = graph_input.dims[1] if graph_input.dims else entry.width
                lookups.append(plan.places(entry, width * entry.max_length // entry.width).plan)
                times += [plan.source(entry.time)] if entry.time else []
        self._plan = np.concatenate([np.empty((0, PLAN_FIELDS), np.int64), *lookups])
        self.tables = frozenset(self._plan[self._plan[:, TABLE] >= 0, TABLE].tolist())
        # A source is looked up or holds floats, never both.
        nbytes = dict.fromkeys(times, 8)
        for lookup in self._plan.tolist():
            nbytes[lookup[SOURCE]] = 8 if lookup[TABLE] >= 0 else 4
        self._sources = np.array(sorted(nbytes.items()), np.int64).reshape(-1, 2)

    def inputs(self, bound: BoundRequest) -> tuple[int, Int64s]:
        """Return a hash of what a request reads here, to take samples by; and int64 [S, INPUT_FIELDS], its inputs.

        The hash is 0 or more, -1 if an input that is read here is left out. User inputs have one row.
        """
        inputs = np.frombuffer(bytearray(bound.words), np.int64).reshape(-1, INPUT_FIELDS)
        return draw_of(self._sources, inputs), inputs

    def content(self, inputs: Int64s) -> memoryview:
        """Return the values that the request sends for what is read here."""
        out = np.zeros(write_inputs(self._sources, inputs, NO_BYTES), np.uint8)
        write_inputs(self._sources, inputs, out)
        return out.data

    def stamps(self, tables: Int64s, inputs: Int64s, epoch: int) -> Int64s:
        """Return the stamps of the rows that are read here, as of an epoch: int64 [keys]."""
        stamps = np.empty(read_stamps(tables, self._plan, inputs, epoch, NO_STAMPS), np.int64)
        read_stamps(tables, self._plan, inputs, epoch, stamps)
        return stamps
