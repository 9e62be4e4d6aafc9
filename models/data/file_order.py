"""Order files as their writers count them: part-2 before part-10, on disk and in an object store alike."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]+")
_WIDTH = 64


def in_order_of_numbers(path: object) -> tuple[list[str], str]:
    """Return the sort key of a path or an address: folder by folder, by letters, but runs of digits as numbers.

    Example:
        >>> sorted(["part-10", "part-2"], key=in_order_of_numbers)
        ['part-2', 'part-10']
    """
    text = str(path)
    # Equal numbers, 2 and 02, are in the order of their letters.
    return _DIGITS.sub(lambda run: run[0].lstrip("0").zfill(_WIDTH), text).split("/"), text
