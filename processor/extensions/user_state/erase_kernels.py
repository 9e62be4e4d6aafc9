"""Kernels that write zeros to any segment of the arena, under its lock (state_arena): erasures, and ends of the dead.

Erasures know nothing of what is free in a segment: its own process learns that from entries without a state.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.extensions.user_state.state_arena import (
    DIRTY,
    ENTRY,
    FIRST,
    FREE,
    FRESH,
    NOBODY,
    OWNER,
    PAGE,
    SEQ,
    SEQUENCE,
    SUBJECT,
    USED,
    WORDS,
    clear,
    entry_at,
    find_entry,
    start_of_links,
)
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import exchange, load_acquire, load_i64, store_i64


@inlined
def erase_entry(segment, entries, pages, number):
    """Zero a whole state: its SEQ first, then its pages, then its entry."""
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
    """Erase an owner's states, or one subject's, NOBODY for all, in entries `first` to `stop`; return how many."""
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
    """Erase what a segment has under a name."""
    number = find_entry(segment, entries, high, low, -1)
    while number >= 0:
        erase_entry(segment, entries, pages, number)
        number = find_entry(segment, entries, high, low, number)


@kernel(nb.void(nb.int64, nb.int64, nb.int64))
def finish(segment, entries, pages):
    """Zero what a dead holder of the segment's lock has left: entries without a state, and pages of no state."""
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


@kernel(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def take_over(segment, entries, pages, counts, firsts, free, books):
    """Find out what a segment holds whose process has gone; return how many states it has.

    Entries that cannot be states are cleared, and pages of no state are zeroed. Whether a state is whole is found when
    it is read.
    """
    links = segment + start_of_links(entries)
    used, newest = min(max(0, load_i64(segment + 8 * USED)), pages), load_i64(segment + 8 * SEQUENCE)
    books[FREE], books[FRESH], books[DIRTY] = 0, used, 0
    # Reading what nobody has used would take memory for it.
    if used == 0:
        return 0
    taken, states = np.zeros(used, np.bool_), 0
    for number in range(entries):
        at = entry_at(segment, number)
        counts[number] = firsts[number] = 0
        seq, words, page = load_i64(at + 8 * SEQ), load_i64(at + 8 * WORDS), load_i64(at + 8 * FIRST)
        newest = max(newest, seq)
        sound = seq > 0 and 0 < words <= PAGE * used
        page_count = (words + PAGE - 1) // PAGE if sound else 0
        for n in range(page_count):
            if page < 0 or page >= used or taken[page]:
                sound = False
                page_count = n
                break
            taken[page] = True
            page = load_i64(links + 8 * page)
        if sound:
            counts[number], firsts[number] = page_count, load_i64(at + 8 * FIRST)
            states += 1
        else:
            exchange(at + 8 * SEQ, 0)
            page = load_i64(at + 8 * FIRST)
            for _ in range(page_count):
                taken[page] = False
                page = load_i64(links + 8 * page)
            clear(at, 8 * ENTRY)
    store_i64(segment + 8 * SEQUENCE, newest)
    for page in range(used - 1, -1, -1):
        if not taken[page]:
            clear(links + 8 * pages + 8 * PAGE * page, 8 * PAGE)
            free[books[FREE]] = page
            books[FREE] += 1
    return states
