"""Trees of protobuf message types, which bound what a parser makes of a message's bytes before it is parsed.

Two bytes can be a message of a hundred, and one byte a number of eight, so the length of a request says little. The
trees are built from the caller's descriptors: of DeepRec's messages and of the ports' alike.
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

# By a descriptor's field type: types of fixed width, and strings and bytes, which are never packed.
WIDTHS = {1: FIXED64, 2: FIXED32, 6: FIXED64, 7: FIXED32, 9: STRINGS, 12: STRINGS, 15: FIXED32, 16: FIXED64}


class MessageTree:
    """A protobuf message type, with all that it may contain."""

    def __init__(self, descriptor: Any) -> None:
        """Build the tree from a protobuf descriptor, whose fields of messages or repeated values are below FIELDS."""
        kinds, rows = [descriptor], []
        # The list grows while it is iterated.
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
        """Return the number of fields and values in a message (kernels.wire_format.count_nodes)."""
        return int(count_nodes(np.frombuffer(data, np.uint8), self._kinds))

    def check_limits(self, data: bytes | memoryview, limits: RequestLimits) -> None:
        """Raise TooLarge if a message has more fields and values than allowed."""
        # No encoding weighs more per byte than an empty message: HOLDER for two bytes. Short messages need no count.
        if HOLDER * len(data) > 2 * limits.max_nodes and (nodes := self.count(data)) > limits.max_nodes:
            expected = f"expected at most {limits.max_nodes} fields and values"
            raise TooLarge(f"max_nodes: {expected}, got {nodes}; send tensors as bytes, or ask for fewer at once")
