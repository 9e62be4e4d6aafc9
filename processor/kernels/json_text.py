"""What a JSON text holds, told by its bytes, before anybody parses it: outside strings, in one pass.

A string begins and ends at a quotation mark that no backslash stands before; that is all that has to be known of JSON.

has_boolean_letters(): whether a JSON body may hold true or false.
"""

# mypy: ignore-errors

import math
import secrets

import numba as nb
import numpy as np

# mypy: ignore-errors


Bytes = nb.types.Array(nb.uint8, 1, "C", readonly=True)
QUOTE, BACKSLASH, COMMA, COLON, MINUS = 34, 92, 44, 58, 45
OPENING, CLOSING, SPACES, LETTER_N = (91, 123), (93, 125), (32, 10, 13, 9), 78
# What a list or an object weighs, a number being 1; a string that is no name weighs 2, a NaN 3. As they do in memory.
HOLDER = 4
# Drawn anew by every process: what stands for NaN must be a number that nobody sends, or sends for what it is.
_drawn = secrets.randbelow(10**5)
_spelled = [f" {first}.{_drawn:05d}e307 " for first in (7, 8)]
NOT_A_NUMBER, INFINITE = map(float, _spelled)
MEANT = {NOT_A_NUMBER: math.nan, INFINITE: math.inf, -INFINITE: -math.inf}
"""What is meant by the numbers that spell_out() writes, which no float32 holds."""

_NAN, _INFINITY = np.frombuffer(b"NaN", np.uint8), np.frombuffer(b"Infinity", np.uint8)
_SPELLED = np.frombuffer("".join(_spelled).encode(), np.uint8).reshape(2, -1)


@nb.njit(nb.int64(Bytes), cache=True, nogil=True)
def count_nodes(text):
    """The weight of the values and names of a document, of all that a parser makes an object of. Of a text that is no
    JSON, no less than of what a parser makes before it refuses it.

    Each begins at the text's own beginning, behind a comma or a colon, or as the first of a list or an object. A name
    weighs what it takes less than a string would for the value behind its colon.
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


@nb.njit(nb.boolean(Bytes, nb.int64, Bytes), cache=True, nogil=True, inline="always")
def _is_at(text, at, word):
    same = len(text) - at >= len(word)
    for i in range(len(word) if same else 0):
        same = same and text[at + i] == word[i]
    return same


@nb.njit(
    nb.int64(Bytes, nb.uint8[::1], Bytes, Bytes, nb.types.Array(nb.uint8, 2, "C", readonly=True)),
    cache=True,
    nogil=True,
)
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
            # Spaces keep it apart from what it must not become a number with; a sign belongs to it, but not to NaN.
            first = 1 if which == 1 and at > 0 and text[at - 1] == MINUS else 0
            for i in range(first, spelled.shape[1]):
                out[end] = spelled[which, i]
                end += 1
            at += length
    return end


def spell_out(text: bytes) -> memoryview:
    """The text with a number of MEANT in the place of each NaN and Infinity that is no string's: RFC 8259 has none."""
    source = np.frombuffer(text, np.uint8)
    longer = _SPELLED.shape[1] - len(_NAN)
    out = np.empty(len(text) + longer * (text.count(b"NaN") + text.count(b"Infinity")), np.uint8)
    return memoryview(out)[: _spell_out(source, out, _NAN, _INFINITY, _SPELLED)]


# Searching the words takes twenty times as long: half of what orjson needs to parse the body.
@nb.njit(nb.boolean(nb.types.Array(nb.uint8, 1, "C", readonly=True)), cache=True, nogil=True)
def has_boolean_letters(body):
    """Whether two letters of true or false stand side by side in a body, maybe in a name. body: uint8 [nbytes]."""
    found = False
    for i in range(len(body) - 1):
        # "ru" of true, and "al" of false; no early end, so that it is done many bytes at a time.
        found = found | ((body[i] == 114) & (body[i + 1] == 117)) | ((body[i] == 97) & (body[i + 1] == 108))
    return found
