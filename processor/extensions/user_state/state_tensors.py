"""Lay the tensors of a user's part out as the words of a state: as float32, which is exact, or as float16.

float32    the numbers, to the bit; lent from the words
float16    the nearest numbers of that type (kernels.conversion), in half of the words; widened into memory of their own

Invariants
- What is kept is what was computed, each number within 2**-11 of itself (2**-25 below 2**-14). A number that float16
  does not hold, an infinity or NaN is never kept as something else: nothing of that user's part is kept then.
- States of the two types have different names, so a look for one never reads the other.
- All outputs of a subgraph are float32 (package.manifest_checks), so there are no integers or masks to leave alone.

Costs: float16 is one more pass over the numbers, eight at a time, for half of the words to sum and to copy.

Rejected: int8 with a scale for each row (user parts are not bounded by their rows); conversion inside of the arena's
kernels (they would have to know tensors).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.bound_request import address
from freshet_serving.processor.features.user_bounds import FLOAT32
from freshet_serving.processor.kernels.conversion import copy_typed, store_typed
from freshet_serving.processor.package import ROW_TYPES, Subgraph, all_below
from freshet_serving.processor.running.buffers import Tensors

Int64s = NDArray[np.int64]


class StateTensors:
    """The tensors of one subgraph of the user in states of one type.

    Attributes:
        exact: True for float32.
        scope: What such states are named by, beside what a request sends.
        outputs: Name of each output, with the first of its numbers and the one after its last.
        words: Words of all numbers; each output begins with a new word.
    """

    def __init__(self, scope: bytes, graph: Subgraph, dtype: str) -> None:
        """Lay out the outputs.

        Args:
            scope: Names the subgraph.
            graph: The subgraph.
            dtype: One of features.user_bounds.DTYPES.
        """
        self._type = ROW_TYPES[dtype]
        self.exact = dtype == FLOAT32
        self.scope = scope if self.exact else scope + b"/" + dtype.encode()
        self.outputs: list[tuple[str, int, int]] = []
        at, of_word = 0, 8 // self._type.dtype.itemsize
        for output in graph.outputs:
            count = int(np.prod(output.dims[1:], dtype=np.int64))
            self.outputs.append((output.name, at, at + count))
            at += -(-count // of_word) * of_word
        self.words, self._numbers = at // of_word, at

    @property
    def room(self) -> int:
        """Words of memory that tensors() writes to."""
        return 0 if self.exact else -(-self._numbers // 2)

    def tensors(self, words: Int64s, room: Int64s) -> Tensors:
        """Return the tensors of a state, each in one row, as long as `words` and `room` stay as they are.

        Args:
            words: int64 [words], the state's.
            room: int64 [room]; written.
        """
        numbers = words.view(np.float32) if self.exact else room.view(np.float32)
        if not self.exact:
            copy_typed(self._type.code, address(room), address(words), 0, self._numbers)
        return {name: numbers[None, first:stop] for name, first, stop in self.outputs}

    def pieces(self, computed: Tensors, request: int) -> list[NDArray[Any]] | None:
        """Return arrays that are the words of a state, one after another; None if the type does not hold a number.

        Args:
            computed: Outputs of the subgraph, a row for each request.
            request: Number of the request.
        """
        tensors = [np.ascontiguousarray(computed[name][request], np.float32) for name, _, _ in self.outputs]
        if self.exact:
            return list(tensors)
        if not all(all_below(tensor, self._type.below) for tensor in tensors):
            return None
        words = np.zeros(self.words, np.int64)
        for (_, first, _), tensor in zip(self.outputs, tensors, strict=True):
            target = address(words) + self._type.dtype.itemsize * first
            store_typed(self._type.code, target, 0, address(tensor), tensor.size)
        return [words]
