"""What a JSON text holds, told by its bytes, before anybody parses it: outside strings, in one pass.

A string begins and ends at a quotation mark that no backslash stands before; that is all that has to be known of JSON.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

Bytes = nb.types.Array(nb.uint8, 1, "C", readonly=True)
QUOTE, BACKSLASH, COMMA, COLON, MINUS = 34, 92, 44, 58, 45
OPENING, CLOSING, SPACES = (91, 123), (93, 125), (32, 10, 13, 9)
NOT_A_NUMBER, INFINITE = 7e307, 8e307
"""What spell_out() writes for NaN and Infinity: numbers that no float32 holds."""

_NAN, _INFINITY = np.frombuffer(b"NaN", np.uint8), np.frombuffer(b"Infinity", np.uint8)
_SPELLED = np.frombuffer(b" 7e307  8e307 ", np.uint8).reshape(2, 7)


@nb.njit(nb.int64(Bytes), cache=True, nogil=True)
def count_nodes(text):
    """Values and names of a document: what a parser makes an object of. Of a text that is no JSON, no fewer than a
    parser makes before it refuses it.

    Each begins at the text's own beginning, behind a comma or a colon, or as the first of a list or an object.
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
            count += 1
            opened = False
        elif c in CLOSING:
            opened = False
        elif c not in SPACES:
            if opened:
                count += 1
            opened = c in OPENING
            inside = c == QUOTE
        at += 1
    return count


@nb.njit(nb.boolean(Bytes, nb.int64, Bytes), cache=True, nogil=True, inline="always")
def _is_at(text, at, word):
    same = len(text) - at >= len(word)
    for i in range(len(word) if same else 0):
        same = same and text[at + i] == word[i]
    return same


@nb.njit(
    nb.types.UniTuple(nb.int64, 2)(Bytes, nb.uint8[::1], Bytes, Bytes, nb.types.Array(nb.uint8, 2, "C", readonly=True)),
    cache=True,
    nogil=True,
)
def _spell_out(text, out, nan, infinity, spelled):
    at, end, count = 0, 0, 0
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
            count += 1
    return end, count


def spell_out(text: bytes) -> tuple[bytes, int]:
    """The text with a number in the place of each NaN and Infinity that is no string's, which RFC 8259 does not know;
    and how many there were."""
    source = np.frombuffer(text, np.uint8)
    out = np.empty(len(text) + (_SPELLED.shape[1] - len(_NAN)) * text.count(b"NaN"), np.uint8)
    nbytes, count = _spell_out(source, out, _NAN, _INFINITY, _SPELLED)
    return out[:nbytes].tobytes(), count
