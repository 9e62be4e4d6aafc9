"""Encode commands for Redis; redis-py's packer accepts any type and takes several times as long."""

from __future__ import annotations

from collections.abc import Sequence


def encode_command(words: Sequence[bytes]) -> bytes:
    """Encode a command.

    Args:
        words: Its name and arguments.
    """
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)
