"""Lay the tensors of a user's part out as the words of a state: as float32, which is exact, or as float16.

float32    the numbers, to the bit; lent from the words
float16    the nearest numbers of that type (kernels.conversion), in half of the words; widened into memory of their own

Of a float16 state, outputs of at most 1/SMALL of the largest one's numbers stay float32: masks with numbers such as
-1e9, biases and the like, one number an event where keys and values have a row.

Invariants
- What is kept is what was computed, each number within 2**-11 of itself (2**-25 below 2**-14). Where float16 does not
  hold a number, an infinity or NaN, nothing of that user's part is kept.
- States of the two types have different names, so a look for one never reads the other.
- Outputs of a subgraph are all float32 (package.manifest_checks).

Costs: float16 is one more pass over the numbers, eight at a time, for half of the words to sum and to copy.

Rejected: the type by the numbers of each state (its words would have no fixed number); int8 with a scale for each row;
conversion inside of the arena's kernels (they would have to know tensors).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.bound_request import address
from freshet_serving.processor.features.user_bounds import FLOAT32
from freshet_serving.processor.kernels.conversion import copy_typed, store_typed
from freshet_serving.processor.package import ROW_TYPES, Subgraph, all_below
from freshet_serving.processor.running.buffers import Tensors

Int64s = NDArray[np.int64]
SMALL = 8


class _Output(NamedTuple):
    """Place of an output in the words of a state.

    Attributes:
        numbers: How many numbers it has.
        dtype: The type that they are kept in.
        first: Its first word; each output begins with a new one.
        stop: The word after its last.
        room: The first word of memory that it is widened into, if it is not float32.
    """

    name: str
    numbers: int
    dtype: str
    first: int
    stop: int
    room: int

    @property
    def exact(self) -> bool:
        return self.dtype == FLOAT32


class StateTensors:
    """The tensors of one subgraph of the user in states of one type.

    Attributes:
        scope: What such states are named by, beside what a request sends.
        words: Words of a state behind its stamps.
        room: Words of memory that tensors() writes to.
    """

    def __init__(self, scope: bytes, graph: Subgraph, dtype: str) -> None:
        """Lay out the outputs, in one of features.user_bounds.DTYPES; `scope` names the subgraph."""
        self.exact = dtype == FLOAT32
        self.scope = scope if self.exact else scope + b"/" + dtype.encode()
        self._outputs: list[_Output] = []
        self.words = self.room = 0
        counts = [math.prod(output.dims[1:]) for output in graph.outputs]
        for output, count in zip(graph.outputs, counts, strict=True):
            kept_as = FLOAT32 if SMALL * count <= max(counts) else dtype
            stop = self.words + -(-count * ROW_TYPES[kept_as].dtype.itemsize // 8)
            self._outputs.append(_Output(output.name, count, kept_as, self.words, stop, self.room))
            self.words, self.room = stop, self.room + (0 if self._outputs[-1].exact else -(-count // 2))

    def tensors(self, words: Int64s, room: Int64s) -> Tensors:
        """Return the tensors of a state, each in one row, as long as `words` and `room` (written) stay as they are."""
        tensors = {}
        for output in self._outputs:
            source = words[output.first :]
            if not output.exact:
                target = room[output.room :]
                copy_typed(ROW_TYPES[output.dtype].code, address(target), address(source), 0, output.numbers)
                source = target
            tensors[output.name] = source.view(np.float32)[None, : output.numbers]
        return tensors

    def pieces(self, computed: Tensors, request: int) -> list[NDArray[Any]] | None:
        """Return arrays that are the words of a state, one after another; None if the type does not hold a number."""
        pieces: list[NDArray[Any]] = []
        for output in self._outputs:
            piece: NDArray[Any] = np.ascontiguousarray(computed[output.name][request], np.float32)
            if not output.exact:
                if not all_below(piece, ROW_TYPES[output.dtype].below):
                    return None
                source, piece = piece, np.zeros(output.stop - output.first, np.int64)
                store_typed(ROW_TYPES[output.dtype].code, address(piece), 0, address(source), output.numbers)
            pieces.append(piece)
        return pieces
