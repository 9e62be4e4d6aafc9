"""What a serialized protobuf message holds, told by its bytes, before anybody parses it.

kinds  int32 [kinds of messages, FIELDS]: what a field's bytes are: LEAF, or 1 + the kind of message, or one of many
       STRINGS, or values end to end, VARINTS or so many bytes each (negative). Fields of higher numbers are leaves.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

FIELDS = 128
LEAF, VARINTS, STRINGS, FIXED32, FIXED64 = 0, -1, -2, -4, -8
# The runtime refuses what is nested more deeply.
DEPTH = 128
# A message takes as much as some numbers do.
HOLDER = 4
VARINT, EIGHT_BYTES, LENGTH, BEGIN, END, FOUR_BYTES = range(6)
MAX_VARINT_NBYTES = 10


@nb.njit(nb.int64(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.int32[:, ::1]), cache=True, nogil=True)
def count_nodes(data, kinds):
    """Fields of the message and of all within it, and values of packed ones: what a parser makes something of; each
    message within it counts HOLDER times, each string of many twice. Counting ends where a parser refuses the message,
    and no sooner.

    A group is unknown to all of ours: the parser passes over it whole, so nothing within it is a message.
    """
    ends, outer = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64)
    count, depth, groups, kind, at, end = 0, 0, 0, 0, 0, len(data)
    while True:
        while at >= end:
            if depth == 0 or groups > 0 or at > end:
                return count
            depth -= 1
            end, kind = ends[depth], outer[depth]
        # The key, and what follows it where that is a number too.
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
