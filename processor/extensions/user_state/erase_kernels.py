"""Kernels that write zeros to any segment of the arena, under its lock (state_arena): erasures, and ends of the dead.

They know nothing of what is free in a segment: its own process learns that from entries without a state.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.extensions.user_state.state_arena import (
    ENTRY,
    FIRST,
    NOBODY,
    OWNER,
    PAGE,
    SEQ,
    SUBJECT,
    USED,
    WORDS,
    clear,
    entry_at,
    find_entry,
    start_of_links,
)
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import exchange, load_acquire, load_i64


@inlined
def erase_entry(segment, entries, pages, number):
    """Zero a whole state: its SEQ first, then its pages, then its entry.

    Args:
        segment: Address of the segment.
        entries: Number of its entries.
        pages: Number of its pages.
        number: Number of the entry.
    """
    at, links = entry_at(segment, number), segment + start_of_links(entries)
    exchange(at + 8 * SEQ, 0)
    words, page = min(load_i64(at + 8 * WORDS), PAGE * pages), load_i64(at + 8 * FIRST)
    for _ in range((words + PAGE - 1) // PAGE):
        if page < 0 or page >= pages:
            break
        clear(links + 8 * pages + 8 * PAGE * page, 8 * PAGE)
        page = load_i64(links + 8 * page)
    clear(at, 8 * ENTRY)


@kernel(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def erase(segment, entries, pages, owner, subject, first, stop):
    """Erase the states of an owner in some entries of a segment; return how many.

    Args:
        segment: Address of the segment.
        entries: Number of its entries.
        pages: Number of its pages.
        owner: The owner; NOBODY for all.
        subject: The one subject to erase; NOBODY for all of the owner's.
        first: Number of the first entry to look at.
        stop: Number of the entry to stop before.
    """
    gone = 0
    for number in range(first, min(stop, entries)):
        at = entry_at(segment, number)
        if (
            load_acquire(at + 8 * SEQ) != 0
            and owner in (NOBODY, load_i64(at + 8 * OWNER))
            and subject in (NOBODY, load_i64(at + 8 * SUBJECT))
        ):
            erase_entry(segment, entries, pages, number)
            gone += 1
    return gone


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def erase_name(segment, entries, pages, high, low):
    """Erase what a segment has under a name.

    Args:
        segment: Address of the segment.
        entries: Number of its entries.
        pages: Number of its pages.
        high: The name's high word.
        low: The name's low word.
    """
    number = find_entry(segment, entries, high, low, -1)
    while number >= 0:
        erase_entry(segment, entries, pages, number)
        number = find_entry(segment, entries, high, low, number)


@kernel(nb.void(nb.int64, nb.int64, nb.int64))
def finish(segment, entries, pages):
    """Zero what a dead holder of the segment's lock has left: entries without a state, and pages of no state.

    Args:
        segment: Address of the segment.
        entries: Number of its entries.
        pages: Number of its pages.
    """
    links, taken = segment + start_of_links(entries), np.zeros(pages, np.bool_)
    for number in range(entries):
        at = entry_at(segment, number)
        if load_acquire(at + 8 * SEQ) == 0:
            clear(at, 8 * ENTRY)
            continue
        words, page = min(load_i64(at + 8 * WORDS), PAGE * pages), load_i64(at + 8 * FIRST)
        for _ in range((words + PAGE - 1) // PAGE):
            if page < 0 or page >= pages:
                break
            taken[page] = True
            page = load_i64(links + 8 * page)
    for page in range(min(max(0, load_i64(segment + 8 * USED)), pages)):
        if not taken[page]:
            clear(links + 8 * pages + 8 * PAGE * page, 8 * PAGE)
