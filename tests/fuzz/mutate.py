"""How an input is broken: a few small changes, most of them of bytes that mean something."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

# Ends of ranges, as text and as the integers of binary formats.
PIECES = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\x80" * 9 + b"\x01", b"\xff" * 9 + b"\x01",
    b"0", b"-1", b"1.0", b"1e999", b"9223372036854775808", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"[[", b"}}",
    b'"b64"', b'{"b64":"YQ=="}', b"\\u0000", b"\\ud800", b'"', b",", b":", b"\n", b"\xc3\x28",
)  # fmt: skip
MAX_NBYTES = 1 << 16
# Mostly few: an input with many is refused for the first of them.
CHANGES = (1, 1, 1, 1, 2, 2, 3, 5)


def mutate(random: Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus, changed in one to five places."""
    data = bytearray(random.choice(corpus))
    # getrandbits is several times as fast as randrange, and a little bias is no harm here.
    bits = random.getrandbits
    for _ in range(CHANGES[bits(3)]):
        at = bits(20) % (len(data) + 1)
        kind = bits(3)
        if kind < 2 and at < len(data):
            data[at] = bits(8)
        elif kind == 2 and at < len(data):
            data[at] ^= 1 << bits(3)
        elif kind == 3:
            data[at:at] = PIECES[bits(16) % len(PIECES)]
        elif kind == 4:
            piece = PIECES[bits(16) % len(PIECES)]
            data[at : at + len(piece)] = piece
        elif kind == 5:
            del data[at : at + 1 + bits(4)]
        elif kind == 6:
            other = random.choice(corpus)
            start = bits(20) % (len(other) + 1)
            data[at : at + bits(5)] = other[start : start + bits(6)]
        elif bits(2) == 0:
            del data[at:]
    return bytes(data[:MAX_NBYTES])
