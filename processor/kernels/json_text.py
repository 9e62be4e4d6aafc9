"""Count the values of a JSON text and find literals in it before it is parsed, in one pass over its bytes.

The kernels look outside strings only. A string begins and ends at a quotation mark that follows no backslash; they need
to know nothing else of JSON.

has_boolean_letters(): report whether a JSON body may hold true or false.
cut_container(): find where a long list or object can be cut into slices.
"""

# mypy: ignore-errors

import math
import secrets

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import inlined, kernel

Bytes = nb.types.Array(nb.uint8, 1, "C", readonly=True)
QUOTE, BACKSLASH, COMMA, COLON, MINUS = 34, 92, 44, 58, 45
OPENING, CLOSING, SPACES, LETTER_N = (91, 123), (93, 125), (32, 10, 13, 9), 78
# Weight of a list or an object relative to a number's 1, as in memory; a string that is not a name weighs 2, a NaN 3.
HOLDER = 4
# Random in each process: the number that stands for NaN must be one that no client sends.
_drawn = secrets.randbelow(10**5)
_spelled = [f" {first}.{_drawn:05d}e307 " for first in (7, 8)]
NOT_A_NUMBER, INFINITE = map(float, _spelled)
MEANT = {NOT_A_NUMBER: math.nan, INFINITE: math.inf, -INFINITE: -math.inf}
"""Values that the numbers written by spell_out() stand for; no float32 can hold those numbers."""

_NAN, _INFINITY = np.frombuffer(b"NaN", np.uint8), np.frombuffer(b"Infinity", np.uint8)
_SPELLED = np.frombuffer("".join(_spelled).encode(), np.uint8).reshape(2, -1)


@kernel(nb.int64(Bytes))
def count_nodes(text):
    """Return the total weight of a document's values and names, which bounds the objects that a parser creates.

    For a text that is not valid JSON it is at least the weight of what a parser creates before it rejects the text.

    A value begins at the start of the text, after a comma or a colon, or as the first of a list or an object. Colons
    add nothing: a name weighs one less than another string, and that pays for the value after its colon.
    """
    count, at = 1, 0
    opened = inside = False
    while at < len(text):
        c = text[at]
        if inside:
            if c == BACKSLASH:
                at += 1
            elif c == QUOTE:
                inside = False
        elif c in (COMMA, COLON):
            count += c == COMMA
            opened = False
        elif c in CLOSING:
            opened = False
        elif c not in SPACES:
            if opened:
                count += 1
            opened = c in OPENING
            if opened:
                count += HOLDER - 1
            inside = c == QUOTE
            count += inside or c == LETTER_N
        at += 1
    return count


@kernel(nb.int64(Bytes, nb.int64, nb.int64[::1]))
def cut_container(text, nbytes, cuts):
    """Write where to cut the list or object that a text consists of, and return how many positions that are.

    The first is its opening bracket, the last its closing one, those between are commas of its own level. Between two
    positions lie elements of together at most 2 * nbytes, or one longer element. Returns 0 for another text; `cuts` is
    int64 [2 * (n // nbytes) + 4].
    """
    first, end = 0, len(text) - 1
    while first < end and text[first] in SPACES:
        first += 1
    while end > first and text[end] in SPACES:
        end -= 1
    # A closing bracket's code is that of the opening one and 2.
    if first >= end or text[first] not in OPENING or text[end] != text[first] + 2:
        return 0
    cuts[0] = last = before = first
    count, depth, at = 1, 0, first
    inside = False
    while at <= end:
        c = text[at]
        if inside:
            if c == BACKSLASH:
                at += 1
            elif c == QUOTE:
                inside = False
        elif c == QUOTE:
            inside = True
        elif c in OPENING:
            depth += 1
        elif c in CLOSING:
            depth -= 1
            if depth == 0 and at != end:
                return 0
        if not inside and ((c == COMMA and depth == 1) or at == end):
            if at - before > nbytes and before > last:
                cuts[count] = before
                last = before
                count += 1
            if at - last > nbytes or at == end:
                cuts[count] = at
                last = at
                count += 1
            before = at
        at += 1
    return count if depth == 0 and not inside else 0


@inlined
def _is_at(text, at, word):
    same = len(text) - at >= len(word)
    for i in range(len(word) if same else 0):
        same = same and text[at + i] == word[i]
    return same


@kernel(nb.int64(Bytes, nb.uint8[::1], Bytes, Bytes, nb.types.Array(nb.uint8, 2, "C", readonly=True)))
def _spell_out(text, out, nan, infinity, spelled):
    at, end = 0, 0
    inside = False
    while at < len(text):
        c = text[at]
        which, length = -1, 0
        if inside:
            if c == BACKSLASH and at + 1 < len(text):
                out[end] = c
                end += 1
                at += 1
                c = text[at]
            elif c == QUOTE:
                inside = False
        elif c == QUOTE:
            inside = True
        elif c == 78 and _is_at(text, at, nan):
            which, length = 0, len(nan)
        elif c == 73 and _is_at(text, at, infinity):
            which, length = 1, len(infinity)
        if which < 0:
            out[end] = c
            end += 1
            at += 1
        else:
            # Spaces separate it from adjacent digits. A minus sign before Infinity belongs to the number; one before
            # NaN does not.
            first = 1 if which == 1 and at > 0 and text[at - 1] == MINUS else 0
            for i in range(first, spelled.shape[1]):
                out[end] = spelled[which, i]
                end += 1
            at += length
    return end


def spell_out(text: bytes) -> memoryview:
    """Return the text with NaN and Infinity outside strings replaced by the numbers of MEANT: RFC 8259 has neither."""
    source = np.frombuffer(text, np.uint8)
    longer = _SPELLED.shape[1] - len(_NAN)
    out = np.empty(len(text) + longer * (text.count(b"NaN") + text.count(b"Infinity")), np.uint8)
    return memoryview(out)[: _spell_out(source, out, _NAN, _INFINITY, _SPELLED)]


# Searching for the whole words takes twenty times as long, half the time in which orjson parses the body.
@kernel(nb.boolean(nb.types.Array(nb.uint8, 1, "C", readonly=True)))
def has_boolean_letters(body):
    """Report whether two letters of true or false are adjacent in a body, uint8 [nbytes], perhaps within a name."""
    found = False
    for i in range(len(body) - 1):
        # "ru" of true and "al" of false. The loop has no early exit, so that it can be vectorised.
        found = found | ((body[i] == 114) & (body[i + 1] == 117)) | ((body[i] == 97) & (body[i + 1] == 108))
    return found
