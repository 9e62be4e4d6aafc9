"""Parse long JSON in slices, so that the thread that parses it gives up Python's lock many times on the way.

orjson holds the lock from the first byte to the last: while 16 MiB were parsed, the event loop stood still. Here a
kernel that runs without the lock finds the commas at which the longest lists and objects can be cut, and orjson parses
what lies between two cuts.

Invariants
- The result is orjson's. Each slice of a list is parsed as a list of its own, not empty beside others: if all of them
  are lists, so is the text, wherever it was cut. A cut in the wrong place, as within a string, leaves a slice that is
  no list. The same holds for objects and their members.
- Slices have at most 2 * SLICE_NBYTES, except for what has nothing to cut: one string or number, or LEVELS of nesting.
- What is refused here may be JSON to orjson (NaN is refused by both): the caller parses the whole for its message.

Costs: a pass of the kernel for each level that is cut, and a copy of each slice.

Rejected: a process that parses (values would be copied back, as objects again); a parser of numbers in a kernel (floats
are correctly rounded by orjson, and every codec takes lists).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from freshet_serving.processor.kernels.json_text import cut_container

SLICE_NBYTES = 1 << 16
"""A slice takes orjson half a millisecond to a millisecond."""
LEVELS = 6
"""Rows of matrices in inputs of a document are at the fourth level."""
OPENING_LIST = ord("[")
# A name longer than this is parsed with its value.
_NAME = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.){0,256}")[ \t\n\r]*:')


class NotSliced(ValueError):
    """The text has nothing between two commas, so it is not JSON."""


def load_in_slices(
    text: bytes | memoryview, loads: Callable[[bytes], Any], nbytes: int = SLICE_NBYTES, levels: int = LEVELS
) -> Any:
    """Return the document of a JSON text, parsed by loads() in slices; raises ValueError.

    `levels` is how many levels of nesting are cut.
    """
    if len(text) <= 2 * nbytes or not levels:
        return loads(bytes(text))
    cuts = np.empty(2 * (len(text) // nbytes) + 4, np.int64)
    edges = cuts[: cut_container(np.frombuffer(text, np.uint8), nbytes, cuts)].tolist()
    if not edges:
        return loads(bytes(text))
    view = memoryview(text)
    slices = [view[before + 1 : after] for before, after in zip(edges, edges[1:])]
    if text[edges[0]] == OPENING_LIST:
        return _list(slices, loads, nbytes, levels - 1)
    return _object(slices, loads, nbytes, levels - 1)


def _list(slices: list[memoryview], loads: Callable[[bytes], Any], nbytes: int, levels: int) -> list[Any]:
    values: list[Any] = []
    for piece in slices:
        if len(piece) > 2 * nbytes:
            values.append(load_in_slices(piece, loads, nbytes, levels))
            continue
        part = loads(b"[" + piece + b"]")
        if not part and len(slices) > 1:
            raise NotSliced
        values.extend(part)
    return values


def _object(slices: list[memoryview], loads: Callable[[bytes], Any], nbytes: int, levels: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for piece in slices:
        name = _NAME.match(piece) if len(piece) > 2 * nbytes else None
        if name is not None:
            members[loads(bytes(name[1]))] = load_in_slices(piece[name.end() :], loads, nbytes, levels)
            continue
        part = loads(b"{" + piece + b"}")
        if not part and len(slices) > 1:
            raise NotSliced
        members.update(part)
    return members
