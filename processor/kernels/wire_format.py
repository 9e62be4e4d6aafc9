"""Count the values of a serialized protobuf message before it is parsed.

kinds  int32 [kinds of messages, FIELDS]: the content of a field's bytes: LEAF, or 1 + the kind of message, or one
       string of a repeated field (STRINGS), or packed values: VARINTS, or values of so many bytes each (negative).
       Fields of higher numbers are leaves.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import kernel

FIELDS = 128
LEAF, VARINTS, STRINGS, FIXED32, FIXED64 = 0, -1, -2, -4, -8
# The protobuf runtime rejects messages that are nested more deeply.
DEPTH = 128
# Weight of a message, whose memory is that of a few numbers.
HOLDER = 4
VARINT, EIGHT_BYTES, LENGTH, BEGIN, END, FOUR_BYTES = range(6)
MAX_VARINT_NBYTES = 10


@kernel(nb.int64(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.int32[:, ::1]))
def count_nodes(data, kinds):
    """Count the fields of a message, of all messages within it, and the values of packed fields: what a parser creates.

    Each message within it counts HOLDER times, each string of a repeated field twice. Counting ends where a parser
    rejects the message, and no sooner. Our messages define no groups, and the parser skips an unknown group whole, so
    nothing within a group is a message.
    """
    ends, outer = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64)
    count, depth, groups, kind, at, end = 0, 0, 0, 0, 0, len(data)
    while True:
        while at >= end:
            if depth == 0 or groups > 0 or at > end:
                return count
            depth -= 1
            end, kind = ends[depth], outer[depth]
        # The key, and the varint after it if the wire type has one (a value or a length).
        key, number = np.uint64(0), np.uint64(0)
        for which in range(2):
            if which == 1 and (key & np.uint64(7)) != VARINT and (key & np.uint64(7)) != LENGTH:
                break
            value, shift = np.uint64(0), 0
            while True:
                if at >= end or shift >= 7 * MAX_VARINT_NBYTES:
                    return count
                byte = data[at]
                at += 1
                value |= np.uint64(byte & 0x7F) << np.uint64(shift)
                shift += 7
                if byte < 0x80:
                    break
            if which == 0:
                key = value
            else:
                number = value
        count += 1
        wire, field = np.int64(key & np.uint64(7)), np.int64(key >> np.uint64(3))
        if wire == LENGTH:
            if number > np.uint64(end - at):
                return count
            length = np.int64(number)
            what = np.int64(kinds[kind, field]) if groups == 0 and field < FIELDS else np.int64(LEAF)
            if what > 0:
                count += HOLDER - 1
                if depth == DEPTH:
                    return count
                ends[depth], outer[depth] = end, kind
                depth += 1
                end, kind = at + length, what - 1
                continue
            if what == VARINTS:
                for i in range(at, at + length):
                    count += data[i] < 0x80
            elif what == STRINGS:
                count += 1
            elif what < 0:
                count += length // -what
            at += length
        elif wire == EIGHT_BYTES:
            at += 8
        elif wire == FOUR_BYTES:
            at += 4
        elif wire == BEGIN:
            groups += 1
        elif wire == END:
            groups -= 1
            if groups < 0:
                return count
        elif wire != VARINT:
            return count
