"""Build columns of strings from others: write out whole numbers, join strings, change letters."""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import kernel

Offsets = nb.types.Array(nb.int64, 1, "A", readonly=True)
Bytes = nb.types.Array(nb.uint8, 1, "A", readonly=True)
DIGITS = 20


@kernel(nb.int64(Offsets, nb.uint8[::1], nb.int64[::1]))
def write_numbers(values, data, offsets):
    """Write int64 [n] as decimal digits, at most DIGITS bytes a value, with offsets [n + 1]; return the bytes."""
    digits = np.empty(DIGITS, np.uint8)
    at = 0
    offsets[0] = 0
    for i in range(len(values)):
        rest = np.uint64(values[i])
        if values[i] < 0:
            data[at] = 45
            at += 1
            rest = ~rest + np.uint64(1)
        count = 0
        while True:
            digits[count] = 48 + np.uint8(rest % np.uint64(10))
            rest //= np.uint64(10)
            count += 1
            if rest == 0:
                break
        for j in range(count):
            data[at + j] = digits[count - 1 - j]
        at += count
        offsets[i + 1] = at
    return at


@kernel(nb.void(Bytes, Offsets, nb.int64[::1], nb.int64[::1], nb.uint8[::1]))
def append(source, starts, picks, ends, data):
    """Write string picks[i] of a source with these starts at data[ends[i]:], and move ends[i] to its end."""
    for i in range(len(picks)):
        first, last, at = starts[picks[i]], starts[picks[i] + 1], ends[i]
        for j in range(first, last):
            data[at + j - first] = source[j]
        ends[i] = at + last - first


@kernel(nb.void(nb.uint8[::1], nb.uint8, nb.uint8, nb.int64))
def shift_letters(data, first, last, by):
    """Add `by` to the ASCII codes from first to last in `data`, uint8, in place."""
    for i in range(len(data)):
        if first <= data[i] <= last:
            data[i] = np.uint8(np.int64(data[i]) + by)


@kernel(nb.int64(Bytes, Offsets, nb.uint8[::1], nb.int64[::1]))
def strip(source, starts, data, offsets):
    """Write the strings of a source with these starts without ASCII white space at both ends; return the bytes."""
    at = 0
    offsets[0] = 0
    for i in range(len(offsets) - 1):
        first, last = starts[i], starts[i + 1]
        while first < last and (source[first] == 32 or 9 <= source[first] <= 13):
            first += 1
        while first < last and (source[last - 1] == 32 or 9 <= source[last - 1] <= 13):
            last -= 1
        for j in range(first, last):
            data[at] = source[j]
            at += 1
        offsets[i + 1] = at
    return at
