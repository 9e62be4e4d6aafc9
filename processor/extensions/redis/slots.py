"""Parse which node of a Redis Cluster serves which slots. The node that says so is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

SLOTS = 16384
SLOTS_NBYTES = 4 << 20
"""Size limit of a reply to CLUSTER SLOTS."""

Node = TypeVar("Node")
SlotRange = tuple[int, int, str, int]
"""First slot, last slot, host and port of the node that serves them."""


def parse_slots(reply: Any, own_host: str) -> list[SlotRange] | None:
    """Parse a reply to CLUSTER SLOTS of a node on `own_host`, which it may leave out; None if it is no such reply."""
    ranges = []
    try:
        for first, last, (host, port, *_), *_ in reply:
            if not 0 <= first <= last < SLOTS:
                return None
            ranges.append((first, last, host.decode() if host else own_host, int(port)))
    except (TypeError, ValueError, AttributeError):
        # Not such a list; an error reply, for example.
        return None
    return ranges


def nodes_by_slot(ranges: Iterable[SlotRange], node_of: Callable[[str, int], Node]) -> list[Node | None]:
    """Return the node that serves each slot, None where there is none."""
    slots: list[Node | None] = [None] * SLOTS
    for first, last, host, port in ranges:
        slots[first : last + 1] = [node_of(host, port)] * (last + 1 - first)
    return slots
