"""Kinds of protobuf messages as trees of fields: what tells how much one would make of some bytes, before it does.

Two bytes can be a message of a hundred, and one byte a number of eight, so the length of a request says little. Made
from descriptors, which are the caller's: of DeepRec's messages and of those of the ports alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.kernels.wire_format import (
    FIELDS,
    FIXED32,
    FIXED64,
    HOLDER,
    LEAF,
    STRINGS,
    VARINTS,
    count_nodes,
)

# Of a descriptor's field types: those that are fixed in width, and those that never stand end to end.
WIDTHS = {1: FIXED64, 2: FIXED32, 6: FIXED64, 7: FIXED32, 9: STRINGS, 12: STRINGS, 15: FIXED32, 16: FIXED64}


class MessageTree:
    """A kind of message, with all that it may hold."""

    def __init__(self, descriptor: Any) -> None:
        """descriptor: a message's, of the protobuf runtime. Its fields that hold messages or many values have numbers
        below FIELDS."""
        kinds, rows = [descriptor], []
        # Grows while it is walked.
        for kind in kinds:
            row = np.full(FIELDS, LEAF, np.int32)
            for field in kind.fields:
                if field.message_type is not None:
                    if field.message_type not in kinds:
                        kinds.append(field.message_type)
                    row[field.number] = 1 + kinds.index(field.message_type)
                elif field.is_repeated:
                    row[field.number] = WIDTHS.get(field.type, VARINTS)
            rows.append(row)
        self._kinds = np.stack(rows)

    def count(self, data: bytes | memoryview) -> int:
        """See kernels.wire_format.count_nodes."""
        return int(count_nodes(np.frombuffer(data, np.uint8), self._kinds))

    def check_limits(self, data: bytes | memoryview, limits: RequestLimits) -> None:
        """Raises TooLarge."""
        # A message of nothing is the shortest of its weight: two bytes.
        if HOLDER * len(data) > 2 * limits.max_nodes and (nodes := self.count(data)) > limits.max_nodes:
            wanted = f"at most {limits.max_nodes} fields and values wanted"
            raise TooLarge(f"max_nodes: {wanted}, got {nodes}; send tensors as bytes, or ask for fewer at once")
